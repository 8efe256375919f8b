"""What sizes and strides alone say about a tensor."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from reink.core.region import overlaps_itself, reach_of

# Geometries remembered at most.
MOST_EXTENTS = 65_536


class Extent(NamedTuple):
    """What sizes and strides alone say: number of elements, elements from the first to past the last, and overlap.

    `broadcast`: a dim of several elements has stride 0. Numbers are 0 when `symbolic`, except that `elements` is 1.
    """

    symbolic: bool
    elements: int
    reach: int
    overlaps: bool
    broadcast: bool


_extents: dict[tuple[Any, Any], Extent] = {}


def extent_of(size: tuple[Any, ...], stride: tuple[Any, ...]) -> Extent:
    """The extent of a geometry; known ones are remembered, since programs repeat a few shapes."""
    found = _extents.get((size, stride))
    if found is None:
        if len(_extents) > MOST_EXTENTS:
            _extents.clear()
        found = _extents[size, stride] = _extent(size, stride)
    return found


def _extent(size: tuple[Any, ...], stride: tuple[Any, ...]) -> Extent:
    pairs = list(zip(size, stride, strict=True))
    zero = any(type(s) is int and s == 0 and not (type(n) is int and n <= 1) for n, s in pairs)
    if not all(type(v) is int for v in (*size, *stride)):
        return Extent(True, 1, 0, zero, zero)
    count = math.prod(size)
    return Extent(False, count, reach_of(size, stride), overlaps_itself(size, stride), zero and count > 0)
