"""The command line: ``reink explain``, ``verify``, ``reinplace``, ``fuzz``, ``show``, ``ops``.

Exit status: 0 fine, 1 the answer is no, 2 the user's mistake. What a command answers goes to standard
output; progress, mistakes and whatever the user's program prints go to standard error.

One module is one command; each imports what it needs itself: ``show`` and ``--help`` must not wait for torch.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from reink.cli import explain, fuzz, ops, reinplace, show, verify

__all__ = ["app", "main"]

app = typer.Typer(
    name="reink",
    help="Make a PyTorch program that writes its tensors pure, and back again; explain each copy left.",
    epilog="Example: reink explain model.py:example",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The entry point of the ``reink`` command."""
    app(prog_name="reink")


def _print_version(asked: bool) -> None:
    if not asked:
        return
    try:
        version = importlib.metadata.version("reink")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed, run from its source)"
    typer.echo(f"reink {version}")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options that belong to no command."""


# the commands, in the order in which the help lists them
app.command(epilog=explain.EXAMPLE)(explain.explain)
app.command(epilog=verify.EXAMPLE)(verify.verify)
app.command(epilog=reinplace.EXAMPLE)(reinplace.reinplace)
app.command(epilog=fuzz.EXAMPLE)(fuzz.fuzz)
app.command(epilog=show.EXAMPLE)(show.show)
app.command(epilog=ops.EXAMPLE)(ops.ops)
