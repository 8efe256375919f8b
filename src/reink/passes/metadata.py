"""Operators that change what a tensor is: its sizes, its strides, which memory it has. A part of functionalize.

``x.unsqueeze_(0)`` makes the object `x` a view of what it was, so its name stands for another place from then on. Where
the caller holds the object, the signature says what it becomes. ``x.set_(y)`` makes it a name for the place of `y`. A
tensor of the graph's own may get other sizes: in the memory that it has, or in new memory while nothing else looks at
the old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, layout_of, view_value
from reink.core.emitting import GraphEmitter
from reink.core.ledger import Ledger
from reink.core.opinfo import TURNS_CONJUGATE, Kind, OpFacts, facts_of
from reink.core.program import ObjectChange, ViewStep
from reink.core.values import Values
from reink.core.views import chain, place_by_geometry, with_write_back
from reink.passes.outputs import tensor_object
from reink.passes.refusals import given_other_memory, metadata_mutation, outgrown_input

Node = torch.fx.Node
Tensor = torch.Tensor

_NEW_EMPTY = torch.ops.aten.new_empty_strided.default
_RESIZING = ("aten.resize_.default", "aten.resize_as_.default")
_SETTING = "aten.set_.source_Tensor"
# It makes a tensor forget its past for autograd, which no view of it says.
_DETACHING = "aten.detach_.default"

NewBuffer = Callable[[str, Node, Tensor], Buffer]


class MetadataChanges:
    """The changes of one graph; `new_buffer` enters memory that a node brings into it.

    `reshaped`: the inputs of the graph that have been changed so far, themselves or one of their views.
    """

    def __init__(self, emitter: GraphEmitter, ledger: Ledger, values: Values, new_buffer: NewBuffer) -> None:
        self._emitter, self._ledger, self._values, self._new_buffer = emitter, ledger, values, new_buffer
        self.reshaped: set[int] = set()

    def view(self, node: Node, facts: OpFacts) -> OpFacts:
        """The view operator that says what `node` makes of its operand. Raises ReinkError if there is none."""
        view, operand = facts_of(facts.twin) if facts.twin is not None else facts, node.args[0]
        if view.kind is not Kind.VIEW:
            raise metadata_mutation(node, facts)
        if self._is_given(operand) and (facts.name == _DETACHING or self._buffer(operand).kind == "constant"):
            raise metadata_mutation(node, facts)
        self._note(operand)
        return view

    def moved(self, node: Node, facts: OpFacts) -> Place | None:
        """Where the tensor lies after a `resize_` or `set_`; None for another operator. Raises ReinkError."""
        place = self._values.place(node.args[0])
        if place is None:
            return None
        if facts.name in _RESIZING:
            return self._resized(node, facts, place)
        return self._set(node, facts, place) if facts.name == _SETTING else None

    def _resized(self, node: Node, facts: OpFacts, place: Place) -> Place | None:
        before: Any = node.args[0]
        value, buffer = node.meta["val"], place.buffer
        if place.bits:  # eager resizes a copy without the lazy bits
            raise metadata_mutation(node, facts)
        if layout_of(before.meta["val"]) == layout_of(value):
            return place
        if buffer.kind == "constant" or place.is_symbolic():
            return None
        if buffer.kind == "fresh" and place.extent.elements == 0 and self._is_only(before, place):
            return self._in_new_memory(place, value)
        if place.extent.elements == 0 and not place.is_root:  # PyTorch's operators differ in where it begins
            raise metadata_mutation(node, facts)
        found = place_by_geometry(buffer, value, place.bits)
        if buffer.kind == "input":
            if found is None:
                raise outgrown_input(node, facts, buffer)
            self._note(before)
        elif found is None and self._is_only(before, place):
            found = self._in_more_memory(place, value)
        return found

    def _set(self, node: Node, facts: OpFacts, place: Place) -> Place:
        """`x.set_(y)`: the name of `x` stands for the place of `y`."""
        other = self._values.place(node.args[1])
        if other is None or other.bits or place.bits or self._is_given(node.args[0]):
            raise given_other_memory(node, facts, tensor_object(node).name)
        self._note(node.args[0])
        return other

    def require_views(self, objects: Sequence[Any], changes: Sequence[ObjectChange]) -> None:
        """Refuse the end of a graph where an input has become something else than a view of its own memory.

        `objects` are what each of the changed inputs is at the end.
        """
        for node, change in zip(objects, changes, strict=True):
            place, origin = self._values.place(node), self._values.place(tensor_object(node))
            own = place is not None and origin is not None and origin.buffer is place.buffer
            if place is None or not own or place.buffer.kind != "input" or not _ends_as(node.meta["val"], place):
                last = _last_change(node)
                raise given_other_memory(last, facts_of(last.target), change.name)

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
            if place.buffer.kind == "input":
                raise outgrown_input(node, facts, place.buffer)
            if place.buffer.kind == "fresh" and isinstance(argument, Node) and self._is_only(argument, place):
                self._values[argument] = self._in_new_memory(place, result)

    def _in_new_memory(self, place: Place, value: Tensor) -> Place:
        size, stride, _ = layout_of(value)
        old = self._ledger.read(place)
        node = self._emitter.emit(_NEW_EMPTY, (old, list(size), list(stride)), value, {"dtype": value.dtype})
        return self._new_buffer("fresh", node, value).root

    def _in_more_memory(self, place: Place, value: Tensor) -> Place | None:
        """New memory that begins with all that the old has; None if there is no view that says so."""
        reach, bits = place.extent.reach, place.bits
        new = self._in_new_memory(place, value)
        flat = ViewStep("aten.as_strided.default", ([reach], [1]))
        old = place.at(flat, (reach,), (1,), place.offset, place.dtype, bits)
        head = with_write_back(new.at(flat, (reach,), (1,), 0, new.dtype, new.bits))
        if head is None or new.bits != bits:
            return None
        self._ledger.write(head, self._ledger.read(old))
        return new

    def _note(self, operand: Any) -> None:
        buffer = self._buffer(operand)
        if buffer.kind == "input":
            self.reshaped.add(buffer.input_index)

    def _buffer(self, operand: Any) -> Buffer:
        place = self._values.place(operand)
        assert place is not None
        return place.buffer

    def _is_given(self, node: Any) -> bool:
        """Whether a value may be the very object that is an input or a constant, and no new tensor over its memory."""
        place = self._values[node]
        if type(place) is Place and place.buffer.kind == "fresh":
            return False
        node = tensor_object(node)
        if node.op == "call_function" and facts_of(node.target).kind is Kind.GETITEM:
            node = node.args[0]
        return node.op != "call_function" or facts_of(node.target).kind not in (Kind.VIEW, Kind.VIEW_LIST, Kind.PURE)

    def _is_only(self, node: Node, place: Place) -> bool:
        """Whether nothing but the tensor object `node` looks at the memory of `place`, which is all of it.

        What a functional scatter returns lies in a copy of all of the storage of its operand.
        """
        origin, buffer = tensor_object(node), place.buffer
        if not place.is_root or facts_of(origin.target).window:
            return False
        others = (n for n in self._values if tensor_object(n) is not origin)
        return not any(p.buffer is buffer for n in others for p in self._values.places(n))


def _ends_as(value: Tensor, place: Place) -> bool:
    """Whether the views that lead to `place` make what the tensor is in the end; an empty one may begin elsewhere."""
    found: Tensor = place.buffer.root.value
    for step in chain(place):
        found = view_value(found, step)
    wanted, made = layout_of(value), layout_of(found)
    return wanted[:2] == made[:2] and (wanted[2] == made[2] or type(made[2]) is not int)


def _last_change(node: Node) -> Node:
    """The last operator that changed the tensor object `node`, past those that only wrote it."""
    last = node
    while last.op == "call_function" and facts_of(last.target).kind is Kind.IN_PLACE:
        last = last.args[0]  # type: ignore[assignment]
    return last if last.op == "call_function" else node
