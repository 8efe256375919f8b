"""``reink ops``: the facts that reink has of operators."""

from __future__ import annotations

import fnmatch
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from reink.cli.answers import console
from reink.cli.mistakes import mistakes, near
from reink.errors import ReinkError

EXAMPLE = "Examples: reink ops; reink ops add_; reink ops 'aten.*_scatter*'"
PIPE_WIDTH = 200


@mistakes()
def ops(
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="Part of a name, or a pattern with * and ?.", show_default=False),
    ] = "",
) -> None:
    """List the facts reink knows of operators: what each writes, and its twin with or without a write."""
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
