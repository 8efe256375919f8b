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
from reink.core.views import strided_place
from reink.passes.refusals import metadata_mutation

Node = torch.fx.Node
Tensor = torch.Tensor

_NEW_EMPTY = torch.ops.aten.new_empty_strided.default
_RESIZING = ("aten.resize_.default", "aten.resize_as_.default")
# What these return is their first operand itself, or an element of it.
_SAME_OBJECT = (Kind.IN_PLACE, Kind.METADATA, Kind.GETITEM)

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
        return self._in_old_memory(place, value)

    def fit_results(self, node: Node, facts: OpFacts) -> None:
        """Give each ``out=`` operand of `node` that has no elements the size that the operator will give it.

        Raises ReinkError for an operator that changes its operand in another way.
        """
        value = node.meta.get("val")
        if facts.name in TURNS_CONJUGATE and isinstance(value, Tensor) and value.is_complex():
            raise metadata_mutation(node, facts)
        values = value if isinstance(value, (list, tuple)) and len(facts.result_aliases) > 1 else (value,)
        for position, result in zip(facts.result_aliases, values, strict=False):
            if position < 0 or not isinstance(result, Tensor):
                continue
            name = facts.parameters[position].name
            argument = node.args[position] if position < len(node.args) else node.kwargs.get(name)
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

    def _in_old_memory(self, place: Place, value: Tensor) -> Place | None:
        """Other sizes for memory that is large enough; what the tensor held stays where it was."""
        size, stride, _ = layout_of(value)
        buffer = place.buffer
        probe = Place(buffer, size, stride, place.offset, place.dtype, place.bits, None, None)
        have, want = buffer.root.hull(), probe.hull()
        if have is None or want is None or want[1] > have[1] or buffer.root.byte_count() != have[1] - have[0]:
            return None
        known = buffer.places.get(probe.key()) or strided_place(probe)
        if known is not None:
            known.suggest_value(value)
            buffer.places.setdefault(known.key(), known)
        return known

    def _is_given(self, node: Any) -> bool:
        """Whether a value may be the very object that is an input or a constant, and no new tensor over its memory."""
        place = self._values[node]
        if type(place) is Place and place.buffer.kind == "fresh":
            return False
        while node.op == "call_function" and facts_of(node.target).kind in _SAME_OBJECT:
            node = node.args[0]
        return node.op != "call_function" or facts_of(node.target).kind not in (Kind.VIEW, Kind.VIEW_LIST)


def _is_only(place: Place) -> bool:
    """Whether nothing else looks at the memory."""
    return place.is_root and len(place.buffer.places) == 1
