"""What a compile can be told, checked in one place so that a misspelled option is an error and not a default."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any

from reink.errors import ReinkError

# Settled names whose work has not landed: refused, never ignored.
NOT_YET = ("decompositions",)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `reink.compile` and of the back end.

    `codegen`: ``inductor`` has Inductor generate code for the lowered graph, in a `mode` of `torch.compile`; ``eager``
    runs it with PyTorch's own kernels. `strategy`: the call form of mutable operators, ``v1`` by argument or ``v2`` by
    base. `passes`: functions that edit the pure graph. `strict` turns a remaining copy of more than `strict_bytes` into
    an error. `prove` has the values of the lowered graph proven equal to those of the pure one, at compile time; a
    graph that is refuted does not run. `max_extra_bytes`: how many bytes more may be live because a reader moved above
    a write or a write waited; None: any number, 0: none. `donate` names arguments that the caller does not read again:
    their memory is used for other values.
    """

    codegen: str = "inductor"
    mode: str | None = None
    strategy: str = "v2"
    passes: tuple[Callable[[Any], None], ...] = ()
    strict: bool = False
    strict_bytes: int = 0
    prove: bool = False
    max_extra_bytes: int | None = None
    donate: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Checked options. Raises ReinkError ``unknown-option``."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in (given or {}).items() if not (k in NOT_YET and (v is None or v is False or v == ()))}
        for name, value in values.items():
            if not isinstance(name, str):
                raise _bad(f"an option has the name {name!r}", "option names are words")
            if name in NOT_YET:
                raise _bad(f"the option {name!r} is not available yet", f"leave {name} out")
            if name not in known:
                close = difflib.get_close_matches(name, [*known, *NOT_YET], 1)
                hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(sorted(known))}"
                raise _bad(f"there is no option {name!r}", hint)
            _check(name, value)
        for name in ("passes", "donate"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)


_CHOICES: dict[str, tuple[Any, ...]] = {
    "codegen": ("eager", "inductor"),
    "mode": (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "strategy": ("v1", "v2"),
    "strict": (True, False),
    "prove": (True, False),
}


def _check(name: str, value: Any) -> None:
    choices = _CHOICES.get(name)
    if choices is not None and not (isinstance(value, (str, bool, NoneType)) and value in choices):
        shown = " or ".join(repr(c) for c in choices)
        raise _bad(f"the option {name} cannot be {value!r}", f"use {shown}")
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if (name == "strict_bytes" and not is_count) or (name == "max_extra_bytes" and not is_count and value is not None):
        raise _bad(f"the option {name} cannot be {value!r}", "use a number of bytes, 0 or more")
    if name == "passes" and not (isinstance(value, (list, tuple)) and all(callable(p) for p in value)):
        raise _bad("the option passes has to be a list of functions of an fx graph", "give passes=(my_pass,)")
    if name == "donate" and not (isinstance(value, (list, tuple)) and all(isinstance(n, str) for n in value)):
        raise _bad("the option donate has to be a list of names of arguments", 'give donate=("state",)')


def _bad(what: str, do: str) -> ReinkError:
    return ReinkError("unknown-option", what, why="options are checked before anything is compiled", do=do)
