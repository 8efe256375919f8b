"""A `Report` for people at a terminal: the programs, what became of each write, and each copy explained.

Reads `reink.report` only, never torch, so a saved report opens at once and anywhere. Text from a report is
the user's: it is shown as it stands, never read as markup, and its control characters are made visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from reink.report import Decision, Report, Snapshot, Source, Verdict, amount
from reink.show.words import MEANING

LONGEST_PROGRAM = 200
MOST_FREE_ROWS = 40
WIDE = 110

_COLOURS = (
    (r"(?m)#.*$", "dim"),
    (r"\b[A-Za-z]\w*_(?=[.(])(?:\.\w+)?", "yellow"),
    (r"\b(?:return|epilogue|becomes)\b", "bold"),
    (r"(?m)^\s*[A-Za-z_]\w*(?=\s*=)", "cyan"),
    (r"\b[a-z]+\d*\[[^\]\n]*\]", "green"),
)

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def print_report(report: Report, console: Console | None = None, *, programs: bool = True) -> None:
    """Print `report` to `console`, by default standard output; ``programs=False`` leaves the programs out."""
    (console or Console()).print(render(report, programs=programs))


def render(report: Report, *, programs: bool = True) -> RenderableType:
    """`report` as something that a rich console prints at its own width."""
    return _View(report, programs)


@dataclass(frozen=True, slots=True)
class _View:
    report: Report
    programs: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report = self.report
        yield _text(report.headline(), "bold")
        if report.fallback:
            yield _text(f"fallback: another program runs than the optimised one. {report.fallback}", "bold red")
        if self.programs:
            for title, snapshot in _chosen(report):
                yield Text()
                yield _program(title, snapshot)
        yield from _decisions(report, wide=options.max_width >= WIDE)
        for decision in report.copies:
            yield Text()
            yield _copy(decision)
        if report.donations:
            yield Text()
            yield from (_text(str(donation)) for donation in report.donations)
        if report.verdicts:
            yield Text()
            yield from map(_verdict, report.verdicts)
        if report.seconds:
            yield Text()
            yield _seconds(report)


def _text(text: str, style: str = "") -> Text:
    """`text` to the letter, whatever brackets it holds; control characters are written out."""
    return Text(text.translate(_CONTROL), style)


# programs


def _chosen(report: Report) -> Iterator[tuple[str, Snapshot]]:
    """The programs worth reading, in order: as written, as pure values, as it runs."""
    last = {snapshot.form: snapshot for snapshot in report.snapshots}
    pure = report.snapshot("functionalize") or last.get("functional")
    runs = "what code is generated for" if report.codegen == "inductor" else "what runs"
    rows = (
        ("captured: the program as you wrote it", last.get("mutable")),
        ("functionalized: the same without a write", pure),
        (f"lowered: {runs}", last.get("lowered") or last.get("inplace")),
    )
    for title, snapshot in rows:
        if snapshot:
            yield title, snapshot


def _program(title: str, snapshot: Snapshot) -> Panel:
    lines = snapshot.text.expandtabs(4).rstrip().splitlines()
    body = _coloured("\n".join(lines))
    if len(lines) > LONGEST_PROGRAM:
        half = LONGEST_PROGRAM // 2
        hidden = f"\n... {len(lines) - 2 * half} lines hidden; the JSON report has them all ...\n"
        body = Text("\n").join(
            [_coloured("\n".join(lines[:half])), Text(hidden, "dim"), _coloured("\n".join(lines[-half:]))]
        )
    heading = Text.assemble((title, "bold"), (f" - {_count(snapshot.nodes, 'node')}", "dim"))
    return Panel(body, title=heading, title_align="left", border_style="dim", box=box.ROUNDED)


def _coloured(program: str) -> Text:
    text = _text(program)
    text.overflow = "fold"
    for pattern, style in _COLOURS:
        text.highlight_regex(pattern, style)
    return text


# decisions


def _decisions(report: Report, *, wide: bool) -> Iterator[RenderableType]:
    if not report.decisions:
        yield Text("\nNothing is copied. This program writes no tensor.", "green")
        return
    shown, hidden = _shown(report)
    yield _table(shown, wide=wide)
    if hidden:
        yield Text(f"  ... and {_count(hidden, 'write')} more without a copy; the JSON report has them all", "dim")
    outcomes = {decision.outcome for decision in shown}
    yield _rows((name, _text(meaning, "dim")) for name, meaning in MEANING.items() if name in outcomes)
    yield Text()
    yield _totals(report)


def _shown(report: Report) -> tuple[list[Decision], int]:
    """Every copy and the first writes that are free, in program order; and how many are left out."""
    shown: list[Decision] = []
    free = 0
    for decision in report.decisions:
        free += not _is_copy(decision)
        if _is_copy(decision) or free <= MOST_FREE_ROWS:
            shown.append(decision)
    return shown, len(report.decisions) - len(shown)


def _is_copy(decision: Decision) -> bool:
    return decision.bytes != 0


def _table(decisions: Iterable[Decision], *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right", no_wrap=True)
    for heading in ("write", "source line", "outcome"):
        table.add_column(heading, overflow="fold")
    table.add_column("copied", justify="right", overflow="fold")
    table.add_column("read in the way", overflow="fold")
    if wide:
        table.add_column("what to change", overflow="fold")
    for decision in decisions:
        table.add_row(*_cells(decision, wide=wide))
    return table


def _cells(decision: Decision, *, wide: bool) -> list[Text]:
    style, quiet = ("yellow", "yellow") if _is_copy(decision) else ("green", "dim")
    room = 20 if wide else 16
    conflict = decision.conflict
    read = f"{conflict.read} {_place(conflict.read_source)}" if conflict else ""
    cells = [
        Text(str(decision.id)),
        _text(_write(decision, room)),
        _located(_place(decision.source), decision.source, room),
        _text(decision.outcome, style),
        _text(_size(decision), quiet),
        _located(read, conflict.read_source if conflict else None, room),
    ]
    return [*cells, _text(decision.do)] if wide else cells


def _write(decision: Decision, room: int) -> str:
    """``operator(argument)``, the argument on its own line if both together are too long to read."""
    operator = decision.operator.removeprefix("aten.").removesuffix(".default")
    argument = f"({decision.argument})"
    return f"{operator}\n{argument}" if len(operator + argument) > room else operator + argument


def _located(head: str, source: Source | None, room: int) -> Text:
    """`head`, and under it in dim the start of the program's line."""
    text = _text(head.rstrip())
    if source and source.text:
        line = source.text if len(source.text) <= room else source.text[: room - 3] + "..."
        text.append_text(_text(f"\n{line}", "dim"))
    return text


def _size(decision: Decision) -> str:
    return decision.size if decision.bytes is None else amount(decision.bytes)


def _place(source: Source | None) -> str:
    return source.place if source else ""


def _totals(report: Report) -> RenderableType:
    symbolic = sum(decision.bytes is None for decision in report.decisions)
    copied = amount(report.bytes_cloned)
    if symbolic:
        copied += f", and {_count(symbolic, 'copy', 'copies')} whose size is known only when it runs"
    if not report.copies:
        count = len(report.decisions)
        who = "The one write happens" if count == 1 else f"All {count} writes happen"
        headline = Text(f"Nothing is copied. {who} in place.", "bold green")
    else:
        headline = Text(f"{_count(len(report.copies), 'copy remains', 'copies remain')}:", "bold yellow")
    avoided = f"{amount(report.bytes_avoided)} (what a clone for every write would copy beyond that)"
    rows = [("copied", Text(copied)), *_bound(report), ("avoided", Text(avoided))]
    return Group(_rows(rows), Text(), headline)


def _bound(report: Report) -> Iterator[tuple[str, Text]]:
    """How far the copies are from the fewest that this order of the program allows, if there are any."""
    bound = report.lower_bound
    if bound is None or not report.bytes_cloned:
        return
    above = report.bytes_cloned - bound
    reached = "reached" if above <= 0 else f"{amount(above)} ({above / report.bytes_cloned:.0%}) less than is copied"
    yield "lower bound", Text(f"{amount(bound)}, {reached}: what saving or moving writes must copy in this order")


# the copies that are left


def _copy(decision: Decision) -> RenderableType:
    """A paragraph on one copy: how much, where, which read needs what, what would destroy it, what to do."""
    title = Text.assemble(
        (f"#{decision.id} ", "bold"),
        _text(f"{_size(decision)} copied", "bold yellow"),
        _text(f" for the write {decision.operator}({decision.argument})", "bold"),
        _text(f": {decision.outcome}"),
    )
    rows = [("at", _text(str(decision.source)))] if decision.source else []
    conflict = decision.conflict
    if conflict:
        rows.append(("read", _node(conflict.read, conflict.read_source)))
        rows.append(("needs", _text(conflict.definition)))
        rows.append(("but", _node(conflict.write, conflict.write_source, " would overwrite it first")))
    if decision.reason:
        rows.append(("why", _text(decision.reason)))
    if decision.do:
        rows.append(("do", _text(decision.do, "bold")))
    return Group(title, _rows(rows))


def _node(name: str, source: Source | None, then: str = "") -> Text:
    text = _text(name + then)
    if source:
        text.append_text(_text(f"   at {source}", "dim"))
    return text


# the rest


def _verdict(verdict: Verdict) -> RenderableType:
    style = ("green" if verdict.decided else "yellow") if verdict.ok else "bold red"
    head = Text.assemble("check ", _text(verdict.check), ": ", (verdict.word, style))
    return Group(head, *(Padding(_text(line), (0, 0, 0, 4)) for line in verdict.details))


def _seconds(report: Report) -> Text:
    steps = ", ".join(f"{step} {seconds:.3f}" for step, seconds in report.seconds.items())
    return _text(f"seconds: {steps}; total {sum(report.seconds.values()):.3f}", "dim")


def _rows(rows: Iterable[tuple[str, Text]]) -> Table:
    """Labels and texts, the texts aligned and wrapped under themselves."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(f"  {label}", "dim"), text)
    return table


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
