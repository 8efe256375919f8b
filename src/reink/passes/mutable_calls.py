"""Mutable operators as functional calls, v1 or v2. A part of functionalize."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, layout_of, may_overlap
from reink.core.calls import (
    auto_functionalized,
    auto_functionalized_effect,
    auto_functionalized_v2,
    written_arguments,
)
from reink.core.emitting import GraphEmitter
from reink.core.ledger import Ledger
from reink.core.opinfo import OpFacts
from reink.core.program import BaseView
from reink.core.values import Pending, Values
from reink.core.views import chain, has_write_back
from reink.passes.refusals import refuse_unwritable, unknown_alias

Node = torch.fx.Node


class MutableCalls:
    """Makes the calls of one graph; `strategy` is ``v1`` or ``v2``."""

    def __init__(self, emitter: GraphEmitter, ledger: Ledger, values: Values, strategy: str) -> None:
        self._emitter, self._ledger, self._values, self._strategy = emitter, ledger, values, strategy

    def call(self, node: Node, facts: OpFacts) -> Node:
        """The functional call for a captured mutable call; binds the new values in the ledger."""
        written = self._written_places(node, facts)
        for place in written:
            refuse_unwritable(node, facts, place, by_call=True)
        if not written:
            # its optional arguments are missing: it writes nothing this time
            return self._emit(auto_functionalized, node, facts, self._values.read(node.args), (), ())
        if self._strategy == "v1" and not facts.ordered and self._fits_v1(node, written):
            return self._v1(node, facts, written)
        return self._v2(node, facts, written)

    def result(self, node: Node, facts: OpFacts, call: Node, k: int, value: Any) -> Any:
        """Result `k` of a mutable operator: the place of the argument that it is, or a result of the call."""
        position = facts.result_aliases[k]
        if position < 0:
            return Pending(call, k, value)
        argument = facts.parameters[position].given(node.args, node.kwargs)
        if isinstance(argument, (list, tuple)) and isinstance(value, (list, tuple)):
            return tuple(self._values.place(a) for a in argument)
        place = self._values.place(argument)
        same = isinstance(value, torch.Tensor) and place is not None and value.dtype == place.dtype
        if place is None or not same or layout_of(value)[:2] != (place.size, place.stride):
            raise unknown_alias(node, facts)
        return place

    def _written_places(self, node: Node, facts: OpFacts) -> list[Place]:
        places: list[Place] = []
        for _, argument in written_arguments(node.target, node.args, node.kwargs):
            place = self._values.place(argument)
            if place is None:
                raise unknown_alias(node, facts)
            places.append(place)
        return places

    def _fits_v1(self, node: Node, written: list[Place]) -> bool:
        """v1 gives every written argument memory of its own: not sayable when two arguments overlap."""
        every = [p for a in (*node.args, *node.kwargs.values()) for p in self._values.places(a)]
        seen: list[Place] = []
        for place in written:
            if not has_write_back(place) or place.overlaps_itself() or any(may_overlap(place, s) for s in seen):
                return False
            seen.append(place)
        readers = [p for p in every if p not in seen]
        aliased = any(every.count(p) > 1 for p in seen)
        return not aliased and not any(may_overlap(p, r) for p in seen for r in readers)

    def _emit(
        self,
        form: Any,
        node: Node,
        facts: OpFacts,
        args: Any,
        extra: Any,
        new: tuple[Any, ...],
        kwargs: Any = None,
    ) -> Node:
        kwargs = self._values.read(dict(node.kwargs)) if kwargs is None else kwargs
        value = (*_own_values(node, facts), *new)
        call = self._emitter.emit(form, (node.target, tuple(args), kwargs, *extra), value)
        if facts.ordered:
            call.meta["reink_ordered"] = True
        return call

    def _v1(self, node: Node, facts: OpFacts, written: list[Place]) -> Node:
        args = self._values.read(node.args)
        call = self._emit(auto_functionalized, node, facts, args, (), tuple(p.value for p in written))
        count = len(facts.result_aliases)
        for k, place in enumerate(written):
            self._ledger.write(place, self._emitter.emit(operator.getitem, (call, count + k), place.value))
        return call

    def _v2(self, node: Node, facts: OpFacts, written: list[Place]) -> Node:
        bases: dict[Buffer, int] = {}
        windows: dict[Buffer, Place | None] = {}
        for place in written:
            bases.setdefault(place.buffer, len(bases))
            windows[place.buffer] = None if place.buffer in windows else place
        shown = _Shown(self._values, bases)
        args = [shown.argument(a) for a in node.args]
        kwargs = {k: shown.argument(v) for k, v in node.kwargs.items()} if node.kwargs else {}
        nodes = tuple([self._ledger.newest(b) for b in bases])
        form = auto_functionalized_effect if facts.ordered and not facts.random else auto_functionalized_v2
        call = self._emit(form, node, facts, args, (nodes,), tuple([b.root.value for b in bases]), kwargs)
        call.meta["reink_views"] = dict(enumerate([_chain_values(p) for p in shown.places]))
        count = len(facts.result_aliases)
        for buffer, k in bases.items():
            new = self._emitter.emit(operator.getitem, (call, count + k), buffer.root.value)
            self._ledger.bind(buffer, new, windows[buffer])
        return call


class _Shown:
    """Arguments of a v2 call: a `BaseView` for every tensor in a written base, in order in `places`."""

    def __init__(self, values: Values, bases: dict[Buffer, int]) -> None:
        self._values, self._bases = values, bases
        self.places: list[Place] = []

    def argument(self, argument: Any) -> Any:
        if type(argument) is Node:
            value = self._values[argument]
            return self._place(value) if type(value) is Place else self._value(value)
        if isinstance(argument, (list, tuple)):
            return type(argument)(self.argument(a) for a in argument)
        return argument

    def _value(self, value: Any) -> Any:
        if type(value) is Place:
            return self._place(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._value(v) for v in value)
        return self._values.read_value(value)

    def _place(self, place: Place) -> Any:
        base = self._bases.get(place.buffer)
        if base is None:
            return self._values.read_value(place)
        self.places.append(place)
        return BaseView(base, chain(place))


def _own_values(node: Node, facts: OpFacts) -> tuple[Any, ...]:
    """The fake values of the results, None for those that are an argument."""
    aliases = facts.result_aliases
    if not aliases:
        return ()
    values = facts.each_result(node.meta.get("val"))
    return tuple(None if a >= 0 else v for a, v in zip(aliases, values, strict=True))


def _chain_values(place: Place) -> tuple[Any, ...]:
    """The fake values after each view step from the base to `place`."""
    values = []
    while place.parent is not None:
        values.append(place.value)
        place = place.parent
    return tuple(values[::-1])
