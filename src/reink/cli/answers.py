"""Where answers go: standard output for them alone, a file for `--json` and `--html`, standard error for all else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from reink.cli.mistakes import said
from reink.errors import ReinkError


def console() -> Console:
    """Standard output, which never fails on a letter that its encoding lacks."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure:
        reconfigure(errors="backslashreplace")
    return Console()


def check_file(file: str) -> None:
    """Refuse, before any work is done, a file of `--json` or `--html` that is a folder or has none."""
    if file in ("", "-"):
        return
    if Path(file).is_dir():
        raise ReinkError("unknown-option", f"{file} is a folder", do="give the name of a file to save in")
    if not Path(file).parent.is_dir():
        raise ReinkError("not-found", f"no folder {Path(file).parent} to save {file} in")


def check_page(file: str) -> None:
    """Refuse a file of `--html` that cannot be one: a page is not printed."""
    if file == "-":
        raise ReinkError("unknown-option", "--html needs a file", do="give a name, such as --html report.html")
    check_file(file)


def check_apart(file: str, others: Iterable[str | Path], what: str) -> None:
    """Refuse to save in `file` if it is one of the `others`, which are `what`, by whatever path."""
    if file in ("", "-"):
        return
    for other in others:
        if str(other) not in ("", "-") and _is_same(Path(file), Path(other)):
            raise ReinkError("unknown-option", f"{file} is {what}", do="give another name to save in")


def _is_same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other) and not one.is_char_device()
    return one.resolve() == other.resolve()


def save(write: Callable[[str], None], file: str, then: str = "") -> None:
    """Let `write` save into `file` and say so, with what can be done `then`; ``-`` and nothing are no files."""
    if file in ("", "-"):
        return
    try:
        write(file)
    except OSError as error:
        raise ReinkError("unknown-option", f"cannot write {file}", why=said(error)) from error
    typer.echo(f"saved {file}{then}", err=True)


@contextlib.contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error if a person watches it; gives a function that changes its text."""
    shown = Console(stderr=True)
    if not shown.is_terminal:
        yield lambda text: None
        return
    with shown.status(Text(doing)) as status:
        yield lambda text: status.update(Text(text))


@contextlib.contextmanager
def others_print_to_stderr() -> Iterator[None]:
    """Keep standard output free for the answer, also from the prints of C++ operators.

    Those go past `sys.stdout` to file descriptor 1 and may wait in a buffer of the C library.
    """
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed: nothing can be printed there
        kept = -1
    try:
        if kept >= 0:
            os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept >= 0:
            with contextlib.suppress(OSError, TypeError, AttributeError):
                ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
