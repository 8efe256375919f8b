"""``reink ops``: the facts that reink has of operators."""

from __future__ import annotations

import fnmatch
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from reink.cli.answers import console, others_print_to_stderr
from reink.cli.mistakes import mistakes, near
from reink.cli.parameters import Load
from reink.cli.target import load_code
from reink.errors import ReinkError

EXAMPLE = "Examples: reink ops; reink ops 'aten.*_scatter*'; reink ops --audit mylib::scale_ --load kernels.py"
PIPE_WIDTH = 200


@mistakes()
def ops(
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="Part of a name, or a pattern with * and ?.", show_default=False),
    ] = "",
    audit: Annotated[
        str, typer.Option(metavar="OP", help="Run this operator on watched memory: does it keep to its schema?")
    ] = "",
    load: Load = "",
) -> None:
    """List the facts reink knows of operators: what each writes, and its twin with or without a write.

    Exit status 1 if the operator of --audit does not keep to its schema.
    """
    if load:
        with others_print_to_stderr():
            load_code(load)
    if audit:
        _audit(audit)
    else:
        _list(pattern)


def _audit(name: str) -> None:
    """Run the operator of this name on arguments made from its schema, and say what it did."""
    from reink.core.torch_internals import operator_of
    from reink.verification.audit import audit

    op = operator_of(name)
    if op is None:
        raise ReinkError(
            "not-found",
            f"no operator {name}",
            why="it is not registered, or its name is not complete",
            do="write NAMESPACE::NAME or NAMESPACE::NAME.OVERLOAD, and --load the file that registers it",
        )
    with others_print_to_stderr():
        answer = audit(op)
    shown = console()
    lines = str(answer).splitlines()
    for line in lines[:-1]:
        shown.print(Text(line, "bold red" if line.strip() in answer.broken else ""), soft_wrap=True)
    shown.print(Text(lines[-1].strip(), "bold green" if answer else "bold red"), soft_wrap=True)
    if not answer:
        raise typer.Exit(1)


def _list(pattern: str) -> None:
    from reink.core.opinfo import known_operators

    rows = known_operators()
    names = [row.name for row in rows]
    glob = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = [row for row in rows if fnmatch.fnmatchcase(row.name, glob)]
    if not found:
        raise ReinkError(
            "not-found",
            f"no operator that reink has facts of matches {pattern!r}",
            why="an operator without facts of its own reads and writes what its schema allows",
            do=near(pattern, names) or "run reink ops for the whole list",
        )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"{len(found)} of {len(rows)} operators")
    for heading in ("operator", "kind", "writes", "twin", "note"):
        table.add_column(heading, overflow="fold")
    for row in found:
        table.add_row(*(Text(cell) for cell in (row.name, row.kind, row.writes, row.twin, row.note)))
    shown = console()
    if not shown.is_terminal:  # a name stays on one line for grep
        shown.width = max(shown.width, PIPE_WIDTH)
    shown.print(table)
