"""``reink reinplace``: a saved program made into one that copies nothing needless."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reink.cli.answers import check_apart, check_file, check_page, others_print_to_stderr, progress, save
from reink.cli.explain import answer
from reink.cli.mistakes import coded, mistakes
from reink.cli.parameters import HtmlFile, JsonFile, Load, Strategy, Strict, check_strategy
from reink.cli.target import SAVED, load_code, load_saved
from reink.errors import ReinkError
from reink.files import replacing

if TYPE_CHECKING:
    from reink.report import Report

EXAMPLE = "Example: reink reinplace model.pt2 -o fast.pt2 --strict"


@mistakes()
def reinplace(
    saved: Annotated[
        Path, typer.Argument(metavar="IN.pt2", help="A program that torch.export.save wrote.", show_default=False)
    ],
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="OUT.pt2", help="Where to save the new program.", show_default=False),
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="OUT.pt2 may be IN.pt2 itself.")] = False,
    json_file: JsonFile = "",
    html_file: HtmlFile = "",
    strategy: Strategy = "v2",
    strict: Strict = False,
    load: Load = "",
) -> None:
    """Give the writes of a saved program their memory back, and save that: it runs without reink.

    With --strict nothing is saved if a copy is left.
    """
    check_strategy(strategy)
    _check_output(output, saved, overwrite)
    check_file(json_file)
    check_page(html_file)
    check_apart(html_file, [json_file], "the file of --json too")
    for file in (json_file, html_file):
        check_apart(file, [saved], "the program's own file")
        check_apart(file, [output], "the file of --output too")
    with others_print_to_stderr():
        if load:
            load_code(load)
        exported = load_saved(saved)
        with progress(f"re-inplacing {saved}"):
            made, report = _reinplaced(saved, exported, strategy)
    answer(report, json_file, html_file, strict=strict, programs=False)
    save(lambda file: _save(made, file), output)


def _check_output(output: str, saved: Path, overwrite: bool) -> None:
    if not output.endswith(SAVED):
        raise ReinkError("unknown-option", f"cannot save a program as {output!r}", do="give a name that ends in .pt2")
    check_file(output)
    if not overwrite:
        check_apart(output, [saved], "the program itself")


def _reinplaced(saved: Path, exported: Any, strategy: str) -> tuple[Any, Report]:
    import reink

    with coded(str(saved), exported.module, "re-inplaced", "reinplace"):
        made: tuple[Any, Report] = reink.reinplace_exported(exported, strategy=strategy)
    return made


def _save(made: Any, file: str) -> None:
    """Save the program; ``torch.export.save`` prints what it thinks of it."""
    import torch

    with others_print_to_stderr(), replacing(file) as beside:
        torch.export.save(made, beside)
