"""What a person can learn about one compile: plain data, saved as JSON, opened without torch.

Every front (terminal, JSON, page) is rendered from a `Report` and from nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from reink.errors import ReinkError
from reink.files import replace_file
from reink.plain import reader

FORMAT = 4

# Between the folders of a path, here or on Windows.
_SLASH = r"[/\\]"

Outcome = Literal["in place", "hoisted", "saved", "detached", "copied back"]


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    @property
    def place(self) -> str:
        """The file, without its folders, and the line; nothing when neither is known."""
        return f"{re.split(_SLASH, self.file)[-1]}:{self.line}" if self.file or self.line else ""

    def __str__(self) -> str:
        place = self.place
        if self.function:
            place += f" in {self.function}"
        return f"{place}    {self.text}" if self.text else place


class Region(NamedTuple):
    """Bytes of a storage: ``{ start + sum i_k * step_k : 0 <= i_k < count_k }`` for ``(count, step)`` in `dims`.

    Counted from the first byte of the base; the dim of the smallest step comes first.
    """

    start: int
    dims: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a write could not simply go in place: `read` needs `definition`, which `write` would destroy.

    `needed` and `written` are the bytes of both in the `storage_bytes` bytes of the storage; None and empty when sizes
    are symbolic.
    """

    read: str
    definition: str
    write: str
    read_source: Source | None = None
    write_source: Source | None = None
    needed: Region | None = None
    written: tuple[Region, ...] = ()
    storage_bytes: int | None = None


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
    storage: str = ""


@dataclass(frozen=True, slots=True)
class Donation:
    """An input `name` that the caller gave away: `operator` (at `node`) is the first to write its own value there.

    `bytes` is what the input holds, None when symbolic. Where no operator uses it, `reason` says why.
    """

    name: str
    bytes: int | None = None
    operator: str = ""
    node: str = ""
    source: Source | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"donated {self.name}: not used: {self.reason}"
        size = f" ({amount(self.bytes)})" if self.bytes is not None else ""
        return f"donated {self.name}{size}: {self.operator} writes there" + (f", {self.source}" if self.source else "")


class Event(NamedTuple):
    """One entry of the ledger: a storage is born, named, viewed, written, replayed, written back or closed.

    `kind` is ``input``, ``birth``, ``name``, ``view``, ``write``, ``replay``, ``write-back`` or ``epilogue``. `storage`
    names the base and `version` is its version after the event. `node` is the node of the functional program that
    holds the content from here on, but for ``name`` the captured value that from here on looks at the storage. `of`
    is the captured node at work. `place` tells the ways of looking at one storage apart (0 is all of it), `region` has
    the bytes of that place, None when sizes are symbolic.
    """

    kind: str
    storage: str
    version: int
    node: str
    of: str = ""
    place: int = 0
    region: Region | None = None


class Line(NamedTuple):
    """What stands behind a line of a snapshot's text: the node that it shows, and where that comes from.

    `of` is the node of the program before: the captured one behind a functional node, the functional one behind a
    lowered node. `source` is an index into `Report.sources`, or -1. `role` says what the node does: ``view``, ``pure``,
    ``write``, ``copy`` (one that reink adds), ``epilogue``, ``result``, or nothing for what is no node.
    """

    node: str = ""
    of: str = ""
    source: int = -1
    role: str = ""


class Held(NamedTuple):
    """Memory that the program holds while lines `first` to `last` of its text run, if each storage is freed at once
    after its last use. `kind` is ``input``, ``constant``, ``value`` or ``result``; a symbolic size counts as it was
    in the example, and as None where only the data decide it."""

    name: str
    kind: str
    bytes: int | None
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The program after a step: its `form` (mutable, functional, inplace, lowered), text and node count.

    `lines` has an entry for each line of the text, `held` one for each storage; both may be empty.
    """

    step: str
    form: str
    text: str
    nodes: int
    lines: tuple[Line, ...] = ()
    held: tuple[Held, ...] = ()


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
    one, and is empty when none does. `lower_bound`: in this order of the program no choice of values to save and writes
    to detach copies fewer bytes; None when sizes are symbolic. `sources` are the lines of the user's program that
    snapshots refer to. `donations` has what became of each input that the caller gave away.
    """

    _page: ClassVar[Callable[[Report], str]]
    _frame: ClassVar[Callable[[Report], str]]

    name: str = "program"
    strategy: str = "v2"
    codegen: str = "eager"
    snapshots: list[Snapshot] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    fallback: str = ""
    lower_bound: int | None = None
    sources: list[Source] = field(default_factory=list)
    donations: list[Donation] = field(default_factory=list)

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
        plain = {
            "name": self.name,
            "strategy": self.strategy,
            "codegen": self.codegen,
            "snapshots": [_snapshot_to_json(s) for s in self.snapshots],
            "events": [list(e) for e in self.events],
            "decisions": [asdict(d) for d in self.decisions],
            "verdicts": [asdict(v) for v in self.verdicts],
            "seconds": dict(self.seconds),
            "fallback": self.fallback,
            "lower_bound": self.lower_bound,
            "sources": [asdict(s) for s in self.sources],
            "donations": [asdict(d) for d in self.donations],
        }
        return {**head, **plain}

    def save(self, path: str | Path) -> None:
        """Write the report as JSON; `Report.load` reads it back."""
        replace_file(path, json.dumps(self.to_json()))

    def save_html(self, path: str | Path) -> None:
        """Write the report as one page that needs no other file and no network."""
        replace_file(path, type(self)._page(self))

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks."""
        return type(self)._frame(self)

    @classmethod
    def drawn_by(cls, page: Callable[[Report], str], frame: Callable[[Report], str]) -> None:
        """Say who draws a report as a page, and as a frame in another page. A report itself knows of no renderer."""
        cls._page, cls._frame = staticmethod(page), staticmethod(frame)

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a saved report. Raises ReinkError ``not-a-report``."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            again = isinstance(error, _OtherFormat)
            raise ReinkError(
                "not-a-report",
                f"cannot read a report from {path}",
                why=f"{type(error).__name__.lstrip('_')}: {error}",
                do="make the report again with this reink"
                if again
                else "give a file that Report.save or reink explain --json wrote",
            ) from error

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Report:
        """The report that `to_json` described. Raises TypeError, ValueError or KeyError for anything else."""
        if values["format"] != FORMAT:
            raise _OtherFormat(f"format {values['format']}, this reink reads {FORMAT}")
        kind: Any = cls
        report: Report = reader(kind)({known.name: values[known.name] for known in fields(cls)})
        return report

    def __str__(self) -> str:
        lines = [self.headline()]
        for decision in self.copies:
            lines.extend(describe(decision))
        lines.extend(map(str, self.donations))
        lines.extend(str(v) for v in self.verdicts if not v.ok)
        if self.fallback:
            lines.append(f"fallback: {self.fallback}")
        return "\n".join(lines)

    def headline(self) -> str:
        """One line: how many writes, how many in place, how many bytes copied."""
        kept = len(self.decisions) - len(self.copies)
        return (
            f"{self.name or 'program'}: {_counted(len(self.decisions), 'write')}, {kept} in place, "
            f"{len(self.copies)} copied; "
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
        if round(value, 1) < 1024 or unit == "TiB":
            return f"{value:.1f} {unit}"
    raise AssertionError("unreachable")


def _snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Lines and storages as lists: there is one for every node."""
    return {
        "step": snapshot.step,
        "form": snapshot.form,
        "text": snapshot.text,
        "nodes": snapshot.nodes,
        "lines": [list(line) for line in snapshot.lines],
        "held": [list(held) for held in snapshot.held],
    }


class _OtherFormat(ValueError):
    """A report, but of another reink."""
