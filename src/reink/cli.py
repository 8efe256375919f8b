"""The command line: ``reink explain``, ``reink show``, ``reink ops``.

Exit status: 0 fine, 1 the answer is no, 2 the user's mistake. What a command answers goes to standard
output; progress, mistakes and whatever the user's program prints go to standard error.

Each command imports what it needs itself: ``show`` and ``--help`` must not wait for torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import fnmatch
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reink.errors import ReinkError
from reink.report import Report
from reink.show.terminal import print_report

PIPE_WIDTH = 200
STRATEGIES = ("v1", "v2")
SHAPE = "give FILE.py:NAME or MODULE:NAME, where NAME() returns (fn, args) or (fn, args, kwargs)"

log = logging.getLogger(__name__)

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


@contextlib.contextmanager
def _mistakes() -> Iterator[None]:
    """End with status 2 and the message of a ReinkError; REINK_TRACEBACK=1 shows where it was raised."""
    try:
        yield
    except ReinkError as error:
        if os.environ.get("REINK_TRACEBACK"):
            traceback.print_exc()
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


# the commands


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


Programs = Annotated[
    bool, typer.Option("--programs/--no-programs", help="Print the program after the steps, or leave it out.")
]


@app.command(epilog="Example: reink explain model.py:example --strict --json report.json")
@_mistakes()
def explain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="FILE.py:NAME or MODULE:NAME. NAME() returns (fn, args) or (fn, args, kwargs).",
            show_default=False,
        ),
    ],
    json_file: Annotated[
        str,
        typer.Option("--json", metavar="FILE", help="Save the report too; - writes only it, to standard output."),
    ] = "",
    strategy: Annotated[
        str, typer.Option(metavar="v1|v2", help="Describe written operands by argument (v1) or by base (v2).")
    ] = "v2",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 if any copy is left.")] = False,
    programs: Programs = True,
) -> None:
    """Compile a program and say what became of each of its writes: in place, or copied and why."""
    if strategy not in STRATEGIES:
        raise ReinkError("unknown-option", f"no strategy {strategy!r}", do=f"use one of {', '.join(STRATEGIES)}")
    if json_file not in ("", "-") and not Path(json_file).parent.is_dir():
        raise ReinkError("not-found", f"no folder {Path(json_file).parent} to save {json_file} in")
    with _others_print_to_stderr():
        program = _load(target)
        with _progress(f"compiling {target}"):
            report = _compile(program, strategy)
    if json_file == "-":
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        print_report(report, _console(), programs=programs)
    if json_file not in ("", "-"):
        _save(report, json_file)
    if strict and report.copies:
        typer.echo(str(_copies_left(report)), err=True)
        raise typer.Exit(1)


@app.command(epilog="Example: reink explain model.py:example --json report.json, later: reink show report.json")
@_mistakes()
def show(
    report: Annotated[
        Path,
        typer.Argument(metavar="REPORT.json", help="A file that --json or Report.save wrote.", show_default=False),
    ],
    programs: Programs = True,
) -> None:
    """Print a saved report, without torch and without compiling again."""
    if not report.exists():
        raise _no_file(report, ".json")
    try:
        print_report(Report.load(report), _console(), programs=programs)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        do = "give a file that Report.save or reink explain --json wrote"
        raise ReinkError(
            "not-a-report", f"{report} holds other values than a report", why=_said(error), do=do
        ) from error


@app.command(epilog="Examples: reink ops; reink ops add_; reink ops 'aten.*_scatter*'")
@_mistakes()
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
            do=_near(pattern, names) or "run reink ops for the whole list",
        )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"{len(found)} of {len(rows)} operators")
    for heading in ("operator", "kind", "writes", "twin", "note"):
        table.add_column(heading, overflow="fold")
    for row in found:
        table.add_row(*(Text(cell) for cell in (row.name, row.kind, row.writes, row.twin, row.note)))
    console = _console()
    if not console.is_terminal:  # a name stays on one line for grep
        console.width = max(console.width, PIPE_WIDTH)
    console.print(table)


# answers


def _console() -> Console:
    """Standard output, which never fails on a letter that its encoding lacks."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure:
        reconfigure(errors="backslashreplace")
    return Console()


def _save(report: Report, file: str) -> None:
    try:
        report.save(file)
    except OSError as error:
        raise ReinkError("unknown-option", f"cannot write {file}", why=_said(error)) from error
    typer.echo(f"saved {file}; reink show {file} prints it again", err=True)


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


@contextlib.contextmanager
def _progress(doing: str) -> Iterator[None]:
    """A spinner on standard error if a person watches it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(Text(doing)):
        yield


@contextlib.contextmanager
def _others_print_to_stderr() -> Iterator[None]:
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


# the target


@dataclass(frozen=True, slots=True)
class _Program:
    """What a target returned: the program and its example arguments."""

    target: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _explain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], strategy: str) -> Report:
    """`reink.explain`, imported when it is needed; tests put their own in its place."""
    import reink

    report: Report = reink.explain(fn, args, kwargs, strategy=strategy)
    return report


def _compile(program: _Program, strategy: str) -> Report:
    try:
        return _explain(program.fn, program.args, program.kwargs, strategy)
    except ReinkError:
        raise
    except Exception as error:
        log.debug("compiling %s failed", program.target, exc_info=True)
        raise ReinkError(
            "not-a-tensor-program",
            f"the program of {program.target} cannot be compiled",
            where=_place(error, _file_of(program.fn)),
            why=_said(error),
            do="run it without reink first; if it works there, this is a bug of reink: "
            "report it with what REINK_TRACEBACK=1 reink explain prints",
        ) from error


def _load(target: str) -> _Program:
    """The program that `target` names, from the user's own code."""
    place, colon, name = target.rpartition(":")
    if target.endswith(".pt2") or place.endswith(".pt2"):
        raise ReinkError(
            "bad-target",
            f"cannot explain {target}: saved .pt2 programs are not read yet; they come later",
            do=SHAPE,
        )
    if not colon or not place or not name:
        raise ReinkError("bad-target", f"the target {target!r} has no NAME", do=_shape_for(target))
    module = _load_file(Path(place)) if place.endswith(".py") or "/" in place else _load_module(place)
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ReinkError("not-found", f"no {name} in {place}", do=_near(name, names))
    return _call(target, getattr(module, name))


def _shape_for(target: str) -> str:
    return SHAPE.replace("FILE.py:NAME", f"{target}:NAME", 1) if target.endswith(".py") else SHAPE


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise _no_file(file, ".py")
    _find_imports_in(file.resolve().parent)
    name = f"reink_target_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise ReinkError("bad-target", f"{file} is not a Python file", do=SHAPE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        _refuse(f"cannot import {file}", error)
    return module


def _load_module(name: str) -> ModuleType:
    _find_imports_in(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            near = _near(name, [file.stem for file in Path.cwd().glob("*.py")])
            raise ReinkError("not-found", f"no module {error.name}", do=near or SHAPE) from error
        _refuse(f"cannot import {name}", error)
    except (Exception, SystemExit) as error:
        _refuse(f"cannot import {name}", error)


def _find_imports_in(folder: Path) -> None:
    """Let the user's file import its neighbours, as ``python FILE.py`` does."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _call(target: str, maker: Any) -> _Program:
    """The program that ``maker()`` returns. Raises ReinkError ``bad-target``."""
    if not callable(maker):
        raise ReinkError("bad-target", f"{target} is a {type(maker).__name__}, not a function", do=SHAPE)
    if not _takes_nothing(maker):
        name = getattr(maker, "__name__", "fn")
        raise ReinkError(
            "bad-target",
            f"{target} needs arguments of its own",
            why="it is called without any, to make the program and its example arguments",
            do=f"write a function without arguments that ends in: return {name}, (arg, ...)",
        )
    try:
        made = maker()
    except ReinkError:
        raise
    except (Exception, SystemExit) as error:
        _refuse(f"{target} raised", error)
    return _program(target, made)


def _takes_nothing(maker: Callable[..., Any]) -> bool:
    try:
        inspect.signature(maker).bind()
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature: calling it tells
        return True
    return True


def _program(target: str, made: Any) -> _Program:
    where = f"{target} returned {_kind(made)}"
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise ReinkError("bad-target", where, do="return (fn, args) or (fn, args, kwargs)")
    fn, args, kwargs = made if len(made) == 3 else (*made, None)
    if not callable(fn):
        raise ReinkError("bad-target", where, why=f"its fn is a {type(fn).__name__}, not a function or module")
    if not isinstance(args, tuple | list):
        raise ReinkError(
            "bad-target",
            where,
            why="its args are not a tuple",
            do="return fn, (arg,) - one argument needs a tuple too",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ReinkError("bad-target", where, why="its kwargs are not a dict", do="return fn, args, {'name': value}")
    return _Program(target, fn, tuple(args), dict(kwargs or {}))


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(item).__name__ for item in value)})"
    return f"a {type(value).__name__}"


# mistakes


def _refuse(what: str, error: BaseException) -> NoReturn:
    """The user's own code failed: say with what and on which of its lines."""
    raise ReinkError("bad-target", what, where=_place(error), why=_said(error)) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _place(error: BaseException, file: str = "") -> str:
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


def _file_of(fn: Callable[..., Any]) -> str:
    """The source file of a function, or of the class of a module; a name that no file has if unknown."""
    try:
        return inspect.getfile(fn if inspect.isroutine(fn) else type(fn))
    except TypeError:
        return "<unknown>"


def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen") or Path(file).parent.name == "importlib"


def _no_file(file: Path, suffix: str) -> ReinkError:
    folder = file.parent
    names = [near.name for near in folder.iterdir() if near.suffix == suffix] if folder.is_dir() else []
    return ReinkError("not-found", f"no file {file}", do=_near(file.name, names))


def _near(name: str, names: Iterable[str]) -> str:
    """A hint: the names most like `name`, else a few of them, else nothing."""
    known = sorted(set(names))
    close = difflib.get_close_matches(name, known)
    if close:
        return f"did you mean {' or '.join(close)}?"
    few = ", ".join(known[:8])
    return f"there are: {few}{', ...' if len(known) > 8 else ''}" if few else ""


if __name__ == "__main__":
    main()
