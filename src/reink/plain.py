"""Typed data from JSON values: each value has the type that its field says, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]


@cache
def reader(kind: Any) -> Reader:
    """What makes a `kind` of JSON values: a dataclass of an object with all its fields, a named tuple of a list.

    Also for tuples, lists, dicts of words, unions with None, literals and plain values. The reader raises TypeError,
    and KeyError for a field that is not there.
    """
    if is_dataclass(kind):
        return _of_object(kind)
    if hasattr(kind, "_fields"):
        return _of_list(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        known = reader(next(one for one in inner if one is not NoneType))
        return lambda value: None if value is None else known(value)
    if origin is Literal:
        return lambda value: _expect(value, value in inner, " or ".join(inner))
    if origin is dict:
        of_word, of_value = map(reader, inner)
        return lambda value: {of_word(k): of_value(v) for k, v in _expect(value, type(value) is dict, "object").items()}
    if origin is list or (origin is tuple and inner[-1] is ...):
        item = reader(inner[0])
        return lambda value: origin([item(one) for one in _listed(value)])
    if origin is tuple:
        items = [reader(one) for one in inner]
        return lambda value: tuple([read(one) for read, one in zip(items, _listed(value), strict=True)])
    allowed = (int, float) if kind is float else (kind,)
    return lambda value: value if type(value) in allowed else _expect(value, False, kind.__name__)


def _of_object(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {known.name: reader(hints[known.name]) for known in fields(kind)}

    def read(value: Any) -> Any:
        _expect(value, type(value) is dict and value.keys() <= readers.keys(), kind.__name__)
        return kind(**{name: _field(kind, name, read_one, value[name]) for name, read_one in readers.items()})

    return read


def _of_list(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = [reader(hints[name]) for name in kind._fields]

    def read(value: Any) -> Any:
        _expect(value, len(_listed(value)) == len(readers), kind.__name__)
        return kind(*[read_one(one) for read_one, one in zip(readers, value, strict=True)])

    return read


def _field(kind: Any, name: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except TypeError as error:
        raise TypeError(f"{name} of {kind.__name__}: {error}") from error


def _listed(value: Any) -> Sequence[Any]:
    listed: Sequence[Any] = _expect(value, isinstance(value, (list, tuple)), "list")
    return listed


def _expect(value: Any, fits: bool, what: str) -> Any:
    if not fits:
        raise TypeError(f"{str(value)[:60]!r} is no {what}")
    return value
