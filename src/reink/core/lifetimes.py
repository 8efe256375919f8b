"""What memory a graph holds, and from which of its nodes to which: the basis of a picture of its live bytes.

A model, not a measurement: each storage is made by the node that brings it in and freed after its last use, as a
program does that drops every tensor when it is done with it. What the graphs inside a call hold is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from reink.core.opinfo import Kind, facts_of, hidden_writes
from reink.core.program import Program
from reink.core.torch_internals import hint_of

Node = torch.fx.Node
Tensor = torch.Tensor

_ALIASES = frozenset({Kind.VIEW, Kind.VIEW_LIST, Kind.METADATA, Kind.IN_PLACE})


@dataclass(slots=True)
class Lifetime:
    """One storage: made by node `name`, of so many `bytes` (None when only data decide), held from `first` to `last`.

    `kind` is ``input``, ``constant``, ``value`` or ``result``.
    """

    name: str
    kind: str
    bytes: int | None
    first: int
    last: int


def lifetimes(program: Program, position: dict[Node, int], end: int) -> list[Lifetime]:
    """Every storage of the program. Positions are numbers of lines: that of each node in `position`, and `end`."""
    found = _Lifetimes(position, end)
    for node in program.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            found.open(node, "input" if node.op == "placeholder" else "constant", last=end)
        elif node.op == "call_function":
            found.call(node)
    found.close(program.results())
    return found.made


class _Lifetimes:
    def __init__(self, position: dict[Node, int], end: int) -> None:
        self.made: list[Lifetime] = []
        self._position, self._end = position, end
        self._of: dict[Node, list[Lifetime | None]] = {}  # by node, for each of its results

    def open(self, node: Node, kind: str, last: int = -1) -> None:
        """`node` brings in new memory for every tensor that it returns."""
        value = _value(node)
        values = value if isinstance(value, (list, tuple)) else [value]
        several = isinstance(value, (list, tuple))
        self._of[node] = [
            self._new(f"{node.name}[{k}]" if several else node.name, kind, v, node, last) for k, v in enumerate(values)
        ]

    def _new(self, name: str, kind: str, value: Any, node: Node, last: int) -> Lifetime | None:
        if not isinstance(value, Tensor):
            return None
        at = self._position.get(node, 0)
        made = Lifetime(name, kind, _bytes_of(value), at, max(at, last))
        self.made.append(made)
        return made

    def call(self, node: Node) -> None:
        """`node` uses what its arguments are in; its own results are in that or in new memory."""
        at, facts = self._position.get(node, 0), facts_of(node.target)
        for used in node.all_input_nodes:
            for lifetime in self._of.get(used, ()):
                if lifetime is not None:
                    lifetime.last = max(lifetime.last, at)
        first = node.args[0] if node.args else None
        if facts.kind is Kind.GETITEM and isinstance(first, Node):
            self._item(node, self._of.get(first, []))
        elif facts.kind in _ALIASES and isinstance(first, Node):
            self._of[node] = self._of.get(first, [])
            if facts.kind is Kind.METADATA:
                self._resized(node)
        elif facts.kind is Kind.CALL and hidden_writes(facts, node.args, node.kwargs) and _is_written(node):
            self._of[node] = [found for u in _written(node) for found in self._of.get(u, ())]
        else:
            self.open(node, "value")

    def _item(self, node: Node, whole: list[Lifetime | None]) -> None:
        """One of several results: memory of its own, or a part of the one storage that all are in."""
        index = node.args[1]
        if len(whole) == 1:
            self._of[node] = whole
        elif isinstance(index, int) and index < len(whole) and whole[index] is not None:
            self._of[node] = [whole[index]]
        else:
            self.open(node, "value")

    def _resized(self, node: Node) -> None:
        """A tensor that is made larger holds the larger memory; told as if it had from the start."""
        value = node.meta.get("val")
        size = _bytes_of(value) if isinstance(value, Tensor) else None
        for lifetime in self._of[node]:
            if lifetime is not None and lifetime.bytes is not None and size is not None:
                lifetime.bytes = max(lifetime.bytes, size)

    def close(self, results: Iterable[Any]) -> None:
        """What is returned is held to the end."""
        for result in results:
            for lifetime in self._of.get(result, ()) if isinstance(result, Node) else ():
                if lifetime is not None:
                    lifetime.last = self._end
                    lifetime.kind = "result" if lifetime.kind == "value" else lifetime.kind


def _value(node: Node) -> Any:
    """The fake value of a node. A lowered call may have none: then it is that of the pure call behind it."""
    value = node.meta.get("val")
    behind = node.meta.get("reink_of")
    facts = facts_of(node.target)
    if value is None and isinstance(behind, Node) and facts.kind is Kind.CALL and facts.result_aliases == (-1,):
        value = behind.meta.get("val")
        return value[0] if isinstance(value, (list, tuple)) and value else value
    return value


def _is_written(node: Node) -> bool:
    """Whether every result of a mutable call is one of its arguments."""
    aliases = facts_of(node.target).result_aliases
    return bool(aliases) and all(position >= 0 for position in aliases)


def _written(node: Node) -> list[Node]:
    facts = facts_of(node.target)
    given = [facts.parameters[k].given(node.args, node.kwargs) for k in facts.result_aliases]
    return [g for g in given if isinstance(g, Node)]


def _bytes_of(value: Tensor) -> int | None:
    """Bytes from the first to past the last element, symbolic sizes as they were in the example."""
    size, stride = [hint_of(n) for n in value.size()], [hint_of(n) for n in value.stride()]
    if not all(type(n) is int for n in (*size, *stride)):
        return None
    if not math.prod(size):
        return 0
    reach = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return int(reach) * value.element_size()
