"""``reink fuzz``: random programs against eager PyTorch, faults made small and saved."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from reink.cli.answers import check_file, console, others_print_to_stderr, save
from reink.cli.mistakes import mistakes, said
from reink.cli.parameters import Codegen, JsonFile, check_codegen
from reink.errors import ReinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reink.fuzz.campaign import Campaign

EXAMPLE = "Examples: reink fuzz; reink fuzz --against reink --minutes 5; reink fuzz --against aot_eager --programs 500"

AGAINST = ("passes", "reink", "in_inductor", "aot_eager", "inductor")


@mistakes()
def fuzz(
    against: Annotated[
        str,
        typer.Option(
            metavar="|".join(AGAINST),
            help="reink's passes without Dynamo; its back end; stock PyTorch repaired by reink; stock PyTorch.",
        ),
    ] = "passes",
    programs: Annotated[int, typer.Option(min=1, help="How many programs.")] = 1000,
    minutes: Annotated[float, typer.Option(min=0, help="Run this long instead, however many that are.")] = 0,
    seed: Annotated[int, typer.Option(help="Which programs; the same seed gives the same ones.")] = 0,
    start: Annotated[int, typer.Option(min=0, help="The number of the first program.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0 for one a core.")] = 0,
    inject: Annotated[
        int, typer.Option(min=0, help="Faults put into each right program, for the ownership check to find.")
    ] = 0,
    shrink: Annotated[int, typer.Option(min=0, help="How many faults to make small and save.")] = 60,
    folder: Annotated[Path, typer.Option("--save", metavar="FOLDER", help="Where faults are saved.")] = Path("faults"),
    codegen: Codegen = "eager",
    json_file: JsonFile = "",
) -> None:
    """Run random programs that write tensors, and compare with eager all that a caller can see.

    Each fault is made small and saved as a file that runs by itself. Exit status 1 if reink has any.
    """
    if against not in AGAINST:
        raise ReinkError("unknown-option", f"no back end {against!r}", do=f"use one of {', '.join(AGAINST)}")
    if inject and against != "passes":
        raise ReinkError("unknown-option", "--inject needs --against passes", why="a fault goes into a lowered program")
    check_codegen(codegen)
    if codegen != "eager" and against != "reink":
        raise ReinkError("unknown-option", f"--codegen {codegen} needs --against reink", why="nothing else asks for it")
    check_file(json_file)
    count = jobs or os.cpu_count() or 1
    given = {"seed": seed, "programs": programs, "start": start, "minutes": minutes, "jobs": count, "shrunk": shrink}
    campaign = _run(against, inject, codegen, given)
    saved = _save_faults(campaign, folder)
    if json_file == "-":
        typer.echo(json.dumps(to_json(campaign), indent=1))
    else:
        print_campaign(campaign, saved, console())
    save(lambda file: _write_json(campaign, file), json_file)
    if campaign.fault_count and against in ("passes", "reink", "in_inductor"):
        raise typer.Exit(1)


def _run(against: str, inject: int, codegen: str, given: dict[str, Any]) -> Campaign:
    from reink.fuzz.campaign import run_campaign
    from reink.fuzz.run import Settings

    total = None if given["minutes"] else given["programs"]
    with others_print_to_stderr(), _bar(against, total) as show:
        return run_campaign(Settings(against, inject, codegen), progress=show, **given)


@contextmanager
def _bar(against: str, total: int | None) -> Iterator[Callable[[Campaign], None]]:
    """A progress bar with the faults by kind, on standard error, if a person watches."""
    shown = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, TextColumn("{task.fields[faults]}"), console=shown, disable=not shown.is_terminal) as bar:
        task = bar.add_task(against, total=total, faults="")

        def show(campaign: Campaign) -> None:
            faults = ", ".join(f"{n} {kind}" for kind, n in sorted(_faults(campaign).items())) or "no fault"
            bar.update(task, completed=campaign.programs, faults=faults)

        yield show


def _faults(campaign: Campaign) -> Counter[str]:
    from reink.fuzz.run import HARMLESS

    return Counter({k: n for k, n in campaign.by_kind().items() if k not in HARMLESS})


def _save_faults(campaign: Campaign, folder: Path) -> list[Path]:
    if not campaign.faults:
        return []
    try:
        return campaign.save(folder)
    except OSError as error:
        raise ReinkError("unknown-option", f"cannot write into {folder}", why=said(error)) from error


def print_campaign(campaign: Campaign, saved: list[Path], screen: Console) -> None:
    """The counts, the groups of faults with their smallest program, and the verdict."""
    counts = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("programs", "outcome", "cause"):
        counts.add_column(heading, justify="right" if heading == "programs" else "left", overflow="fold")
    for (kind, cause, stock), count in campaign.counts.most_common():
        note = f"{cause} (answered by the stock pipeline)" if stock else cause
        counts.add_row(str(count), Text(kind), Text(note.strip()))
    screen.print(counts)
    paths = dict(zip((f.number for f in campaign.faults), saved, strict=True))
    for (kind, cause, rules), faults in campaign.groups():
        least = min(faults, key=lambda f: len(f.program.statements))
        screen.print(Text(f"{len(faults)} x {kind} {cause}".rstrip() + f": {', '.join(rules)}", style="bold"))
        screen.print(Text(least.program.text().rstrip()))
        screen.print(Text(_short(least.outcome.detail), style="dim"))
        screen.print(Text(f"  saved as {paths[least.number]}\n"))
    if campaign.undecided:
        screen.print(Text(undecided_line(campaign)))
    if campaign.settings.inject:
        screen.print(Text(injected_line(campaign)))
    screen.print(Text(verdict_line(campaign)))


def _short(detail: str) -> str:
    lines = detail.strip().splitlines()
    return "\n".join(lines if len(lines) <= 6 else [*lines[:2], "  ...", *lines[-3:]])


def undecided_line(campaign: Campaign) -> str:
    """How many value proofs were not decided, and the commonest reason."""
    (reason, count), total = campaign.undecided.most_common(1)[0], campaign.undecided.total()
    return f"values not decided in {total} programs, in {count} of them: {reason}"


def injected_line(campaign: Campaign) -> str:
    """How many of the injected faults that showed were caught."""
    tally = campaign.tally
    shown = tally.caught + len(tally.escaped)
    share = f" ({100 * tally.caught / shown:.4g} %)" if shown else ""
    return (
        f"injected faults: {shown} showed in a result, {tally.caught} of them caught before the program ran{share}, "
        f"{tally.by_ownership} by the ownership check and {tally.by_proof} by the value proof; "
        f"{tally.hidden} changed nothing"
    )


def verdict_line(campaign: Campaign) -> str:
    """The figures in one line."""
    count, faults = campaign.programs, campaign.fault_count
    each = 1000 * campaign.seconds / count if count else 0.0
    found = "no fault" if not faults else "1 fault" if faults == 1 else f"{faults} faults"
    return (
        f"{found} in {count} programs of seed {campaign.seed} against {campaign.settings.against}, "
        f"{campaign.seconds:.0f} s ({each:.0f} ms a program){'; stopped before the end' if campaign.stopped else ''}"
    )


def to_json(campaign: Campaign) -> dict[str, Any]:
    """The figures as plain data."""
    counts = [
        {"kind": kind, "cause": cause, "stock": stock, "programs": n}
        for (kind, cause, stock), n in campaign.counts.most_common()
    ]
    faults = [
        {"number": f.number, "kind": f.outcome.kind, "cause": f.outcome.cause, "program": f.program.text()}
        for f in campaign.faults
    ]
    tally = campaign.tally
    return {
        "against": campaign.settings.against,
        "seed": campaign.seed,
        "programs": campaign.programs,
        "seconds": round(campaign.seconds, 1),
        "counts": counts,
        "faults": faults,
        "injected": {
            "caught": tally.caught,
            "by_ownership": tally.by_ownership,
            "by_proof": tally.by_proof,
            "escaped": len(tally.escaped),
            "hidden": tally.hidden,
        },
        "undecided": dict(campaign.undecided),
    }


def _write_json(campaign: Campaign, file: str) -> None:
    Path(file).write_text(json.dumps(to_json(campaign), indent=1), encoding="utf-8")
