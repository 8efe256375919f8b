"""A call that writes, as one operator that Inductor can be given: ``reink::call``.

The schema says which tensors are written, and no result of it is memory of an argument. What is called and with which
arguments is text, so that a graph that holds it can be hashed, printed and cached. Run, it takes the views that
Inductor has no memory for (of another dtype, say) and calls the operator.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from reink.core.calls import own_results, written_arguments
from reink.core.opinfo import operator_name
from reink.core.program import ViewStep
from reink.core.torch_internals import OpOverload, operator_named
from reink.core.views import step_operator

Node = torch.fx.Node
Tensor = torch.Tensor
Soft = Callable[[Node], tuple[Node, list[ViewStep]]]

_NAMED = {
    "dtype": torch.dtype,
    "device": torch.device,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
}


class Unsupported(Exception):
    """Something in a lowered graph that cannot be said to Inductor."""


class Encoded:
    """The arguments of one ``reink::call``, made from the arguments of a call of `op`.

    `memory_of` gives for a value of the graph what Inductor is given, and the views to take of that.
    """

    def __init__(self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], memory_of: Soft) -> None:
        self.written: dict[Node, int] = {}
        self.read: dict[Node, int] = {}
        self.numbers: list[Any] = []
        self._memory_of = memory_of
        changed = {v for _, v in written_arguments(op, args, dict(kwargs)) if isinstance(v, Node)}
        for node in changed:
            self.written.setdefault(memory_of(node)[0], len(self.written))
        said = {
            "op": operator_name(op),
            "args": [self._say(a) for a in args],
            "kwargs": {k: self._say(a) for k, a in kwargs.items()},
        }
        self.how = json.dumps(said)

    def arguments(self) -> tuple[Any, ...]:
        """What ``reink::call`` is given."""
        return list(self.written), list(self.read), self.numbers, self.how

    def add_written(self, node: Node) -> None:
        """One more tensor that counts as written."""
        self.written.setdefault(node, len(self.written))

    def _say(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self._tensor(value) if isinstance(value.meta.get("val"), Tensor) else self._number(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return [self._say(v) for v in value]
        for name, kind in _NAMED.items():
            if isinstance(value, kind):
                return {name: str(value).removeprefix("torch.")}
        raise Unsupported(f"an argument of type {type(value).__name__}")

    def _tensor(self, node: Node) -> dict[str, Any]:
        memory, steps = self._memory_of(node)
        if memory in self.written:
            said: dict[str, Any] = {"written": self.written[memory]}
        else:
            said = {"read": self.read.setdefault(memory, len(self.read))}
        if steps:
            said["steps"] = [[s.op, self._say(list(s.args))] for s in steps]
        return said

    def _number(self, node: Node) -> dict[str, int]:
        if not isinstance(node.meta.get("val"), (int, torch.SymInt)):
            raise Unsupported(f"an argument that is a {type(node.meta.get('val')).__name__}")
        self.numbers.append(self._memory_of(node)[0])
        return {"number": len(self.numbers) - 1}


class Decoded:
    """What is called, and with which arguments, as the text of a ``reink::call`` says."""

    def __init__(self, how: str) -> None:
        said = json.loads(how)
        self.op = operator_named(said["op"])
        self._args, self._kwargs = said["args"], said["kwargs"]
        self.views = '"steps"' in how

    def arguments(
        self, written: Sequence[Any], read: Sequence[Any], numbers: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the operator, with views taken."""

        def value(said: Any) -> Any:
            if isinstance(said, list):
                return [value(s) for s in said]
            if not isinstance(said, dict):
                return said
            if "complex" in said:
                return complex(*said["complex"])
            if "number" in said:
                return numbers[said["number"]]
            for name in _NAMED:
                if name in said:
                    return torch.device(said[name]) if name == "device" else getattr(torch, said[name])
            tensor = written[said["written"]] if "written" in said else read[said["read"]]
            for op, args in said.get("steps", ()):
                tensor = step_operator(ViewStep(op))(tensor, *value(args))
            return tensor

        return value(self._args), {k: value(v) for k, v in self._kwargs.items()}


decoded = functools.lru_cache(maxsize=None)(Decoded)


def run_call(written: list[Tensor], read: list[Tensor], numbers: list[Any], how: str) -> Any:
    """Call the operator; its results that are memory of their own, lists laid flat: none, one, or a tuple."""
    call = decoded(how)
    args, kwargs = call.arguments(written, read, numbers)
    own = own_tensors(call.op, call.op(*args, **kwargs))
    return tuple(own) if len(own) > 1 else own[0] if own else None


def own_tensors(op: OpOverload, results: Any) -> list[Any]:
    """The results of `op` that are memory of their own, lists laid flat."""
    found: list[Any] = []
    for result in own_results(op, results):
        found.extend(result if isinstance(result, (list, tuple)) else [result] if result is not None else [])
    return found


def call_of(results: int) -> OpOverload:
    """The overload of ``reink::call`` with so many results. Raises `Unsupported`."""
    if results >= len(CALLS):
        raise Unsupported(f"a call with {results} results")
    return CALLS[results]


def _defined(results: int) -> OpOverload:
    returns = ", ".join(["Tensor"] * results)
    name = f"results_{results}"
    _library.define(
        f"call.{name}(Tensor(a!)[] written, Tensor[] read, SymInt[] numbers, str how) -> "
        + (returns if results == 1 else f"({returns})")
    )
    _library.impl(f"call.{name}", run_call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"reink::call.{name}", run_call, lib=_library)
    found: OpOverload = getattr(torch.ops.reink.call, name)
    return found


# Most results of one call. An operator whose results are as many as its schema says is all that Inductor can be given.
MOST_RESULTS = 16
_library = torch.library.Library("reink", "DEF")
CALLS = [_defined(k) for k in range(MOST_RESULTS + 1)]
