"""Which writes go to a copy of their storage, and which old values are saved instead: the fewest bytes, exactly.

A part of reinplace. The order of the writes is fixed, and each storage is solved by itself. An old value that is read
late comes to be at some write and is first destroyed by a later one. It is safe if one of the writes between goes to a
copy (a *detach*, which leaves all old values where they are), and else it is saved, at the bytes of its region. So the
detached writes are points that stab intervals, and every interval that is missed costs a penalty.

Bytes of the model: a detach copies the whole storage, or nothing if the write overwrites all of it; of an input the
newest version is once copied back. Values that the same write destroys share what they have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch.fx

from reink.core.aliasing import Buffer
from reink.core.plan import Plan

Node = torch.fx.Node

# A write: the node, and which of its written operands.
Key = tuple[Node, int]


@dataclass(frozen=True, slots=True)
class Kept:
    """An old value that is read late: `born` writes came before it, write number `lost` destroys it, and saving it
    copies `cost` bytes."""

    born: int
    lost: int
    cost: int


def cheapest(detaching: Sequence[int], kept: Iterable[Kept], back: int = 0) -> tuple[int, list[int]]:
    """The fewest bytes, and the numbers of the writes that are detached for it.

    `detaching` is what each write copies if it is detached, and `back` what is copied once if any is. A dynamic
    programme over the last detached write, in time near-linear in writes and values.
    """
    ending: dict[int, list[Kept]] = {}
    total = 0
    for value in kept:
        ending.setdefault(value.lost, []).append(value)
        total += value.cost
    states = _States()
    for number, cost in enumerate(detaching):
        states.add(number, cost + states.least())
        for value in ending.get(number, ()):
            states.charge(value.born, value.cost)
    if back + states.least() >= total:
        return total, []
    return back + states.least(), states.chosen()


class _States:
    """The least cost of each choice for the last detached write, as far as it can still be the best.

    A state that is older than another and no cheaper never becomes the best: penalties fall on older ones at least as
    often. So costs rise with the number; only the differences are kept, and a penalty changes one of them.
    """

    def __init__(self) -> None:
        # numbers are shifted by one: state 0 stands for no write at all
        self._first, self._last, self._least, self._greatest = 0, 0, 0, 0
        self._step: list[int] = [0]  # how much dearer a state is than the one before it
        self._before: list[int] = [-1]
        self._living: list[int] = [0]  # the state itself, or one after it that stands for it
        self._from: list[int] = [-1]  # the detached write before this one

    def least(self) -> int:
        """The cost of the best state."""
        return self._least

    def add(self, number: int, cost: int) -> None:
        """One more write can be the last that is detached, at `cost` in all."""
        state = number + 1
        self._from.append(self._first)
        self._living.append(state)
        while self._last >= 0 and self._greatest >= cost:
            self._living[self._last] = state
            self._greatest -= self._step[self._last]
            self._last = self._before[self._last]
        self._before.append(self._last)
        if self._last < 0:
            self._first, self._least = state, cost
            self._step.append(0)
        else:
            self._step.append(cost - self._greatest)
        self._last, self._greatest = state, cost

    def charge(self, born: int, cost: int) -> None:
        """A value that `born` writes came before is not safe if the last detached write is one of those."""
        bound = self._first_living(born + 1)
        if bound == self._first:
            return
        self._least += cost
        if bound < 0:
            self._greatest += cost
            return
        self._step[bound] -= cost
        while self._step[bound] <= 0:
            self._drop_before(bound)
            if bound == self._first:
                return

    def _drop_before(self, state: int) -> None:
        """The state before `state` costs no less any more."""
        dropped, over = self._before[state], self._step[state]
        self._living[dropped] = state
        before = self._before[state] = self._before[dropped]
        if before < 0:
            self._first, self._least, self._step[state] = state, self._least + over, 0
            return
        self._step[state] = self._step[dropped] + over

    def _first_living(self, state: int) -> int:
        """The first state from `state` on that is still kept, or -1."""
        if state >= len(self._living):
            return -1
        path = []
        while self._living[state] != state:
            path.append(state)
            state = self._living[state]
        for passed in path:
            self._living[passed] = state
        return state

    def chosen(self) -> list[int]:
        """The detached writes of the best state, first to last."""
        found, state = [], self._first
        while state > 0:
            found.append(state - 1)
            state = self._from[state]
        return found[::-1]


@dataclass(slots=True)
class _Storage:
    """The writes of one storage that may be detached, and what they destroy."""

    back: int
    keys: list[frozenset[Key]] = field(default_factory=list)
    detaching: list[int] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)


class Conflicts:
    """What a walk that saves every old value met, storage by storage.

    `parts` are writes of a part that is smaller than what they would have saved. Made elsewhere, the part can be
    carried back when nobody reads the old value any more.
    """

    def __init__(self) -> None:
        self.parts: dict[Key, None] = {}
        self._storages: dict[Buffer, _Storage] = {}
        self._born: dict[Node, int] = {}

    def define(self, value: Node, buffer: Buffer) -> None:
        """`value` comes to be, in `buffer`."""
        storage = self._storages.get(buffer)
        if storage is not None:
            self._born[value] = len(storage.keys)

    def write(self, buffer: Buffer, keys: Iterable[Key], cost: int, back: int) -> None:
        """A write that would copy `cost` bytes if it were detached, and with it all of `keys`."""
        storage = self._storages.setdefault(buffer, _Storage(back))
        storage.keys.append(frozenset(keys))
        storage.detaching.append(cost)

    def born(self, value: Node) -> int:
        """How many writes of its storage came before `value`."""
        return self._born.get(value, 0)

    def keep(self, buffer: Buffer, born: int, cost: int) -> None:
        """The write that was entered last destroys a value, which is saved."""
        storage = self._storages[buffer]
        storage.kept.append(Kept(born, len(storage.keys) - 1, cost))

    def solve(self) -> tuple[int, frozenset[Key]]:
        """How many bytes fewer than by saving everything the best choice copies, and the writes that it detaches."""
        spared, detached = 0, frozenset[Key]()
        for storage in self._storages.values():
            least, chosen = cheapest(storage.detaching, storage.kept, storage.back)
            spared += sum(k.cost for k in storage.kept) - least
            detached = detached.union(*(storage.keys[n] for n in chosen))
        return spared, detached


# A plan in which the given writes are detached, small parts are made elsewhere if so asked, and else all is saved; and
# what stood in the way.
Decide = Callable[[frozenset[Key], bool], tuple[Plan, Conflicts]]


# How many nodes a search may walk over to decide part by part.
MOST_VISITS = 2_000


def cheapest_plan(decide: Decide, nodes: int) -> Plan:
    """The plan that copies the fewest bytes: with all small parts written where they are, or all made elsewhere, and
    then with each of them the other way, as far as a graph of so many `nodes` allows."""
    plan, met = decide(frozenset(), False)
    best, parts, chosen = _solved(decide, plan, met, False), dict(met.parts), frozenset[Key]()
    if not parts:
        return best
    plan, met = decide(frozenset(), True)
    other = _solved(decide, plan, met, True)
    if _bytes(other) < _bytes(best):
        best, chosen = other, frozenset(met.parts)
    for key in list(parts | met.parts)[: MOST_VISITS // max(nodes, 1)]:
        flipped = chosen ^ {key}
        plan, met = decide(flipped, False)
        other = _solved(decide, plan, met, False, flipped)
        if _bytes(other) < _bytes(best):
            best, chosen = other, flipped
    return best


def _solved(decide: Decide, plan: Plan, met: Conflicts, apart: bool, elsewhere: frozenset[Key] = frozenset()) -> Plan:
    """`plan`, or the one with the writes detached that the model says; and its lower bound."""
    copied, (spared, detached) = plan.bytes_copied(), met.solve()
    if copied is None or not spared:
        plan.needed = copied
        return plan
    other, _ = decide(elsewhere | detached, apart)
    best = min(plan, other, key=_bytes)
    best.needed = min(copied - spared, int(_bytes(best)))
    return best


def _bytes(plan: Plan) -> float:
    copied = plan.bytes_copied()
    return math.inf if copied is None else copied
