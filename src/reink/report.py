"""What a person can learn about one compile: plain data, saved as JSON, opened without torch.

Every front (terminal, JSON, page) is rendered from a `Report` and from nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from reink.errors import ReinkError

FORMAT = 1

Outcome = Literal["in place", "hoisted", "saved", "detached", "copied back"]


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    def __str__(self) -> str:
        short = self.file.rsplit("/", 1)[-1]
        place = f"{short}:{self.line}"
        if self.function:
            place += f" in {self.function}"
        return f"{place}    {self.text}" if self.text else place


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a write could not simply go in place: `read` needs `definition`, which `write` would destroy."""

    read: str
    definition: str
    write: str
    read_source: Source | None = None
    write_source: Source | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one written operand.

    `outcome` is ``in place`` (no copy), ``hoisted`` (in place because a reader moved above the write),
    ``saved`` (the old bytes that a late reader needs were copied), ``detached`` (the write went to a
    copy of the old value) or ``copied back`` (the value was made elsewhere and copied into its input).
    `bytes` counts the bytes copied, and `avoided` those that a clone for every write would have
    copied; None when a size is symbolic, and then `size` says how many in words.
    """

    id: int
    operator: str
    argument: str
    outcome: Outcome
    bytes: int | None
    avoided: int | None
    size: str
    reason: str = ""
    do: str = ""
    node: str = ""
    source: Source | None = None
    conflict: Conflict | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the ledger: a storage is born, viewed, written, replayed, written back or closed.

    `kind` is ``input``, ``birth``, ``view``, ``write``, ``replay``, ``write-back`` or ``epilogue``;
    `storage` names the base, `version` is its version after the event, `node` the node of the program.
    """

    kind: str
    storage: str
    version: int
    node: str
    text: str = ""
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The program after a step: its `form` (mutable, functional, inplace, lowered), text and node count."""

    step: str
    form: str
    text: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one check; `details` holds the evidence, first difference first.

    A check that is not `decided` found nothing wrong and proved nothing: `ok` is True, and `details` say at what it
    stopped.
    """

    check: str
    ok: bool
    details: tuple[str, ...] = ()
    decided: bool = True

    def __bool__(self) -> bool:
        return self.ok

    @property
    def word(self) -> str:
        """``ok``, ``FAILED`` or ``not decided``."""
        return ("ok" if self.decided else "not decided") if self.ok else "FAILED"

    def __str__(self) -> str:
        return "\n".join([f"{self.check}: {self.word}", *(f"  {line}" for line in self.details)])


@dataclass(slots=True)
class Report:
    """Everything about one compiled graph. Filled while it compiles, hence not frozen.

    `seconds` maps a step to its time; `fallback` says why another program runs than the optimised
    one, and is empty when none does.
    """

    name: str = "program"
    strategy: str = "v2"
    codegen: str = "eager"
    snapshots: list[Snapshot] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    fallback: str = ""

    @property
    def bytes_cloned(self) -> int:
        """Bytes that the lowered program copies beyond the user's own copies; symbolic sizes count 0."""
        return sum(d.bytes or 0 for d in self.decisions)

    @property
    def bytes_avoided(self) -> int:
        """Bytes that a clone for every write would have copied and this program does not."""
        return sum(d.avoided or 0 for d in self.decisions)

    @property
    def copies(self) -> list[Decision]:
        """The decisions that cost something, or whose cost is symbolic."""
        return [d for d in self.decisions if d.bytes is None or d.bytes > 0]

    def snapshot(self, step: str) -> Snapshot | None:
        """The last snapshot taken after `step`, or None."""
        return next((s for s in reversed(self.snapshots) if s.step == step), None)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, with totals for readers that do not want to add."""
        head = {"format": FORMAT, "bytes_cloned": self.bytes_cloned, "bytes_avoided": self.bytes_avoided}
        return {**head, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write the report as JSON; `Report.load` reads it back."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a saved report. Raises ReinkError ``not-a-report``."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReinkError(
                "not-a-report",
                f"cannot read a report from {path}",
                why=f"{type(error).__name__}: {error}",
                do="give a file that Report.save or reink explain --json wrote",
            ) from error

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Report:
        """The report that `to_json` described."""
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}, this reink reads {FORMAT}")
        return cls(
            name=values["name"],
            strategy=values["strategy"],
            codegen=values["codegen"],
            snapshots=[Snapshot(**s) for s in values["snapshots"]],
            events=[Event(**{**e, "source": _source(e["source"])}) for e in values["events"]],
            decisions=[_decision(d) for d in values["decisions"]],
            verdicts=[
                Verdict(v["check"], v["ok"], tuple(v["details"]), v.get("decided", True)) for v in values["verdicts"]
            ],
            seconds=dict(values["seconds"]),
            fallback=values["fallback"],
        )

    def __str__(self) -> str:
        lines = [self.headline()]
        for decision in self.copies:
            lines.extend(describe(decision))
        lines.extend(str(v) for v in self.verdicts if not v.ok)
        if self.fallback:
            lines.append(f"fallback: {self.fallback}")
        return "\n".join(lines)

    def headline(self) -> str:
        """One line: how many writes, how many in place, how many bytes copied."""
        kept = len(self.decisions) - len(self.copies)
        return (
            f"{self.name}: {_counted(len(self.decisions), 'write')}, {kept} in place, {len(self.copies)} copied; "
            f"{amount(self.bytes_cloned)} cloned, {amount(self.bytes_avoided)} avoided"
        )


def describe(decision: Decision) -> Sequence[str]:
    """The decision in words, a line each: what, the read that blocks it, what to change."""
    lines = [f"#{decision.id} {decision.operator}({decision.argument}): {decision.outcome}, {decision.size}"]
    if decision.source:
        lines.append(f"    at     {decision.source}")
    conflict = decision.conflict
    if conflict:
        reader = f"{conflict.read} reads {conflict.definition}"
        lines.append(f"    reader {reader}" + (f", {conflict.read_source}" if conflict.read_source else ""))
    if decision.reason:
        lines.append(f"    why    {decision.reason}")
    if decision.do:
        lines.append(f"    do     {decision.do}")
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def amount(count: int) -> str:
    """Bytes for people: ``256 B``, ``4.0 KiB``, ``1.5 GiB``."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            return f"{value:.1f} {unit}"
    raise AssertionError("unreachable")


def _source(values: Mapping[str, Any] | None) -> Source | None:
    return Source(**values) if values else None


def _decision(values: Mapping[str, Any]) -> Decision:
    conflict = values["conflict"]
    if conflict:
        sources = {k: _source(conflict[k]) for k in ("read_source", "write_source")}
        conflict = Conflict(**{**conflict, **sources})
    return Decision(**{**values, "conflict": conflict, "source": _source(values["source"])})
