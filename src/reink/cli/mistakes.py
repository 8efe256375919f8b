"""What goes wrong through the user's doing: said in a coded error, with the line and the nearest right name."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import typer

from reink.errors import ReinkError

log = logging.getLogger(__name__)


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """End with status 2 and the message of a ReinkError; REINK_TRACEBACK=1 shows where it was raised."""
    try:
        yield
    except ReinkError as error:
        if os.environ.get("REINK_TRACEBACK"):
            traceback.print_exc()
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@contextlib.contextmanager
def coded(target: str, fn: Callable[..., Any], done: str, command: str) -> Iterator[None]:
    """Raise whatever the program of `target` raises inside as a ReinkError: it cannot be `done`."""
    try:
        yield
    except ReinkError:
        raise
    except Exception as error:
        log.debug("%s: %s failed", target, command, exc_info=True)
        raise ReinkError(
            "not-a-tensor-program",
            f"the program of {target} cannot be {done}",
            where=place(error, file_of(fn)),
            why=said(error),
            do="run it without reink first; if it works there, this is a bug of reink: "
            f"report it with what REINK_TRACEBACK=1 reink {command} prints",
        ) from error


def refuse(what: str, error: BaseException) -> NoReturn:
    """The user's own code failed: say with what and on which of its lines."""
    raise ReinkError("bad-target", what, where=place(error), why=said(error)) from error


def said(error: BaseException) -> str:
    """The kind of an error and its message."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def place(error: BaseException, file: str = "") -> str:
    """The last line of `file` that the traceback of `error` went through, else nothing.

    Without `file`, of the first file in the traceback that is not import machinery: the user's.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    if frames:
        file = file or frames[0].filename
        last = next((frame for frame in reversed(frames) if frame.filename == file), None)
        return f"{last.filename}:{last.lineno} in {last.name}    {last.line or ''}".rstrip() if last else ""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}    {(error.text or '').strip()}".rstrip()
    return ""


def file_of(fn: Callable[..., Any]) -> str:
    """The source file of a function, or of the class of a module; a name that no file has if unknown."""
    try:
        return inspect.getfile(fn if inspect.isroutine(fn) else type(fn))
    except TypeError:
        return "<unknown>"


def _is_machinery(file: str) -> bool:
    own = Path(file).parent == Path(__file__).parent
    return own or file.startswith("<frozen") or Path(file).parent.name == "importlib"


def no_file(file: Path, suffix: str) -> ReinkError:
    """That `file` does not exist, with the files of that suffix that lie where it should."""
    folder = file.parent
    names = [other.name for other in folder.iterdir() if other.suffix == suffix] if folder.is_dir() else []
    return ReinkError("not-found", f"no file {file}", do=near(file.name, names))


def near(name: str, names: Iterable[str]) -> str:
    """A hint: the names most like `name`, else a few of them, else nothing."""
    known = sorted(set(names))
    close = difflib.get_close_matches(name, known)
    if close:
        return f"did you mean {' or '.join(close)}?"
    few = ", ".join(known[:8])
    return f"there are: {few}{', ...' if len(known) > 8 else ''}" if few else ""
