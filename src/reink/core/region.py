"""Exact algebra of strided byte sets: every "may these two overlap?" of every pass asks here.

A `Region` is the set of bytes that a tensor view addresses in its storage. All numbers are bytes, plain ints;
for symbolic sizes see `reink.core.symbolic_region`. Every answer that permits a rewrite is a proof: where
the arithmetic runs over its budget, `disjoint`, `contains` and `equal_bytes` say False, `difference` None.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from reink.core.region_search import (
    LISTING_BUDGET,
    Dims,
    PointSet,
    members,
    normalise,
    reach,
    repeats,
    subtract,
)
from reink.core.symbolic_region import Box, Facts, IntegerFacts, box_contains, boxes_disjoint, boxes_equal

__all__ = [
    "DIFFERENCE_BUDGET",
    "Box",
    "Facts",
    "IntegerFacts",
    "IntervalIndex",
    "Region",
    "box_contains",
    "boxes_disjoint",
    "boxes_equal",
    "byte_size",
    "contains",
    "difference",
    "disjoint",
    "equal_bytes",
    "is_empty",
    "overlaps_itself",
    "self_overlaps",
    "span",
]

T = TypeVar("T", bound=Hashable)

DIFFERENCE_BUDGET = 16
"""Most pieces that `difference` returns."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Region:
    """The set of bytes ``{ lo + sum i_k * s_k : 0 <= i_k < n_k }`` of one storage.

    Hash-consed: the same normal form is the same object, so equality is identity. Few byte sets have two
    normal forms, so different objects may still be the same set: ask `equal_bytes`. Only `Region.of` and
    `Region.empty` make one.
    """

    lo: int
    """First byte."""
    dims: Dims
    """``(count, stride)`` pairs, strides ascending, item bytes merged in; ``((0, 1),)`` when empty."""
    end: int
    """One past the last byte; equal to `lo` when empty."""
    count: int
    """Number of index tuples of `dims`: the number of bytes unless `self_overlaps`."""

    @staticmethod
    def of(size: Sequence[int], stride: Sequence[int], offset: int, itemsize: int) -> "Region":
        """The bytes of a view, given as torch gives it: `size`, `stride` and `offset` in elements.

        Negative strides (NumPy has them) are flipped. A size of 0 gives the empty region at `offset`.

        >>> Region.of(size=(4, 2), stride=(8, 1), offset=2, itemsize=4)
        Region(lo=8, dims=((8, 1), (4, 32)), end=112, count=32)
        """
        lo = offset * itemsize
        if 0 in size:
            return Region.empty(lo)
        dims = [(itemsize, 1)]
        for count, step in zip(size, stride, strict=True):
            if step < 0:
                step = -step
                lo -= (count - 1) * step * itemsize
            dims.append((count, step * itemsize))
        return _interned(lo, normalise(dims))

    @staticmethod
    def empty(lo: int = 0) -> "Region":
        """The region of no byte, placed at `lo`."""
        return _interned(lo, ((0, 1),))

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and unpickle to the one interned object."""
        return _interned, (self.lo, self.dims)


_regions: WeakValueDictionary[tuple[int, Dims], Region] = WeakValueDictionary()
_regions_lock = Lock()


@lru_cache(maxsize=1 << 14)
def _interned(lo: int, dims: Dims) -> Region:
    """The one region with this normal form.

    The cache is for speed and may forget; that there is one object while anyone holds it, the weak table
    keeps.
    """
    found = _regions.get((lo, dims))
    if found is not None:
        return found
    count = prod(count for count, _ in dims)
    made = Region(lo, dims, lo + reach(dims) + 1 if count else lo, count)
    with _regions_lock:
        return _regions.setdefault((lo, dims), made)


def span(region: Region) -> tuple[int, int]:
    """First and one-past-last byte of the storage that `region` can touch.

    A bound, not the set: even and odd rows have crossing spans and share no byte.
    An empty region has span ``(lo, lo)``.

    >>> span(Region.of(size=(4,), stride=(1,), offset=8, itemsize=4))
    (32, 48)
    """
    return region.lo, region.end


def is_empty(region: Region) -> bool:
    """Whether `region` has no byte."""
    return region.count == 0


def disjoint(a: Region, b: Region) -> bool:
    """Whether `a` and `b` are proven to share no byte; False means that they may overlap.

    Exact for all strides that nest after merging (nearly all real views) and for up to two more besides the
    innermost run; beyond that exact unless the search runs over `region_search.SEARCH_BUDGET`.

    >>> even, odd = Region.of((4, 8), (16, 1), 0, 4), Region.of((4, 8), (16, 1), 8, 4)
    >>> disjoint(even, odd), disjoint(even, even)
    (True, False)
    """
    if a.end <= b.lo or b.end <= a.lo or not a.count or not b.count:
        return True
    if a is b:
        return False
    return _sums(a.dims, b.dims).holds(b.end - 1 - a.lo) is False


@lru_cache(maxsize=1 << 14)
def _sums(dims: Dims, more: Dims) -> PointSet:
    """All sums of a member of each set: they decide for every placement whether the two sets meet."""
    return PointSet(normalise(dims + more))


def contains(outer: Region, inner: Region) -> bool:
    """Whether every byte of `inner` is proven to be in `outer`.

    >>> whole, row = Region.of((4, 8), (8, 1), 0, 4), Region.of((8,), (1,), 16, 4)
    >>> contains(whole, row), contains(row, whole)
    (True, False)
    """
    if inner is outer or not inner.count:
        return True
    if inner.lo < outer.lo or outer.end < inner.end:
        return False
    if _is_run(outer):
        return True
    return _pieces(inner, outer) == ()


def equal_bytes(a: Region, b: Region) -> bool:
    """Whether `a` and `b` are proven to be the same set of bytes; two empty regions are."""
    if a is b or a.count == b.count == 0:
        return True
    return span(a) == span(b) and contains(a, b) and contains(b, a)


def self_overlaps(region: Region) -> bool:
    """Whether two index tuples of ``region.dims`` may address one byte; False only if proven not.

    A question about the normal form, in which overlap that merges away is gone: of a view ask
    `overlaps_itself`.
    """
    return repeats(region.dims) if region.count else False


def reach_of(size: Sequence[Any], stride: Sequence[Any]) -> Any:
    """Elements from the first of a view to one past its last; 0 when it has none. Symbolic sizes count as not empty.

    >>> reach_of((2, 3), (5, 1)), reach_of((), ()), reach_of((2, 0), (0, 6))
    (8, 1, 0)
    """
    if any(type(n) is int and n == 0 for n in size):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def overlaps_itself(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two index tuples of a view may address one element; False only if proven not.

    >>> overlaps_itself((3, 2), (1, 1)), overlaps_itself((4,), (0,)), overlaps_itself((3, 2), (2, 1))
    (True, True, False)
    """
    if 0 in size:
        return False
    return repeats((count, abs(step)) for count, step in zip(size, stride, strict=True))


def difference(a: Region, b: Region) -> list[Region] | None:
    """The bytes of `a` that are not in `b`, as at most 16 pairwise disjoint regions in ascending order.

    None when that takes more pieces, or when strides form no divisibility chain and `a` is too large to list.

    >>> difference(Region.of((8,), (1,), 0, 1), Region.of((4,), (1,), 2, 1))
    [Region(lo=0, dims=((2, 1),), end=2, count=2), Region(lo=6, dims=((2, 1),), end=8, count=2)]
    """
    if contains(b, a):
        return []
    if disjoint(a, b):
        return [a]
    pieces = _pieces(a, b)
    return None if pieces is None or len(pieces) > DIFFERENCE_BUDGET else list(pieces)


@lru_cache(maxsize=1 << 14)
def _pieces(a: Region, b: Region) -> tuple[Region, ...] | None:
    """`a` without `b`, in any number of pieces; None when not expressible."""
    pieces = subtract((a.lo, a.dims), (b.lo, b.dims))
    return None if pieces is None else tuple(_interned(lo, dims) for lo, dims in pieces)


def byte_size(region: Region) -> int:
    """Number of distinct bytes of `region`.

    Exact when its dims do not overlap, and when they do but name at most `LISTING_BUDGET` bytes;
    otherwise the smaller of the span's length and `count`, which is an upper bound.
    """
    if not self_overlaps(region):
        return region.count
    if region.count <= LISTING_BUDGET:
        return len(members(region.dims))
    return min(region.count, region.end - region.lo)


def _is_run(region: Region) -> bool:
    """Whether `region` is all of its span."""
    return region.count == region.end - region.lo and len(region.dims) <= 1


class IntervalIndex(Generic[T]):
    """Items of one storage by the span they touch, for "what may a write to these bytes hit?".

    Items lie in levels by the bit length of their span; in the level of spans under ``2**k`` only items that
    start less than ``2**k`` before the query can reach it. Not a dataclass: it is changed in place.
    Items compare as their type does; the same item may be added under several spans.
    """

    __slots__ = ("_levels", "_size")

    def __init__(self) -> None:
        self._levels: dict[int, _SpanLevel[T]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, lo: int, hi: int, item: T) -> None:
        """Add `item` with bytes ``[lo, hi)``; adding the same three again changes nothing."""
        level = self._levels.setdefault(max(0, hi - lo).bit_length(), _SpanLevel())
        self._size += level.add(lo, hi, item)

    def remove(self, lo: int, hi: int, item: T) -> None:
        """Remove what `add` added with the same three; KeyError if it is not there."""
        self._levels[max(0, hi - lo).bit_length()].remove(lo, hi, item)
        self._size -= 1

    def hits(self, lo: int, hi: int) -> list[T]:
        """The items whose span meets ``[lo, hi)``, once for each such span; an empty span meets nothing."""
        if hi <= lo:
            return []
        found: list[T] = []
        for bits, level in self._levels.items():
            if bits:
                found.extend(level.hits(lo, hi, 1 << bits))
        return found


class _SpanLevel(Generic[T]):
    """The items of an `IntervalIndex` whose spans have one bit length, by first byte."""

    __slots__ = ("_at", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._at: dict[int, dict[tuple[int, T], None]] = {}

    def add(self, lo: int, hi: int, item: T) -> bool:
        """Add an item; whether it was new."""
        here = self._at.get(lo)
        if here is None:
            here = self._at[lo] = {}
            insort(self._starts, lo)
        known = len(here)
        here[hi, item] = None
        return len(here) > known

    def remove(self, lo: int, hi: int, item: T) -> None:
        """Remove an item that is there."""
        here = self._at[lo]
        del here[hi, item]
        if not here:
            del self._at[lo]
            del self._starts[bisect_left(self._starts, lo)]

    def hits(self, lo: int, hi: int, width: int) -> list[T]:
        """Items that meet ``[lo, hi)``, all spans here being shorter than `width`."""
        starts = self._starts
        first = bisect_right(starts, lo - width)
        if first == len(starts) or starts[first] >= hi:
            return []
        window = starts[first : bisect_left(starts, hi)]
        return [item for start in window for stop, item in self._at[start] if stop > lo]
