"""``reink explain``: compile a program and say what became of each of its writes."""

from __future__ import annotations

import json
from typing import Any

import typer

from reink.cli.answers import check_apart, check_file, check_page, console, others_print_to_stderr, progress, save
from reink.cli.mistakes import coded, mistakes
from reink.cli.parameters import (
    Codegen,
    HtmlFile,
    JsonFile,
    Load,
    Programs,
    Strategy,
    Strict,
    Target,
    check_codegen,
    check_strategy,
)
from reink.cli.target import Program, files_of, load_program
from reink.errors import ReinkError
from reink.report import Report
from reink.show.terminal import print_report

EXAMPLE = "Example: reink explain model.py:example --strict --html report.html"


@mistakes()
def explain(
    target: Target,
    json_file: JsonFile = "",
    html_file: HtmlFile = "",
    strategy: Strategy = "v2",
    codegen: Codegen = "inductor",
    strict: Strict = False,
    programs: Programs = True,
    load: Load = "",
) -> None:
    """Compile a program and say what became of each of its writes: in place, or copied and why."""
    check_strategy(strategy)
    check_codegen(codegen)
    check_file(json_file)
    check_page(html_file)
    check_apart(html_file, [json_file], "the file of --json too")
    with others_print_to_stderr():
        program = load_program(target, load)
        for file in (json_file, html_file):
            check_apart(file, files_of(program), "the program's own file")
        with progress(f"compiling {target}"):
            report = _compile(program, strategy, codegen)
    answer(report, json_file, html_file, strict=strict, programs=programs)


def _explain(fn: Any, args: tuple[Any, ...] | None, kwargs: dict[str, Any] | None, **options: str) -> Report:
    """`reink.explain`, imported when it is needed; tests put their own in its place."""
    import reink

    report: Report = reink.explain(fn, args, kwargs, **options)
    return report


def _compile(program: Program, strategy: str, codegen: str) -> Report:
    with coded(program.target, program.fn, "compiled", "explain"):
        if program.exported is not None:  # it runs without a code generator
            return _explain(program.exported, None, None, strategy=strategy)
        return _explain(program.fn, program.args, program.kwargs, strategy=strategy, codegen=codegen)


def answer(report: Report, json_file: str, html_file: str, *, strict: bool, programs: bool) -> None:
    """Print `report` and save it where that was asked for. Raises as `refuse_copies` if it has to be free of copies."""
    if json_file == "-":
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        print_report(report, console(), programs=programs)
    save(report.save, json_file, f"; reink show {json_file} prints it again")
    save(report.save_html, html_file, "; open it in a browser")
    if strict:
        refuse_copies(report)


def refuse_copies(report: Report) -> None:
    """End with status 1, and a message that names the first, if a copy is left."""
    if report.copies:
        typer.echo(str(_copies_left(report)), err=True)
        raise typer.Exit(1)


def _copies_left(report: Report) -> ReinkError:
    count, first = len(report.copies), report.copies[0]
    left = "1 copy is" if count == 1 else f"{count} copies are"
    return ReinkError(
        "strict-copy",
        f"{left} left in {report.name}, and --strict allows none",
        where=str(first.source or ""),
        why=first.reason,
        do=first.do,
    )
