"""Operators that change what a tensor is: its sizes, its strides, how much memory it has. A part of functionalize.

``x.unsqueeze_(0)`` makes `x` a view of what it was, which the graph can say as long as the caller does not hold the
same object. A tensor of the graph's own may get other sizes: in the memory that it has, or, while it has no elements,
in new memory, as an ``out=`` operator gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, layout_of
from reink.core.emitting import GraphEmitter
from reink.core.ledger import Ledger
from reink.core.opinfo import TURNS_CONJUGATE, Kind, OpFacts, facts_of
from reink.core.values import Values
from reink.core.views import place_by_geometry
from reink.passes.outputs import tensor_object
from reink.passes.refusals import metadata_mutation

Node = torch.fx.Node
Tensor = torch.Tensor

_NEW_EMPTY = torch.ops.aten.new_empty_strided.default
_RESIZING = ("aten.resize_.default", "aten.resize_as_.default")

NewBuffer = Callable[[str, Node, Tensor], Buffer]


class MetadataChanges:
    """The changes of one graph; `new_buffer` enters memory that a node brings into it."""

    def __init__(self, emitter: GraphEmitter, ledger: Ledger, values: Values, new_buffer: NewBuffer) -> None:
        self._emitter, self._ledger, self._values, self._new_buffer = emitter, ledger, values, new_buffer

    def view(self, node: Node, facts: OpFacts) -> OpFacts:
        """The view operator that says what `node` makes of its operand. Raises ReinkError if there is none."""
        view = facts_of(facts.twin) if facts.twin is not None else facts
        if view.kind is not Kind.VIEW or self._is_given(node.args[0]):
            raise metadata_mutation(node, facts)
        return view

    def resized(self, node: Node, facts: OpFacts) -> Place | None:
        """Where the tensor lies after a `resize_`; None for another operator, or if no place can say it."""
        before: Any = node.args[0]
        place, value = self._values[before], node.meta["val"]
        if facts.name not in _RESIZING or type(place) is not Place:
            return None
        if layout_of(before.meta["val"]) == layout_of(value):
            return place
        if place.buffer.kind != "fresh" or place.is_symbolic():
            return None
        if place.extent.elements == 0 and _is_only(place):
            return self._in_new_memory(place, value)
        return place_by_geometry(place.buffer, value, place.bits)

    def fit_results(self, node: Node, facts: OpFacts) -> None:
        """Give each ``out=`` operand of `node` that has no elements the size that the operator will give it.

        Raises ReinkError for an operator that changes its operand in another way.
        """
        value = node.meta.get("val")
        if facts.name in TURNS_CONJUGATE and isinstance(value, Tensor) and value.is_complex():
            raise metadata_mutation(node, facts)
        for position, result in zip(facts.result_aliases, facts.each_result(value), strict=False):
            if position < 0 or not isinstance(result, Tensor):
                continue
            argument = facts.parameters[position].given(node.args, node.kwargs)
            place = self._values.place(argument)
            if place is None or place.extent.elements or place.extent.symbolic or not result.numel():
                continue
            if place.buffer.kind == "fresh" and _is_only(place) and isinstance(argument, Node):
                self._values[argument] = self._in_new_memory(place, result)

    def _in_new_memory(self, place: Place, value: Tensor) -> Place:
        size, stride, _ = layout_of(value)
        old = self._ledger.read(place)
        node = self._emitter.emit(_NEW_EMPTY, (old, list(size), list(stride)), value, {"dtype": value.dtype})
        return self._new_buffer("fresh", node, value).root

    def _is_given(self, node: Any) -> bool:
        """Whether a value may be the very object that is an input or a constant, and no new tensor over its memory."""
        place = self._values[node]
        if type(place) is Place and place.buffer.kind == "fresh":
            return False
        node = tensor_object(node)
        if node.op == "call_function" and facts_of(node.target).kind is Kind.GETITEM:
            node = node.args[0]
        return node.op != "call_function" or facts_of(node.target).kind not in (Kind.VIEW, Kind.VIEW_LIST)


def _is_only(place: Place) -> bool:
    """Whether nothing else looks at the memory."""
    return place.is_root and len(place.buffer.places) == 1
