"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from reink.errors import ReinkError

STRATEGIES = ("v1", "v2")
CODEGENS = ("inductor", "eager")

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="FILE.py:NAME or MODULE:NAME, where NAME() returns (fn, args) or (fn, args, kwargs); or FILE.pt2.",
        show_default=False,
    ),
]
Load = Annotated[str, typer.Option("--load", metavar="FILE|MODULE", help="Import this first; it registers operators.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 if any copy is left.")]
JsonFile = Annotated[
    str,
    typer.Option("--json", metavar="FILE", help="Save the report too; - writes only it, to standard output."),
]
HtmlFile = Annotated[
    str, typer.Option("--html", metavar="FILE", help="Save the report as a page to look at in a browser.")
]
Strategy = Annotated[
    str, typer.Option(metavar="v1|v2", help="Describe written operands by argument (v1) or by base (v2).")
]
Codegen = Annotated[
    str,
    typer.Option(metavar="inductor|eager", help="Code that Inductor generates, or PyTorch's own kernels."),
]
Programs = Annotated[
    bool, typer.Option("--programs/--no-programs", help="Print the program after the steps, or leave it out.")
]


def check_codegen(codegen: str) -> None:
    """Refuse a code generator that there is not. Raises ReinkError ``unknown-option``."""
    if codegen not in CODEGENS:
        raise ReinkError("unknown-option", f"no code generator {codegen!r}", do=f"use one of {', '.join(CODEGENS)}")


def check_strategy(strategy: str) -> None:
    """Refuse a strategy that there is not. Raises ReinkError ``unknown-option``."""
    if strategy not in STRATEGIES:
        raise ReinkError("unknown-option", f"no strategy {strategy!r}", do=f"use one of {', '.join(STRATEGIES)}")
