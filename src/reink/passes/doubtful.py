"""Copies of which only the data say whether eager makes them. A part of functionalize.

``reshape`` and ``contiguous`` return a view where the tensor lies as they want it, and a copy otherwise. Where a size
depends on data, tracing takes the copy; with one row, eager may take the view. It makes no difference as long as
neither of the two memories is written while the other one is still looked at, and not both reach the caller; nor, of an
expanded tensor, as long as the copy is neither written nor returned.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer
from reink.core.ledger import Ledger
from reink.core.opinfo import Kind, OpFacts
from reink.core.torch_internals import expression, has_data_dependent_size, input_nodes
from reink.core.values import Values
from reink.passes.refusals import doubtful_copy

Node = torch.fx.Node
Tensor = torch.Tensor

# What tracing makes of a `reshape`, `contiguous` or `to` that copies: these, told how the result is to lie.
_COPIES = frozenset({torch.ops.aten.clone.default, torch.ops.aten._to_copy.default})
_LOOKS_AT_NOTHING = frozenset({Kind.VIEW, Kind.VIEW_LIST, Kind.METADATA, Kind.GETITEM})


class DoubtfulCopies:
    """The doubtful copies of one graph, told of each captured node in turn. Costs nothing until there is one."""

    def __init__(self, values: Values, ledger: Ledger) -> None:
        self._values, self._ledger = values, ledger
        # Per storage: the node of the doubtful copy that ties it to others, and all that may be one memory with it.
        self._copies: dict[Buffer, Node] = {}
        self._groups: dict[Buffer, set[Buffer]] = {}
        self._versions: dict[Buffer, int] = {}
        self._stale: set[Buffer] = set()
        # copies of tensors whose elements share memory, as those of the view do that eager may return
        self._crowded: set[Buffer] = set()

    def meet(self, node: Node, facts: OpFacts) -> None:
        """`node` is functionalized. Raises ReinkError ``data-dependent-python`` if it looks at what may be stale."""
        if self._groups:
            if facts.kind not in _LOOKS_AT_NOTHING:
                for used in input_nodes(node):
                    self._look(used)
            self._note_writes()
        if node.target in _COPIES and _is_doubtful(node):
            self._tie(node)

    def end(self, returned: list[Any]) -> None:
        """The graph returns these. Raises ReinkError ``data-dependent-python`` if eager's results may differ."""
        if not self._groups:
            return
        seen = {p.buffer for r in returned for p in self._values.places(r)}
        for group in self._groups.values():
            outside = [b for b in group if b in seen or b.kind == "input"]
            for buffer in outside:
                if len(outside) > 1 or buffer in self._stale or buffer in self._crowded:
                    raise doubtful_copy(self._copies[buffer])

    def _look(self, used: Node) -> None:
        for place in self._values.places(used) if used in self._values else ():  # a graph that a call runs has no value
            if place.buffer in self._stale:
                raise doubtful_copy(self._copies[place.buffer])

    def _note_writes(self) -> None:
        for buffer, known in self._versions.items():
            now = self._ledger.version(buffer)
            if now != known:
                if buffer in self._crowded:
                    raise doubtful_copy(self._copies[buffer])
                self._versions[buffer] = now
                self._stale |= self._groups[buffer] - {buffer}

    def _tie(self, node: Node) -> None:
        source, copy = self._values.place(node.args[0]), self._values.place(node)
        if source is None or copy is None:
            return
        if source.overlaps_itself():
            self._crowded.add(copy.buffer)
        group = self._groups.get(source.buffer, {source.buffer}) | {copy.buffer}
        for buffer in group:
            self._groups[buffer] = group
            self._copies.setdefault(buffer, node)
            self._versions[buffer] = self._ledger.version(buffer)


def _is_doubtful(node: Node) -> bool:
    """Whether eager might return memory of what this copies: told how to lie, and of a size that the data decide."""
    source: Any = node.args[0]
    asked = node.kwargs.get("memory_format")
    if asked is None or asked is torch.preserve_format:
        return False
    value, result = source.meta.get("val"), node.meta.get("val")
    if not isinstance(value, Tensor) or not isinstance(result, Tensor) or value.dtype != result.dtype:
        return False
    undecided = any(has_data_dependent_size(n) for n in (*value.size(), *value.stride()))
    return undecided and expression(value.numel()) != 0
