"""What `reink.verify` found: plain data, words for a person, JSON for other programs. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from reink.report import Source, Verdict

FORMAT = 1

Outcome = Literal["ok", "differs", "refused", "failed", "skipped"]

# So many lines that write an input stand under a difference.
SHOWN_LINES = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One comparison of eager and compiled, on the given inputs or on derived ones; `name` says which.

    `outcome` is ``ok`` (everything agrees), ``differs``, ``refused`` (a coded refusal), ``failed`` (the compiled
    side raised something else) or ``skipped`` (nothing was compared). `why` is the first difference, the refusal,
    or eager's reason; `lines` are those that write the input that differs, as far as they are known. `graphs`
    counts the graphs that reink compiled, `checks` are their verdicts, and `unchecked` says what else ran.
    """

    name: str
    outcome: Outcome
    why: str = ""
    lines: tuple[Source, ...] = ()
    graphs: int = 0
    checks: tuple[Verdict, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def is_verified(self) -> bool:
        """Whether both sides agree, and reink compiled and checked every graph that ran."""
        return self.outcome == "ok" and not self.unchecked and all(self.checks)


@dataclass(frozen=True, slots=True)
class Audit:
    """What was seen of one operator in `calls` calls.

    `written` are the arguments whose memory changed, `declared` those that the schema lets it write, `broken` the ways
    in which it broke its schema, each once.
    """

    operator: str
    schema: str
    calls: int
    declared: tuple[str, ...]
    written: tuple[str, ...]
    broken: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.broken

    def __str__(self) -> str:
        lines = [self.schema, *(f"  {text}" for text in self.broken)]
        for name in self.declared:
            seen = "written" if name in self.written else "may be written, and was not seen to be"
            lines.append(f"  {name}: {seen}, as its schema says")
        return "\n".join([*lines, f"  {self.verdict()}"])

    def verdict(self) -> str:
        """The answer in one line."""
        said = "keeps to its schema" if self else "; ".join(self.broken)
        return f"{self.operator}: {said} ({_counted(self.calls, 'call')} on watched memory)"


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer of `reink.verify`. True only if every run agrees with eager and every graph was checked, and every
    custom operator keeps to its schema: on that all that reink proves relies.

    Runs that were skipped do not count, except for the first, which is on the inputs as given.
    """

    name: str
    strategy: str
    grad_mode: str
    runs: tuple[Run, ...]
    audits: tuple[Audit, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the answer is yes."""
        return all(self.audits) and self.runs[0].outcome != "skipped" and all(r.is_verified for r in self.compared)

    @property
    def compared(self) -> list[Run]:
        """The runs that were not skipped."""
        return [r for r in self.runs if r.outcome != "skipped"]

    @property
    def first_difference(self) -> Run | None:
        """The first run that differs from eager, or None."""
        return next((r for r in self.runs if r.outcome == "differs"), None)

    @property
    def unchecked(self) -> list[str]:
        """What ran without a check of reink, each thing once."""
        return list(dict.fromkeys(text for r in self.compared for text in r.unchecked))

    def checks(self) -> list[Verdict]:
        """One verdict for each kind of check, over all graphs; each failure, or what was not decided, once."""
        made: dict[str, list[Verdict]] = {}
        for verdict in (v for r in self.runs for v in r.checks):
            made.setdefault(verdict.check, []).append(verdict)
        found = []
        for name, verdicts in made.items():
            shown = [v for v in verdicts if not v.ok] or [v for v in verdicts if not v.decided]
            details = tuple(dict.fromkeys(line for v in shown for line in v.details))
            found.append(Verdict(name, all(verdicts), details, all(v.decided for v in verdicts)))
        return found

    def verdict(self) -> str:
        """The answer in one line."""
        agreed = sum(r.outcome == "ok" for r in self.runs)
        liar = next((a for a in self.audits if not a), None)
        if liar is not None:
            return f"no: the operator {liar.operator} {liar.broken[0]}"
        for outcome, word in (("differs", "differs from eager"), ("refused", "refused"), ("failed", "fails")):
            bad = next((r for r in self.runs if r.outcome == outcome), None)
            if bad is not None:
                return f"no: {bad.name}: {word}: {bad.why.splitlines()[0]}"
        if self.runs[0].outcome == "skipped":
            return f"not verified: {self.runs[0].name}: {self.runs[0].why}"
        if self.unchecked:
            return f"not verified: {_agreed(agreed)} with eager, but: {self.unchecked[0]}"
        if not self.ok:
            failed = next(v for v in self.checks() if not v.ok)
            return f"not verified: {_agreed(agreed)} with eager, but the {failed.check} check failed"
        skipped = len(self.runs) - len(self.compared)
        left = f" ({skipped} skipped)" if skipped else ""
        graphs = _counted(sum(r.graphs for r in self.runs), "graph")
        return f"yes: {_agreed(agreed)} with eager{left}; {graphs} passed the checks"

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        width = max(len(r.name) for r in self.runs)
        lines = [f"{self.name}: {self.verdict()}"]
        for run in self.runs:
            head, *rest = run.why.splitlines() or [""]
            lines.append(f"  {run.name:<{width}}  {run.outcome:<7}  {head}".rstrip())
            lines.extend(f"  {'':<{width}}  {'':<7}  {line}" for line in (*rest, *written_at(run)))
        lines.extend(f"  {line}" for verdict in self.checks() for line in str(verdict).splitlines())
        lines.extend(f"  operator {audit.verdict()}" for audit in self.audits)
        lines.extend(f"  unchecked: {text}" for text in self.unchecked)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values: ``ok`` and ``verdict``, then everything."""
        return {"format": FORMAT, "ok": self.ok, "verdict": self.verdict(), **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write the answer as JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")


def written_at(run: Run) -> Iterator[str]:
    """The lines that write the input in which `run` differs, each as ``written at FILE:LINE ...``."""
    for line in run.lines[:SHOWN_LINES]:
        yield f"written at {line}"
    if len(run.lines) > SHOWN_LINES:
        yield f"and at {_counted(len(run.lines) - SHOWN_LINES, 'more line')}"


def _agreed(count: int) -> str:
    return "1 run agrees" if count == 1 else f"{count} runs agree"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
