"""Symbolic memory: which value of the pure program each part of a buffer holds, and what was overwritten.

A `Fact` says "this value was put here"; a write adds a `Damage` to every fact that it meets. A value is held
somewhere if a fact puts it there and no damage touches the bytes. Views of a value are held where the view
of its memory is, so they need no fact of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from reink.check.geometry import Geometries, Geometry, are_integers, concrete, same_strides, size_of
from reink.core.opinfo import Kind, facts_of, positional

Node = torch.fx.Node
aten = torch.ops.aten

# The view that a scatter writes through.
WINDOWS: dict[Any, Any] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}
# By identity, because hashing an operator is slow.
WINDOW_OF = {id(scatter): view for scatter, view in WINDOWS.items()}

# How many writes a view is looked for behind.
MOST_PASSED = 64
# Facts with a future in one buffer; a program with more is not checked and falls back.
LARGEST_CROWD = 512
# Damages kept apart for their messages before neighbours are merged.
SEPARATE_DAMAGES = 8

# Kept at hand: to look up an operator or a kind by its path costs as much as a whole rule.
_AS_STRIDED, _ALIAS = aten.as_strided.default, aten.alias.default
_VIEW, _VIEW_LIST, _GETITEM = Kind.VIEW, Kind.VIEW_LIST, Kind.GETITEM
# Stands for what was not looked up yet, where None is an answer.
_UNKNOWN: Any = object()


class Refuted(Exception):
    """The lowered program does not do what the functional one says; the message is what a person reads."""


class Impossible(Refuted):
    """No size of this kind can be: where only the data decide it, it is another."""


@dataclass(slots=True, eq=False)
class Damage:
    """Bytes that `writer`, a node of the lowered program, wrote."""

    geometry: Geometry
    writer: Node


@dataclass(slots=True, eq=False)
class Buffer:
    """One storage of the lowered program: ``input``, ``constant`` or ``fresh``."""

    kind: str
    name: str
    root: Geometry
    index: int = -1
    facts: list[Fact] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Memory:
    """Where a tensor of the lowered program lies."""

    buffer: Buffer
    geometry: Geometry

    def __str__(self) -> str:
        return f"{self.buffer.name} {self.geometry}"


@dataclass(slots=True, eq=False)
class Fact:
    """`value` was put into `buffer` at `geometry`. `converted`: cast to the dtype of the memory."""

    value: Node
    buffer: Buffer
    geometry: Geometry
    converted: bool
    damage: list[Damage]


@dataclass(slots=True, eq=False)
class ViewOf:
    """A functional view node: the value it views, the operator, its numbers, and the part of a list or -1."""

    parent: Node
    target: Any
    args: tuple[Any, ...]
    part: int


class SymbolicMemory:
    """The facts of all buffers. `last` is the position of each value's last use, views included.

    `views` are the nodes of the pure program that may be views of others.
    """

    def __init__(self, last: dict[Node, float], views: set[Node], writable: frozenset[int]) -> None:
        self.geometries = Geometries()
        self.last, self.views, self.writable = last, views, writable
        self.now: float = 0
        self.where: dict[Node, list[Fact]] = {}
        self.notes: dict[Node, str] = {}
        self._views: dict[Node, ViewOf | None] = {}

    # -- what is where -----------------------------------------------------------------------------------

    def located(self, value: Node) -> Iterable[tuple[Fact, Geometry]]:
        """Everywhere that `value` was put or is a view of what was put there, damaged or not."""
        found = [(fact, fact.geometry) for fact in self.where.get(value, ())]
        if value in self.views:
            found.extend(self._seen(value))
        return found

    def _seen(self, value: Node) -> Iterator[tuple[Fact, Geometry]]:
        """Everywhere that `value` is a view of what was put there."""
        return self._climbed(self.view_of(value))

    def _climbed(self, view: ViewOf | None) -> Iterator[tuple[Fact, Geometry]]:
        """Everywhere that a tensor was put of which `view` leads to a part."""
        where, steps = self.where, list[ViewOf]()
        while view is not None:
            steps.append(view)
            for fact in where.get(view.parent, ()):
                geometry = None if fact.converted else self._through(steps, fact.geometry)
                if geometry is not None:
                    yield fact, geometry
            view = self.view_of(view.parent)

    def _through(self, steps: list[ViewOf], geometry: Geometry) -> Geometry | None:
        """The place of the view that `steps`, innermost first, make of a tensor in `geometry`."""
        if len(steps) == 1:
            return self.viewed(steps[0], geometry)
        found: Geometry | None = geometry
        for step in reversed(steps):
            if found is None:
                return None
            found = self.viewed(step, found)
        return found

    def viewed(self, view: ViewOf, geometry: Geometry) -> Geometry | None:
        """Where `view` lies when its parent is in `geometry`."""
        found = self.window(view.parent, view.target, view.args, geometry)
        if view.part >= 0 and type(found) is tuple:
            found = found[view.part] if view.part < len(found) else None
        return found if type(found) is Geometry else None

    def window(self, value: Node, target: Any, args: tuple[Any, ...], geometry: Geometry) -> Any:
        """What the view operator `target` makes of `value` in `geometry`, as `Geometries.apply` tells it."""
        if target is _AS_STRIDED:
            return self._strided(value, args, geometry)
        return self.geometries.apply(target, geometry, args)

    def _strided(self, parent: Node, args: tuple[Any, ...], geometry: Geometry) -> Geometry | None:
        """`as_strided` means what it says only where the memory has the strides of the value itself."""
        value = parent.meta["val"]
        if not same_strides(self.geometries.root(value), geometry):
            return None
        start = args[2] if len(args) > 2 else None
        moved = 0 if start is None else start - concrete(value.storage_offset())
        return self.geometries.strided(geometry, args[0], args[1], moved)

    def view_of(self, value: Node) -> ViewOf | None:
        """What `value` is a view of, if it is one."""
        if value not in self.views:
            return None
        found: ViewOf | None = self._views.get(value, _UNKNOWN)
        if found is _UNKNOWN:
            found = self._views[value] = _view_of(value)
        return found

    def hold_past(self, value: Node) -> None:
        """`value` is a view of a write that was left for later: it is where what it shows is now."""
        view = self.view_of(value)
        found = [f for past in self._past_writes(view) for f in self._climbed(past)] if view is not None else []
        for fact, place in found:
            self.hold(value, Memory(fact.buffer, place), damage=self.damage_within(fact, place))

    def _past_writes(self, view: ViewOf) -> Iterator[ViewOf]:
        """The same view of what its parent is before writes that it shows nothing of, nearest first, or the very value
        that one of them writes."""
        seen: Any = None
        for _ in range(MOST_PASSED):
            scatter = view.parent
            if id(scatter.target) not in WINDOW_OF or view.part >= 0:
                return
            base, update = scatter.args[:2]
            if seen is None:
                root = self.geometries.root(scatter.meta["val"])
                seen = self.window(scatter, view.target, view.args, root)
            window = self.window(scatter, WINDOW_OF[id(scatter.target)], numbers(scatter, 2), root)
            if type(seen) is not Geometry or type(window) is not Geometry or root.overlaps_itself:
                return
            if self.geometries.overlap(seen, window):
                if seen is window and isinstance(update, Node) and _is_alike(update, seen):
                    yield ViewOf(update, _ALIAS, (), -1)
                return
            view = ViewOf(base, view.target, view.args, -1)  # type: ignore[arg-type]
            yield view

    def why_not(self, value: Node, memory: Memory) -> str:
        """Empty if `memory` holds `value` now, else why it does not."""
        buffer, geometry = memory.buffer, memory.geometry
        reason = ""
        for fact, place in self.located(value):
            if place is geometry and fact.buffer is buffer and not fact.converted:
                damage = self.damage(fact, place)
                if damage is None:
                    return ""
                writer = f"{damage.writer.name} ({_called(damage.writer)})"
                reason = f"{value.name} was there, and {writer} overwrote it"
        return reason or f"{memory} never held {value.name}{self._elsewhere(value)}"

    def holds(self, value: Node, memory: Memory) -> bool:
        """Whether `memory` holds `value` now."""
        buffer, geometry = memory.buffer, memory.geometry
        for fact in self.where.get(value, ()):
            there = fact.geometry is geometry and fact.buffer is buffer and not fact.converted
            if there and (not fact.damage or self.damage(fact, geometry) is None):
                return True
        if value not in self.views:
            return False
        return self._holds_base(value, memory)

    def _holds_base(self, value: Node, memory: Memory) -> bool:
        """Whether `memory` is where the view `value` lies in something that is held now."""
        buffer, geometry = memory.buffer, memory.geometry
        view = self.view_of(value)
        if view is None:
            return False
        for fact in self.where.get(view.parent, ()):
            there = fact.buffer is buffer and not fact.converted and self.viewed(view, fact.geometry) is geometry
            if there and (not fact.damage or self.damage(fact, geometry) is None):
                return True
        if view.parent not in self.views:
            return False
        for fact, place in self._seen(value):
            if place is geometry and fact.buffer is buffer and self.damage(fact, geometry) is None:
                return True
        return False

    def _elsewhere(self, value: Node) -> str:
        places = [f"{f.buffer.name} {g}" for f, g in self.located(value) if self.damage(f, g) is None]
        if places:
            return f", which is in {places[0]}"
        return f": {self.notes[value]}" if value in self.notes else ", which is nowhere"

    def damage(self, fact: Fact, geometry: Geometry) -> Damage | None:
        """The first write since `fact` that met bytes of `geometry`."""
        for damage in fact.damage:
            if self.geometries.overlap(damage.geometry, geometry):
                return damage
        return None

    def damage_outside(self, fact: Fact, geometry: Geometry, window: Geometry) -> list[Damage]:
        """The writes since `fact` that met bytes of `geometry` and are not all inside `window`."""
        inside, overlap = self.geometries.inside, self.geometries.overlap
        return [d for d in fact.damage if not inside(d.geometry, window) and overlap(d.geometry, geometry)]

    def damage_within(self, fact: Fact, geometry: Geometry) -> list[Damage]:
        """All writes since `fact` that met bytes of `geometry`."""
        return [d for d in fact.damage if self.geometries.overlap(d.geometry, geometry)]

    # -- what happens ------------------------------------------------------------------------------------

    def hold(self, value: Node, memory: Memory, converted: bool = False, damage: Sequence[Damage] = ()) -> None:
        """From here on `memory` holds `value`, but for `damage`. Without a further use: not recorded."""
        if self.last.get(value, -1) < self.now:
            return
        facts = self.where.get(value)
        if facts is None:
            facts = self.where[value] = []
        buffer, geometry = memory.buffer, memory.geometry
        for fact in facts:
            if fact.geometry is geometry and fact.buffer is buffer:
                fact.damage, fact.converted = [*damage], converted
                return
        fact = Fact(value, buffer, geometry, converted, [*damage])
        facts.append(fact)
        buffer.facts.append(fact)

    def write(self, memory: Memory, writer: Node) -> None:
        """`writer` overwrites `memory`. Raises Refuted where nobody may write."""
        buffer, geometry = memory.buffer, memory.geometry
        if geometry is not buffer.root and not self.geometries.inside(geometry, buffer.root):
            raise Refuted(f"{writer.name} ({_called(writer)}) writes {memory}, beyond {buffer.name}")
        if buffer.kind == "constant" or (buffer.kind == "input" and buffer.index not in self.writable):
            whose = "a constant" if buffer.kind == "constant" else "an input that the program does not write"
            raise Refuted(f"{writer.name} ({_called(writer)}) writes {buffer.name}, {whose}")
        kept: list[Fact] = []
        damage = Damage(geometry, writer)
        last, now, overlap, forget = self.last, self.now, self.geometries.overlap, self.where.pop
        for fact in buffer.facts:
            value = fact.value
            if last[value] < now:
                forget(value, None)
                continue
            kept.append(fact)
            if overlap(fact.geometry, geometry):
                self._add_damage(fact, damage)
        buffer.facts = kept
        if len(kept) > LARGEST_CROWD:
            raise Refuted(f"too many fragments: {buffer.name} holds {len(kept)} values at {writer.name}")

    def _add_damage(self, fact: Fact, damage: Damage) -> None:
        """Append, or grow the last one when many writes walk along the buffer."""
        known = fact.damage
        if len(known) >= SEPARATE_DAMAGES:
            last, new = known[-1].geometry, damage.geometry
            if last.is_solid and new.is_solid and new.lo <= last.hi and last.lo <= new.hi:
                whole = self.geometries.interval(min(last.lo, new.lo), max(last.hi, new.hi))
                known[-1] = Damage(whole, known[-1].writer)
                return
        known.append(damage)


def _is_alike(update: Node, window: Geometry) -> bool:
    value = update.meta["val"]
    return value.dtype == window.dtype and size_of(value) == window.size


def _view_of(value: Node) -> ViewOf | None:
    if value.op != "call_function":
        return None
    kind = facts_of(value.target).kind
    if kind is _VIEW:
        return ViewOf(value.args[0], value.target, numbers(value), -1)  # type: ignore[arg-type]
    if kind is _GETITEM:
        whole, part = value.args
        if not isinstance(whole, Node) or whole.op != "call_function" or not isinstance(part, int):
            return None
        if facts_of(whole.target).kind is _VIEW_LIST:
            return ViewOf(whole.args[0], whole.target, numbers(whole), part)  # type: ignore[arg-type]
    return None


def numbers(node: Node, start: int = 1) -> tuple[Any, ...]:
    """The arguments of a functional node from `start` on as numbers, keyword ones in their place."""
    args = positional(facts_of(node.target), node, start) if node.kwargs else node.args[start:]
    return args if are_integers(args) else tuple([number(a) for a in args])


def number(value: Any) -> Any:
    """`value` with nodes of the pure program and symbolic integers replaced by a number, lists by tuples."""
    if isinstance(value, Node):
        return concrete(value.meta["val"])
    if isinstance(value, (list, tuple)):
        return tuple([v if type(v) is int else number(v) for v in value])
    return concrete(value)


def _called(node: Node) -> str:
    return facts_of(node.target).name
