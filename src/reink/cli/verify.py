"""``reink verify``: does reink compute what eager computes, for the user's own program?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reink.cli.answers import check_file, console, others_print_to_stderr, progress, save
from reink.cli.mistakes import coded, mistakes
from reink.cli.parameters import Codegen, JsonFile, Load, Strategy, Target, check_codegen, check_strategy
from reink.cli.target import Program, load_program
from reink.errors import ReinkError

if TYPE_CHECKING:
    from reink.verification.answer import Run, Verification

EXAMPLE = "Example: reink verify model.py:example --strategy v1 --json answer.json"
COLOURS = {"ok": "green", "differs": "bold red", "refused": "red", "failed": "bold red", "skipped": "dim"}
# Control characters of the user's text, written out.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@mistakes()
def verify(
    target: Target,
    json_file: JsonFile = "",
    strategy: Strategy = "v2",
    codegen: Codegen = "eager",
    grad_mode: Annotated[
        str, typer.Option(metavar="MODE", help="How it is called: no_grad, grad or inference.")
    ] = "no_grad",
    pairs: Annotated[int, typer.Option(metavar="N", help="Let at most N pairs of inputs share a storage.")] = 4,
    load: Load = "",
) -> None:
    """Run a program in eager and compiled, on its inputs and on derived ones, and say whether they agree.

    Exit status 1 if they differ, or if reink did not compile and check all that ran.
    """
    check_strategy(strategy)
    check_codegen(codegen)
    check_file(json_file)
    options: dict[str, Any] = {"strategy": strategy, "codegen": codegen, "grad_mode": grad_mode, "most_pairs": pairs}
    with others_print_to_stderr():
        program = load_program(target, load)
        with progress(f"verifying {target}") as tell:
            answer = _verified(program, options, lambda run: tell(f"verifying {target}: {run}"))
    if json_file == "-":
        typer.echo(json.dumps(answer.to_json(), indent=1))
    else:
        _print(answer, console())
    save(answer.save, json_file)
    if not answer:
        raise typer.Exit(1)


def _verify(program: Program, options: dict[str, Any], tell: Callable[[str], None]) -> Verification:
    """`reink.verify`, imported when it is needed; tests put their own in its place."""
    import reink

    fn, args, kwargs = program.fn, program.args, program.kwargs
    if args is None:
        raise ReinkError(
            "bad-target",
            f"{program.target} has no example inputs to run on",
            why="it was saved without those that it was exported with",
            do="save the program that torch.export.export returns, or set its example_inputs",
        )
    answer: Verification = reink.verify(fn, args, kwargs, tell=tell, **options)
    return answer


def _verified(program: Program, options: dict[str, Any], tell: Callable[[str], None]) -> Verification:
    with coded(program.target, program.fn, "verified", "verify"):
        return _verify(program, options, tell)


# the answer


def _print(answer: Verification, shown: Console) -> None:
    """A table of the runs, the checks, what was not checked, and the verdict in one line."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("inputs", "outcome", "why"):
        table.add_column(heading, overflow="fold")
    for run in answer.runs:
        table.add_row(_text(run.name), Text(run.outcome, COLOURS[run.outcome]), _why(run))
    shown.print(Text(f"{answer.name}, strategy {answer.strategy}, {answer.grad_mode}", "dim"))
    shown.print(table)
    for verdict in answer.checks():
        style = ("green" if verdict.decided else "yellow") if verdict.ok else "bold red"
        shown.print(Text.assemble("check ", _text(verdict.check), ": ", (verdict.word, style)))
        for line in verdict.details:
            shown.print(_text(f"    {line}"))
    for audit in answer.audits:
        shown.print(Text.assemble("operator ", _text(audit.verdict(), "" if audit else "bold red")))
    for unchecked in answer.unchecked:
        shown.print(_text(f"not checked: {unchecked}", "yellow"))
    shown.print()
    shown.print(_text(answer.verdict(), "bold green" if answer else "bold red"))


def _why(run: Run) -> Text:
    from reink.verification.answer import written_at

    return _text("\n".join([run.why, *written_at(run)]), "" if run.outcome != "skipped" else "dim")


def _text(text: str, style: str = "") -> Text:
    """`text` to the letter, whatever brackets it holds."""
    return Text(text.translate(_CONTROL), style)
