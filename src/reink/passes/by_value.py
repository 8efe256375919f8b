"""A call on bases taken apart: the operator on values of its own, and scatters that carry them back into the bases.

A part of reinplace. In the pure graph both are the same. Taken apart, the operator can write a copy of its view at once
while the base stays as it was, and the scatter waits until nobody reads the old base any more: where much of a base is
read late and little of it is written, that copies the little.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, may_overlap
from reink.core.calls import auto_functionalized, auto_functionalized_v2, base_views, map_base_views, written_views
from reink.core.emitting import GraphEmitter
from reink.core.fakes import refresh_values
from reink.core.ledger import Ledger, ignore
from reink.core.opinfo import Kind, facts_of
from reink.core.placement_rules import base_view_place
from reink.core.plan import Plan, total
from reink.core.program import BaseView
from reink.core.views import with_write_back
from reink.passes.write_back import view_place

Node = torch.fx.Node

# How many of the calls are taken apart where chance decides.
TAKEN_BY_CHANCE = 0.3


@dataclass(frozen=True, slots=True)
class NewBase:
    """A base that a call has written: `new` is `old` but for `values`, each in its place under `root`."""

    old: Node
    new: Node
    root: Place
    values: dict[Place, Node]


class Journal:
    """What was replaced in a graph, in order, each with the nodes that used it."""

    def __init__(self) -> None:
        self._entries: list[tuple[Node, Node, tuple[Node, ...]]] = []

    def replace(self, old: Node, new: Node) -> None:
        """Let every user of `old` use `new`."""
        self._entries.append((old, new, tuple(old.replace_all_uses_with(new))))

    def replaced(self) -> set[Node]:
        """What something else stands for now."""
        return {old for old, _, _ in self._entries}

    def undo(self) -> None:
        """Use what was replaced again."""
        for old, new, users in reversed(self._entries):
            for user in users:
                user.replace_input_with(new, old)


class TakenApart:
    """A call that was taken apart, which the `journal` has."""

    def __init__(self, bases: list[NewBase], journal: Journal) -> None:
        self.bases, self._journal = bases, journal

    def look_past(self) -> None:
        """Take views of a new base that need not wait for its scatter from the value in it, or from the old base."""
        for base in self.bases:
            self._look_past(base, base.new, base.root)

    def _look_past(self, base: NewBase, tensor: Node, place: Place) -> None:
        for view in list(tensor.users):
            facts = facts_of(view.target)
            if facts.kind is not Kind.VIEW or view.args[0] is not tensor:
                continue
            at = view_place(place, view, facts)
            value = base.values.get(at)
            if value is None and tensor is base.new and not any(may_overlap(at, w) for w in base.values):
                with view.graph.inserting_before(view):
                    value = view.graph.node_copy(view, lambda n: base.old if n is base.new else n)
            if value is None:
                self._look_past(base, view, at)
            else:
                self._journal.replace(view, value)


def with_calls_taken_apart(decide: Callable[[], Plan], dice: random.Random | None = None) -> Plan:
    """The plan that `decide` makes of a program, or the one that it makes once costly calls are taken apart.

    With `dice` chance says which calls those are, and the second plan holds.
    """
    plan = decide()
    graph = plan.program.graph
    before = set(graph.nodes)
    if dice is not None:
        calls = [n for n in graph.nodes if n.target is auto_functionalized_v2 and dice.random() < TAKEN_BY_CHANCE]
    else:
        calls = _costly(plan)
    journal = Journal()
    apart = {c: taken for c in calls if (taken := take_apart(graph, c, journal)) is not None}
    if not apart:
        return plan
    other = decide() if _traced_again(graph, apart.values()) else None
    if other is not None and (dice is not None or _is_cheaper(other, plan)):
        _sweep(graph, {*apart, *journal.replaced()})
        return other
    journal.undo()
    _sweep(graph, set(graph.nodes) - before)
    refresh_values(graph)
    return plan


def _traced_again(graph: torch.fx.Graph, apart: Collection[TakenApart]) -> bool:
    """Give what stands apart its values, which may lie otherwise than those that they stand for; False where a view
    does not take them so."""
    try:
        refresh_values(graph)
        for taken in reversed(list(apart)):
            taken.look_past()
        refresh_values(graph)
    except RuntimeError:
        return False
    return True


def _is_cheaper(other: Plan, plan: Plan) -> bool:
    """Whether `other` copies fewer bytes, as far as is known."""
    copied, left = plan.bytes_copied(), other.bytes_copied()
    return copied is not None and left is not None and left < copied


def _sweep(graph: torch.fx.Graph, nodes: set[Node]) -> None:
    """Erase those of `nodes` that nobody uses."""
    for node in reversed(graph.nodes):
        if node in nodes and not node.users:
            graph.erase_node(node)


def _costly(plan: Plan) -> list[Node]:
    """The calls that copy more than all that they write, out of the way and back, and others that write the same memory
    and little of it: a value that is read late would else be saved for the next of them."""
    copied: dict[Buffer, int] = {}
    calls = [c for c in plan.choices if c.node.target is auto_functionalized_v2 and c.place is not None]
    for choice in calls:
        if choice.bytes and (own := written_bytes(choice.node)) is not None and choice.bytes > 2 * own:
            copied[choice.place.buffer] = copied.get(choice.place.buffer, 0) + choice.bytes  # type: ignore[union-attr]
    found: dict[Node, None] = {}
    for choice in calls:
        most = copied.get(choice.place.buffer, 0)  # type: ignore[union-attr]
        if most and (own := written_bytes(choice.node)) is not None and 2 * own < most:
            found[choice.node] = None
    return list(found)


def take_apart(graph: torch.fx.Graph, call: Node, journal: Journal) -> TakenApart | None:
    """Take a v2 call apart; None if it cannot be said by values, because views that it is given overlap."""
    if call.target is not auto_functionalized_v2 or "reink_ordered" in call.meta:
        return None
    places = _places(call)
    written = _written(call, places)
    if written is None:
        return None
    with graph.inserting_before(call):
        return _TakingApart(graph, call, places, written).run(journal)


def written_bytes(call: Node) -> int | None:
    """How many bytes the views have that a v2 call writes; None if that is symbolic."""
    written = written_views(*call.args[:3])[1]
    return total(p.byte_count() for v, p in _places(call) if id(v) in written)


def _places(call: Node) -> list[tuple[BaseView, Place]]:
    """Where each view of a v2 call lies in a base."""
    _, args, kwargs, bases = call.args
    buffers = [Buffer("fresh", b.name, b.meta["val"]) for b in bases]  # type: ignore[union-attr, arg-type]
    return [(v, base_view_place(buffers[v.base].root, v)) for v in base_views((args, kwargs))]


def _written(call: Node, places: Sequence[tuple[BaseView, Place]]) -> list[Place] | None:
    """The places that the call writes, in its order; None unless each is apart from every other argument."""
    asked = written_views(*call.args[:3])[1]
    found: list[Place] = []
    for view, place in places:
        if id(view) not in asked:
            continue
        home = with_write_back(place)
        if home is None or home.overlaps_itself():
            return None
        found.append(home)
    every = [p for _, p in places]
    for place in found:
        meets = sum(p.buffer is place.buffer and may_overlap(p, place) for p in every)
        if meets > 1:
            return None
    return found


class _Emitter(GraphEmitter):
    """Adds nodes that stand where `call` did in the order of capture."""

    def __init__(self, graph: torch.fx.Graph, call: Node) -> None:
        super().__init__(graph)
        self._call, self.stack_trace = call, call.meta.get("stack_trace")

    def emit(self, target: Any, args: tuple[Any, ...], value: Any, kwargs: dict[str, Any] | None = None) -> Node:
        node = super().emit(target, args, value, kwargs)
        node.meta.pop("reink_order")
        if "reink_order" in self._call.meta:
            node.meta["reink_order"] = self._call.meta["reink_order"]
        return node


class _TakingApart:
    def __init__(
        self, graph: torch.fx.Graph, call: Node, places: list[tuple[BaseView, Place]], written: list[Place]
    ) -> None:
        self.call, self.places, self.written = call, places, written
        self.emitter = _Emitter(graph, call)
        self.ledger = Ledger(self.emitter, ignore)
        self.emitter.read = self.ledger.read
        self.bases: dict[int, NewBase] = {}

    def run(self, journal: Journal) -> TakenApart:
        op, args, kwargs, bases = self.call.args
        self._open(bases)
        asked = written_views(op, args, kwargs)[1]
        shown = dict(zip([id(v) for v, _ in self.places if id(v) in asked], self.written, strict=True))
        read = {id(v): self.ledger.read(shown.get(id(v), p)) for v, p in self.places}
        args, kwargs = (map_base_views(a, lambda v: read[id(v)]) for a in (args, kwargs))
        count = len(facts_of(op).result_aliases)
        value = (*self.call.meta["val"][:count], *(p.value for p in self.written))
        call = self.emitter.emit(auto_functionalized, (op, tuple(args), kwargs), value)
        values: dict[Place, Node] = {}
        for k, place in enumerate(self.written):
            values[place] = self.emitter.emit(operator.getitem, (call, count + k), place.value)
            self.ledger.write(place, values[place])
        for k, base in self.bases.items():
            base.values.update({p: v for p, v in values.items() if p.buffer is base.root.buffer})
            self.bases[k] = replace(base, new=self.ledger.newest(base.root.buffer))
        self._replace(call, count, journal)
        return TakenApart(list(self.bases.values()), journal)

    def _open(self, bases: Any) -> None:
        """Enter each base that the call has views of."""
        for view, place in self.places:
            if view.base not in self.bases:
                old = bases[view.base]
                self.bases[view.base] = NewBase(old, old, place.buffer.root, {})
                self.ledger.open(place.buffer, old)

    def _replace(self, call: Node, count: int, journal: Journal) -> None:
        """Let the users of the results use those of `call` and the new bases."""
        for user in list(self.call.users):
            if facts_of(user.target).kind is not Kind.GETITEM:
                continue
            index: Any = user.args[1]
            if index >= count:
                journal.replace(user, self.bases[index - count].new)
            else:
                journal.replace(user, self.emitter.emit(operator.getitem, (call, index), user.meta.get("val")))
