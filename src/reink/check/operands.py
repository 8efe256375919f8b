"""Do the operands of a lowered node hold the operands of the pure node that it carries out?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeGuard

import torch
import torch.fx

from reink.check.geometry import Geometry, are_integers, concrete
from reink.check.memory import Buffer, Memory, Refuted, SymbolicMemory, number
from reink.core.opinfo import facts_of
from reink.core.program import BaseView, ViewStep
from reink.core.torch_internals import operator_named

Node = torch.fx.Node
Tensor = torch.Tensor
_STRIDED = torch.strided


class Operands:
    """What one lowered node reads: the memory of each operand, and the base that it is a view of or -1.

    `values` and `nodes` are the pure value of each, unless it is a part of a base, and the lowered node.
    """

    __slots__ = ("bases", "homes", "memories", "node", "nodes", "values")

    def __init__(self, node: Node, bases: Sequence[Node] = ()) -> None:
        self.node, self.bases = node, bases
        self.memories: list[tuple[Memory, int]] = []
        self.values: list[Node | None] = []
        self.nodes: list[Node] = []
        self.homes: dict[int, list[Memory]] = {}


class Reader:
    """What each lowered node is: a tensor in memory (`at`), a list of them, or another value."""

    def __init__(self, memory: SymbolicMemory) -> None:
        self.memory, self.geometries = memory, memory.geometries
        self.at: dict[Node, Memory] = {}
        self.lists: dict[Node, list[Memory]] = {}
        self.scalars: dict[Node, tuple[Node, ...]] = {}
        self.sizes: dict[Node, int] = {}

    def agree(self, pure: Any, given: Any, found: Operands) -> None:
        """Raise Refuted unless the argument `given` of a lowered node holds the argument `pure`."""
        kind = type(pure)
        if kind is Node:
            self._agree_value(pure, given, found)
        elif kind is int and type(given) is int:
            if pure != given:
                raise differs(found, pure, given)
        elif kind is BaseView:
            self._agree_base_view(pure, given, found)
        elif isinstance(pure, (list, tuple)):
            if not isinstance(given, (list, tuple)):
                raise differs(found, pure, given)
            self.agree_all(pure, given, found)
        elif isinstance(pure, dict):
            if not isinstance(given, dict) or list(pure) != list(given):
                raise differs(found, pure, given)
            for key, a in pure.items():
                self.agree(a, given[key], found)
        elif kind is slice and type(given) is slice:
            ends = zip((pure.start, pure.stop, pure.step), (given.start, given.stop, given.step), strict=True)
            for a, b in ends:
                self.agree(a, b, found)
        elif pure is not given and (type(given) is not kind or pure != given):
            raise differs(found, pure, given)

    def agree_all(self, pure: Sequence[Any], given: Sequence[Any], found: Operands) -> None:
        """`agree` for each of several arguments."""
        if len(given) != len(pure):
            raise differs(found, pure, given)
        for a, b in zip(pure, given, strict=True):
            if type(a) is Node:
                self._agree_value(a, b, found)
            elif a is not b or type(a) is not int:
                self.agree(a, b, found)

    def _agree_value(self, pure: Node, given: Any, found: Operands) -> None:
        if not isinstance(given, Node):
            raise differs(found, pure, given)
        memory = self.at.get(given)
        if memory is None:
            if pure not in self.scalars.get(given, ()):
                raise differs(found, pure, given)
            return
        if self.memory.holds(pure, memory):
            found.memories.append((memory, -1))
            found.values.append(pure)
            found.nodes.append(given)
        elif not facts_of(found.node.target).looks_at_shape:
            why = self.memory.why_not(pure, memory)
            raise Refuted(f"{named(found.node)} reads {pure.name} in {given.name}: {why}")

    def _agree_base_view(self, view: BaseView, given: Any, found: Operands) -> None:
        """A part of a base: `given` must be that part of memory which holds the base."""
        base = found.bases[view.base]
        memory = self.at.get(given) if isinstance(given, Node) else None
        if memory is None:
            raise differs(found, base, given)
        homes = found.homes.get(view.base)
        if homes is None:
            homes = self._homes(base)
        kept = [h for h in homes if h.buffer is memory.buffer and self.part(h, view.steps) is memory.geometry]
        if not kept:
            whole = Memory(memory.buffer, memory.buffer.root)
            why = self.memory.why_not(base, whole) or f"{memory} is another part of it"
            raise Refuted(f"{named(found.node)} takes {given.name} for a view of {base.name}: {why}")
        found.homes[view.base] = kept
        found.memories.append((memory, view.base))
        found.values.append(None)
        found.nodes.append(given)

    def _homes(self, base: Node) -> list[Memory]:
        """Where a call may take `base` for its own. Elements that share memory must do so in the value too."""
        homes: list[Memory] = []
        for fact, place in self.memory.located(base):
            if fact.converted or self.memory.damage(fact, place) is not None:
                continue
            if not place.overlaps_itself or place.stride == self.geometries.root(base.meta["val"]).stride:
                homes.append(Memory(fact.buffer, place))
        return homes

    def part(self, home: Memory, steps: Iterable[ViewStep]) -> Geometry | None:
        """Where `steps` lead from the tensor in `home`."""
        place: Any = home.geometry
        for step in steps:
            view, part = _view_and_part(step.op)
            if place is not None:
                args = step.args
                place = self.geometries.apply(view, place, args if are_integers(args) else number(args))
            if part >= 0 and type(place) is tuple:
                place = place[part]
        return place if type(place) is Geometry else None

    def memory_of(self, node: Any, reader: Node) -> Memory:
        memory = self.at.get(node)
        if memory is None:
            raise Refuted(f"{named(reader)} needs a tensor and gets {node}")
        return memory

    def numbers_of(self, value: Any) -> Any:
        """Arguments of a lowered node as numbers."""
        if isinstance(value, Node):
            known = self.sizes.get(value)
            return known if known is not None else concrete(self.scalars[value][0].meta["val"])
        if isinstance(value, (list, tuple)):
            args = tuple(value)
            return args if are_integers(args) else tuple([self.numbers_of(v) for v in args])
        return concrete(value)

    def refuse_overlap(self, node: Node, written: Memory, other: Memory) -> None:
        if other.buffer is written.buffer and self.geometries.overlap(other.geometry, written.geometry):
            raise Refuted(f"{named(node)} writes {written} while it reads {other}, which overlaps it")

    def fresh(self, node: Node, geometry: Geometry) -> Memory:
        memory = Memory(Buffer("fresh", node.name, geometry), geometry)
        self.at[node] = memory
        return memory


@cache
def _view_and_part(name: str) -> tuple[Any, int]:
    """The view operator of a step, and the part of the list that it makes or -1."""
    view, _, part = name.rstrip("]").partition("[")
    return operator_named(view), int(part) if part else -1


def is_strided(value: Any) -> TypeGuard[Tensor]:
    """Whether `value` is a tensor that lies in memory by strides."""
    return isinstance(value, Tensor) and value.layout is _STRIDED


def named(node: Node) -> str:
    if node.op == "output":
        return "the result"
    return f"{node.name} ({facts_of(node.target).name})"


def differs(found: Operands, pure: Any, given: Any) -> Refuted:
    return Refuted(f"{named(found.node)} gets {given} where {pure} belongs")
