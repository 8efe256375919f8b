"""``reink show``: a saved report, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reink.cli.answers import check_apart, check_page, console, save
from reink.cli.mistakes import mistakes, no_file, said
from reink.cli.parameters import HtmlFile, Programs
from reink.errors import ReinkError
from reink.report import Report
from reink.show.terminal import print_report

EXAMPLE = "Example: reink explain model.py:example --json report.json, later: reink show report.json"


@mistakes()
def show(
    report: Annotated[
        Path,
        typer.Argument(metavar="REPORT.json", help="A file that --json or Report.save wrote.", show_default=False),
    ],
    html_file: HtmlFile = "",
    programs: Programs = True,
) -> None:
    """Print a saved report or draw it as a page, without torch and without compiling again."""
    check_page(html_file)
    check_apart(html_file, [report], "the report itself")
    if not report.exists():
        raise no_file(report, ".json")
    try:
        loaded = Report.load(report)
        if html_file:
            save(loaded.save_html, html_file, "; open it in a browser")
        else:
            print_report(loaded, console(), programs=programs)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        do = "give a file that Report.save or reink explain --json wrote"
        raise ReinkError(
            "not-a-report", f"{report} holds other values than a report", why=said(error), do=do
        ) from error
