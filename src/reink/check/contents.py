"""What one storage holds, region by region: stores, newest on top, and what a load finds.

The bytes are cut into intervals where a store begins or ends, each with the stores that still show in it. A store of
solid bytes is alone in its interval, so a program that writes row after row finds each by bisection. A load that one
store covers is a part of that store's number; else the pieces are put together, as far as they are not too many.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from reink.check.geometry import Geometries, Geometry
from reink.check.terms import LAYERS, MOST_PIECES, Number, Numbering, TooLarge, Undecided

aten = torch.ops.aten

# Stores that may lie upon one another in an interval before they are put together.
HIGHEST_PILE = 16
# The same where that cannot be done.
HIGHEST_UNSOLVED_PILE = 512
# Regions that one load may be cut into.
MOST_REGIONS = 256


@dataclass(slots=True, eq=False)
class Store:
    """`number` was stored in `geometry`; `age` orders the stores of all storages."""

    geometry: Geometry
    number: Number
    age: int


Pile = tuple[Store, ...]


class Contents:
    """The stores that still show in one storage: interval k begins at ``starts[k]`` and shows ``piles[k]``."""

    __slots__ = ("geometries", "numbering", "piles", "starts")

    def __init__(self, geometries: Geometries, numbering: Numbering) -> None:
        self.geometries, self.numbering = geometries, numbering
        self.starts: list[int] = [0]
        self.piles: list[Pile] = [()]

    def copy(self) -> Contents:
        """The same content, to be written apart."""
        made = Contents(self.geometries, self.numbering)
        made.starts, made.piles = self.starts.copy(), self.piles.copy()
        return made

    # -- store -----------------------------------------------------------------------------------

    def store(self, geometry: Geometry, number: Number, age: int) -> None:
        """Put `number`, as bytes of memory, into `geometry`. Raises Undecided where elements share memory."""
        if geometry.is_empty:
            return
        if geometry.overlaps_itself:
            raise Undecided(f"a write to {geometry}, whose elements share memory")
        assert number.count == math.prod(geometry.size) * geometry.dtype.itemsize, (geometry, number.count)
        new = Store(geometry, number, age)
        if geometry.is_solid:
            first, last = self._cut(geometry.lo), self._cut(geometry.hi)
            self.starts[first:last], self.piles[first:last] = [geometry.lo], [(new,)]
            return
        inside = self.geometries.inside
        for k in range(*self._touched(geometry)):
            self.piles[k] = (*(s for s in self.piles[k] if not inside(s.geometry, geometry)), new)
            if len(self.piles[k]) > HIGHEST_PILE:
                self._put_together(k, age)

    def _cut(self, at: int) -> int:
        """The interval that begins at byte `at`, made if there is none."""
        k = bisect_left(self.starts, at)
        if k == len(self.starts) or self.starts[k] != at:
            self.starts.insert(k, at)
            self.piles.insert(k, self.piles[k - 1])
        return k

    def _touched(self, geometry: Geometry) -> tuple[int, int]:
        """The first interval that holds bytes between the ends of `geometry`, and one past the last."""
        return bisect_right(self.starts, geometry.lo) - 1, bisect_left(self.starts, geometry.hi)

    def _put_together(self, k: int, age: int) -> None:
        """One store for all that an interval shows."""
        lo = self.starts[k]
        hi = self.starts[k + 1] if k + 1 < len(self.starts) else max(s.geometry.hi for s in self.piles[k])
        if hi - lo <= MOST_PIECES and any(_covers(s, lo, hi) for s in self.piles[k]):
            whole = self.geometries.interval(lo, hi)
            self.piles[k] = (Store(whole, self.load(whole), age),)
        elif len(self.piles[k]) > HIGHEST_UNSOLVED_PILE:
            raise Undecided(f"{len(self.piles[k])} writes lie upon one another")

    # -- load ------------------------------------------------------------------------------------

    def load(self, geometry: Geometry) -> Number:
        """The bytes in `geometry`, in logical order. Raises Undecided."""
        if geometry.is_empty:
            return self.numbering.of_codes(torch.empty(0, dtype=torch.int64, device="cpu"), 1)
        try:
            return self._load(geometry, [MOST_REGIONS])
        except TooLarge:
            return self._layers(geometry)

    def _load(self, geometry: Geometry, left: list[int]) -> Number:
        """`load`; `left` counts the regions that may still be looked at."""
        shown = self._shown(geometry)
        if len(shown) == 1 and self.geometries.inside(geometry, shown[0].geometry):
            found = self.numbering.part(shown[0].number, shown[0].geometry, geometry)
            if found is not None:
                return found
        pieces = self._pieces(geometry, shown)
        if pieces is not None:
            return pieces
        parts = self._intervals(geometry)
        if not parts:
            left[0] -= 1
            if left[0] < 0:
                raise TooLarge(f"more than {MOST_REGIONS} regions make up {geometry}")
            parts = self._halves(geometry)
        return self.numbering.joined([self._load(part, left) for part in parts])

    def _shown(self, geometry: Geometry) -> list[Store]:
        """The stores that show in `geometry`, newest first, down to one that has all of it."""
        first, last = self._touched(geometry)
        if last == first + 1:
            found: Iterable[Store] = reversed(self.piles[first])
        else:
            every = dict.fromkeys(s for pile in self.piles[first:last] for s in pile)
            found = sorted(every, key=_age, reverse=True)
        shown: list[Store] = []
        overlap, inside = self.geometries.overlap, self.geometries.inside
        for store in found:
            if store.geometry is geometry or inside(geometry, store.geometry):
                shown.append(store)
                break
            if overlap(store.geometry, geometry):
                shown.append(store)
        return shown

    def _pieces(self, geometry: Geometry, shown: list[Store]) -> Number | None:
        """The number of small memory, piece by piece; None for large memory."""
        lo = min([geometry.lo, *(s.geometry.lo for s in shown)])
        hi = max([geometry.hi, *(s.geometry.hi for s in shown)])
        unit = math.gcd(geometry.lo - lo, geometry.dtype.itemsize)
        for store in shown:
            unit = math.gcd(unit, store.geometry.lo - lo, store.geometry.dtype.itemsize, store.number.unit)
        if hi - lo > MOST_PIECES * unit:
            return None
        memory = torch.full(((hi - lo) // unit,), -1, dtype=torch.int64, device="cpu")
        for store in reversed(shown):
            window = _window(memory, store.geometry, lo, unit)
            window.copy_(self.numbering.codes(store.number, unit).view(window.shape))
        found = _window(memory, geometry, lo, unit).flatten()
        if bool((found < 0).any()):
            raise Undecided(f"a read of {geometry}, of which some bytes were never written")
        return self.numbering.of_codes(found, unit)

    def _layers(self, geometry: Geometry) -> Number:
        """A term for what cannot be put together: the stores that show, as seen from the tensor."""
        for k in range(*self._touched(geometry)):
            lo = max(self.starts[k], geometry.lo)
            hi = min(self.starts[k + 1], geometry.hi) if k + 1 < len(self.starts) else geometry.hi
            if not any(_covers(s, lo, hi) for s in self.piles[k]):
                raise Undecided(f"a read of {geometry}, of which some bytes may never have been written")
        own: tuple[Any, ...] = ()  # of one run of bytes it does not matter how it is counted
        if not _is_run(geometry):
            own = (geometry.size, geometry.stride, geometry.dtype.itemsize)
        seen = [(s.geometry, s.geometry.lo - geometry.lo, s.number.index) for s in self._shown(geometry)]
        layers = [(g.size, g.stride, g.dtype.itemsize, at, number) for g, at, number in seen]
        count = math.prod(geometry.size) * geometry.dtype.itemsize
        return self.numbering.whole((LAYERS, count, own, *layers), count, "a large value put together")

    def _intervals(self, geometry: Geometry) -> list[Geometry]:
        """A tensor that is one run of bytes cut at the intervals, if it lies in several."""
        first, last = self._touched(geometry)
        if last == first + 1 or not _is_run(geometry):
            return []
        ends = [geometry.lo, *self.starts[first + 1 : last], geometry.hi]
        return [self.geometries.interval(lo, hi) for lo, hi in itertools.pairwise(ends)]

    def _halves(self, geometry: Geometry) -> list[Geometry]:
        """The two halves of a tensor in logical order."""
        dim = next((d for d, n in enumerate(geometry.size) if n > 1), None)
        if dim is None:
            raise Undecided(f"a read of {geometry}, of which some bytes were never written")
        middle, end = geometry.size[dim] // 2, geometry.size[dim]
        cuts = ((dim, 0, middle, 1), (dim, middle, end, 1))
        return [self.geometries.apply(aten.slice.Tensor, geometry, cut) for cut in cuts]


def _age(store: Store) -> int:
    return store.age


def _is_run(geometry: Geometry) -> bool:
    """Whether a tensor is solid and in the order of its bytes."""
    step = 1
    for count, stride in zip(reversed(geometry.size), reversed(geometry.stride), strict=True):
        if count != 1 and stride != step:
            return False
        step *= count
    return True


def _covers(store: Store, lo: int, hi: int) -> bool:
    place = store.geometry
    return place.is_solid and place.lo <= lo and hi <= place.hi


def _window(memory: torch.Tensor, geometry: Geometry, lo: int, unit: int) -> torch.Tensor:
    """The pieces of `memory`, which begins at byte `lo`, in the logical order of a tensor in `geometry`."""
    item = geometry.dtype.itemsize
    strides = [s * item // unit for s in geometry.stride] if not geometry.is_empty else []
    return memory.as_strided([*geometry.size, item // unit], [*strides, 1], (geometry.lo - lo) // unit)
