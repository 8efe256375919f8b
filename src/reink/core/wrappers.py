"""Wrapper tensors: subclasses that hold other tensors. A graph is given the plain ones inside them.

Memory that two wrappers share, or a wrapper and a plain tensor, is then shared by plain inputs, which the alias
analysis sees. Only the objects are put together again, around the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from reink.core.torch_internals import has_own_dispatch, is_wrapper_subclass
from reink.errors import ReinkError

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Constant:
    """What a wrapper holds that is no tensor, such as the mesh of devices over which it is spread."""

    value: Any


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How a wrapper tensor of type `kind` is made: of what is in its attributes `names`, and of `context`.

    `inner` says for each of those how it is made itself: None if it is a plain tensor. `size` and `stride` are those
    that the wrapper shows, in elements.
    """

    kind: Any
    names: tuple[str, ...]
    inner: tuple[Wrapper | Constant | None, ...]
    context: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def together(self, plain: Iterator[Any]) -> Tensor:
        """A wrapper around the next of the tensors `plain`. Raises ReinkError ``tensor-subclass``."""
        inside = {n: _made(w, plain) for n, w in zip(self.names, self.inner, strict=True)}
        made: Tensor = self.kind.__tensor_unflatten__(inside, self.context, self.size, self.stride)
        if type(made) is not self.kind:
            raise _refused(self.kind, f"its __tensor_unflatten__ makes a {type(made).__name__}")
        return made

    def apart(self, value: Any) -> Iterator[Any]:
        """The plain tensors inside a tensor that is made like this."""
        for name, wrapper in zip(self.names, self.inner, strict=True):
            if wrapper is None:
                yield getattr(value, name)
            elif isinstance(wrapper, Wrapper):
                yield from wrapper.apart(getattr(value, name))

    def plain_names(self) -> Iterator[str]:
        """The ways to the plain tensors inside."""
        for name, wrapper in zip(self.names, self.inner, strict=True):
            if wrapper is None:
                yield name
            elif isinstance(wrapper, Wrapper):
                yield from (f"{name}_{rest}" for rest in wrapper.plain_names())


def _made(how: Wrapper | Constant | None, plain: Iterator[Any]) -> Any:
    if how is None:
        return next(plain)
    return how.value if isinstance(how, Constant) else how.together(plain)


def wrapper_of(value: Any) -> Wrapper | None:
    """How `value` is made; None for what is no wrapper. Raises ReinkError ``tensor-subclass``."""
    if not is_wrapper_subclass(value):
        if has_own_dispatch(value):
            raise _refused(type(value), "it does not say which tensors it is made of (__tensor_flatten__)")
        return None
    names, context = value.__tensor_flatten__()
    numbers = (*value.size(), *value.stride())
    if not all(type(n) is int for n in numbers):
        raise _refused(type(value), "its sizes are symbolic, and only the subclass knows what that means inside")
    inside = [getattr(value, name) for name in names]
    plain = (t for t in inside if isinstance(t, Tensor) and not is_wrapper_subclass(t))
    if any(t.layout is not torch.strided for t in plain):
        raise _refused(type(value), "a tensor inside it has no strides")
    inner = tuple(wrapper_of(t) if isinstance(t, Tensor) else Constant(t) for t in inside)
    return Wrapper(type(value), tuple(names), inner, context, numbers[: value.dim()], numbers[value.dim() :])


def _is_made_as(value: Any, wrapper: Wrapper | None) -> bool:
    return not is_wrapper_subclass(value) if wrapper is None else wrapper_of(value) == wrapper


class Wrappers:
    """The wrappers among the inputs and results of a program, for a program over the plain tensors inside them."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        """Raises ReinkError ``tensor-subclass`` for a wrapper that cannot be taken apart."""
        self.inputs = tuple(wrapper_of(v) for v in inputs)
        self._results: tuple[Wrapper | int | None, ...] = ()

    def __bool__(self) -> bool:
        return any(self.inputs)

    def fit(self, inputs: Sequence[Any]) -> bool:
        """Whether `inputs` are made as those that this was made for."""
        return len(inputs) == len(self.inputs) and all(map(_is_made_as, inputs, self.inputs))

    def apart(self, inputs: Sequence[Any]) -> list[Any]:
        """The plain inputs for `inputs`, which are made as those that this was made for."""
        return [p for v, w in zip(inputs, self.inputs, strict=True) for p in ([v] if w is None else w.apart(v))]

    def together(self, plain: Sequence[Any]) -> list[Any]:
        """The inputs, wrappers among them, for `plain` ones."""
        rest = iter(plain)
        return [_made(w, rest) for w in self.inputs]

    def names(self, names: Sequence[str]) -> list[str]:
        """What to call the plain inputs where the inputs are called `names`."""
        pairs = zip(names, self.inputs, strict=True)
        return [
            n
            for name, w in pairs
            for n in ([name] if w is None else (f"{name}_{p.lstrip('_')}" for p in w.plain_names()))
        ]

    def run(self, function: Callable[..., Any], plain: Sequence[Any]) -> tuple[Any, ...]:
        """What `function` of the inputs that `plain` make returns, taken apart; how it was made is kept.

        Raises ReinkError ``tensor-subclass`` if a wrapper among the inputs is another afterwards.
        """
        given = self.together(plain)
        returned = function(*given)
        results = returned if isinstance(returned, (tuple, list)) else (returned,)
        self._refuse_changed(given, plain)
        known = {id(v): k for k, (v, w) in reversed(list(enumerate(zip(given, self.inputs, strict=True)))) if w}
        self._results = tuple(known.get(id(r), wrapper_of(r)) for r in results)
        found = (self.inputs[s] if isinstance(s, int) else s for s in self._results)
        return tuple(p for r, w in zip(results, found, strict=True) for p in ([r] if w is None else w.apart(r)))

    def _refuse_changed(self, given: Sequence[Any], plain: Sequence[Any]) -> None:
        rest = iter(plain)
        for value, wrapper in zip(given, self.inputs, strict=True):
            if wrapper is None:
                next(rest)
                continue
            inside = list(wrapper.apart(value))
            same = all(a is b for a, b in zip(inside, islice(rest, len(inside)), strict=True))
            if not same or (tuple(value.size()), tuple(value.stride())) != (wrapper.size, wrapper.stride):
                raise _refused(type(value), "the program puts other tensors into it, or changes its sizes")

    def rebuilt(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The results of the last `run` as it made them, of plain `results` on `inputs`."""
        rest, made = iter(results), []
        for source in self._results:
            if isinstance(source, int):
                made.append(inputs[source])
                for _ in self.inputs[source].apart(inputs[source]):  # type: ignore[union-attr]
                    next(rest)
            else:
                made.append(_made(source, rest))
        return made


def _refused(kind: Any, why: str) -> ReinkError:
    return ReinkError(
        "tensor-subclass",
        f"cannot take a {kind.__name__} apart",
        why=why,
        do="pass the plain tensors that it wraps",
    )
