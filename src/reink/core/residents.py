"""Which values live where, and are still needed: what a write into a place could destroy.

One interval index per buffer, so a write meets only the values whose bytes it may touch. Values that nobody
will read again are dropped at their last read.
"""

from __future__ import annotations

from typing import Any

import torch.fx

from reink.core.aliasing import Buffer, Place, may_overlap
from reink.core.region import IntervalIndex

Node = torch.fx.Node

# So many new places of a buffer are looked at one by one; most are dead before they are worth an index entry.
RECENT = 8


class Residents:
    """The values in each buffer, and how many reads of each are still to come."""

    def __init__(self, pending: dict[Node, int]) -> None:
        self.pending = pending
        self._indexes: dict[Buffer, IntervalIndex[Place]] = {}
        # new places with the values in them
        self._recent: dict[Buffer, list[tuple[Place, dict[Node, None]]]] = {}
        self._values: dict[Place, dict[Node, None]] = {}

    def add(self, value: Node, place: Place) -> None:
        """`value` now lives in `place`."""
        if self.pending.get(value, 0) <= 0:
            return
        known = self._values.get(place)
        if known is not None:
            known[value] = None
            return
        here = self._values[place] = {value: None}
        recent = self._recent.get(place.buffer)
        if recent is None:
            self._recent[place.buffer] = [(place, here)]
            return
        recent.append((place, here))
        if len(recent) > RECENT:
            self._recent[place.buffer] = self._settle(place.buffer, recent)

    def _settle(
        self, buffer: Buffer, recent: list[tuple[Place, dict[Node, None]]]
    ) -> list[tuple[Place, dict[Node, None]]]:
        """Move the living places of `recent` to the index; those without a static span stay."""
        staying: list[tuple[Place, dict[Node, None]]] = []
        for place, values in recent:
            if not values:
                del self._values[place]
                continue
            hull = place.hull()
            if hull is None or place.is_root:
                staying.append((place, values))
            else:
                self._indexes.setdefault(buffer, IntervalIndex()).add(hull[0], hull[1], place)
        return staying

    def remove(self, value: Node, place: Any) -> None:
        """`value` no longer lives in `place`, or nobody will read it again."""
        values = self._values.get(place)
        if values is not None:
            values.pop(value, None)

    def hit_by(self, place: Place) -> list[tuple[Node, Place]]:
        """Live values that a write into `place` may destroy, with where they live."""
        found: list[tuple[Node, Place]] = []
        for other, values in self._recent.get(place.buffer, ()):
            if values and may_overlap(place, other):
                for value in values:
                    found.append((value, other))
        index = self._indexes.get(place.buffer)
        if index is None:
            return found
        living = self._values
        for other in index.hits(*(place.hull() or _EVERYTHING)):
            here = living.get(other)
            if not here:
                living.pop(other, None)
                span = other.hull()
                assert span is not None
                index.remove(span[0], span[1], other)
            elif may_overlap(place, other):
                found += [(v, other) for v in here]
        return found


_EVERYTHING = (-(1 << 62), 1 << 62)
