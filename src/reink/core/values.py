"""What each captured value is in the functional graph: a place in a storage, a plain node, or several of these."""

from __future__ import annotations

from typing import Any

import torch.fx

from reink.core.aliasing import Place
from reink.core.ledger import Ledger

Node = torch.fx.Node


class Pending:
    """Result `index` of a call with several results, not asked for yet; `value` is its fake value."""

    __slots__ = ("call", "index", "value")

    def __init__(self, call: Node, index: int, value: Any) -> None:
        self.call, self.index, self.value = call, index, value


class Values(dict[Node, Any]):
    """From captured node to its value: a `Place`, a node, a `Pending`, or a tuple of them."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def read(self, argument: Any) -> Any:
        """A captured argument for the functional graph: tensors at their newest version."""
        if isinstance(argument, Node):
            value = self[argument]
            return self._ledger.read(value) if type(value) is Place else self.read_value(value)
        if isinstance(argument, (list, tuple)):
            items: list[Any] = [a if type(a) is int else self.read(a) for a in argument]
            return type(argument)(*items) if hasattr(argument, "_fields") else type(argument)(items)
        if isinstance(argument, dict):
            return {k: self.read(v) for k, v in argument.items()}
        if isinstance(argument, slice):
            return slice(self.read(argument.start), self.read(argument.stop), self.read(argument.step))
        return argument

    def read_all(self, arguments: tuple[Any, ...]) -> list[Any]:
        """The captured arguments of a call for the functional graph."""
        found: list[Any] = []
        for argument in arguments:
            kind = type(argument)
            if kind is Node:
                value = self[argument]
                found.append(self._ledger.read(value) if type(value) is Place else self.read_value(value))
            else:
                found.append(argument if kind is int else self.read(argument))
        return found

    def read_value(self, value: Any) -> Any:
        """A value for the functional graph: places at their newest version."""
        if type(value) is Place:
            return self._ledger.read(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.read_value(v) for v in value)
        return value

    def place(self, argument: Any) -> Place | None:
        """The place of an argument that is one tensor."""
        found = self.get(argument) if isinstance(argument, Node) else None
        return found if type(found) is Place else None

    def places(self, argument: Any) -> list[Place]:
        """Every tensor place inside an argument."""
        if isinstance(argument, Node):
            return _places(self[argument])
        if isinstance(argument, (list, tuple)):
            return [p for a in argument for p in self.places(a)]
        return []


def _places(value: Any) -> list[Place]:
    if type(value) is Place:
        return [value]
    if isinstance(value, (list, tuple)):
        return [p for v in value for p in _places(v)]
    return []
