"""The program that a TARGET on the command line names, loaded from the user's own code."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from reink.cli.mistakes import file_of, near, no_file, refuse, said
from reink.errors import ReinkError, causes

SHAPE = "give FILE.py:NAME or MODULE:NAME, where NAME() returns (fn, args) or (fn, args, kwargs)"
SAVED = ".pt2"


@dataclass(frozen=True, slots=True)
class Program:
    """What a target returned: the program and its example arguments, None for a saved program that has none.

    `exported` is the saved program itself.
    """

    target: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any]
    exported: Any = None


def load(target: str) -> Program:
    """The program that `target` names: of the user's own code, or a saved one.

    Raises ReinkError ``bad-target``, ``not-found``.
    """
    place, colon, name = target.rpartition(":")
    if target.endswith(SAVED):
        exported = load_saved(Path(target))
        args, kwargs = exported.example_inputs or (None, {})
        return Program(target, exported.module(), args, kwargs, exported)
    if place.endswith(SAVED):
        raise ReinkError("bad-target", f"{place} is a saved program, which has no NAME", do=f"give {place}")
    if not colon or not place or not name:
        raise ReinkError("bad-target", f"the target {target!r} has no NAME", do=_shape_for(target))
    module = load_code(place)
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ReinkError("not-found", f"no {name} in {place}", do=near(name, names))
    return _call(target, getattr(module, name))


def load_program(target: str, operators: str) -> Program:
    """`load`, after an import of the file or module `operators`, if that is given."""
    if operators:
        load_code(operators)
    return load(target)


def load_saved(file: Path) -> Any:
    """The exported program that ``torch.export.save`` put into `file`. Raises as `load` does."""
    import torch

    if not file.is_file():
        raise no_file(file, SAVED)
    noted: list[BaseException] = []
    with _noting(noted):
        try:
            return torch.export.load(file)
        except Exception as error:
            *_, first = causes(noted[0] if noted else error)
            why = said(first).partition(". ")[0].splitlines()[0]
            do = "give what torch.export.save wrote; --load FILE imports first what registers its operators"
            raise ReinkError("bad-target", f"cannot read {file}", why=why, do=do) from error


@contextlib.contextmanager
def _noting(errors: list[BaseException]) -> Iterator[None]:
    """Keep the tracebacks that torch logs while it tries the formats of a file: collect their errors instead."""

    def note(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            errors.append(error)
        return error is None

    log = logging.getLogger("torch.export")
    log.addFilter(note)
    try:
        yield
    finally:
        log.removeFilter(note)


def files_of(program: Program) -> list[str]:
    """The files of the user's that `program` was loaded from: the target's, and that of its function."""
    if program.exported is not None:
        return [program.target]
    place = program.target.rpartition(":")[0]
    file = place if place.endswith(".py") or "/" in place else getattr(sys.modules.get(place), "__file__", None)
    return [known for known in (file, file_of(program.fn)) if known]


def load_code(place: str) -> ModuleType:
    """Import a file or a module of the user's. Raises ReinkError ``bad-target``, ``not-found``."""
    return _load_file(Path(place)) if place.endswith(".py") or "/" in place else _load_module(place)


def _shape_for(target: str) -> str:
    return SHAPE.replace("FILE.py:NAME", f"{target}:NAME", 1) if target.endswith(".py") else SHAPE


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise no_file(file, ".py")
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
        refuse(f"cannot import {file}", error)
    return module


def _load_module(name: str) -> ModuleType:
    _find_imports_in(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            hint = near(name, [file.stem for file in Path.cwd().glob("*.py")])
            raise ReinkError("not-found", f"no module {error.name}", do=hint or SHAPE) from error
        refuse(f"cannot import {name}", error)
    except (Exception, SystemExit) as error:
        refuse(f"cannot import {name}", error)


def _find_imports_in(folder: Path) -> None:
    """Let the user's file import its neighbours, as ``python FILE.py`` does."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _call(target: str, maker: Any) -> Program:
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
        refuse(f"{target} raised", error)
    return _program(target, made)


def _takes_nothing(maker: Callable[..., Any]) -> bool:
    try:
        inspect.signature(maker).bind()
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature: calling it tells
        return True
    return True


def _program(target: str, made: Any) -> Program:
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
    return Program(target, fn, tuple(args), dict(kwargs or {}))


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(item).__name__ for item in value)})"
    return f"a {type(value).__name__}"
