"""Which values live where, and are still needed: what a write into a place could destroy.

One interval index per buffer, so a write meets only the values whose bytes it may touch. Values that nobody
will read again are dropped when they are met.
"""

from __future__ import annotations

import torch.fx

from reink.core.aliasing import Buffer, Place, may_overlap
from reink.core.region import IntervalIndex

Node = torch.fx.Node


class Residents:
    """The values in each buffer, and how many reads of each are still to come."""

    def __init__(self) -> None:
        self.pending: dict[Node, int] = {}
        self._indexes: dict[Buffer, IntervalIndex[Place]] = {}
        self._symbolic: dict[Buffer, list[Place]] = {}
        self._values: dict[Place, list[Node]] = {}

    def is_live(self, value: Node) -> bool:
        """Whether a read of `value` is still to come."""
        return self.pending.get(value, 0) > 0

    def add(self, value: Node, place: Place) -> None:
        """`value` now lives in `place`."""
        if not self.is_live(value):
            return
        known = self._values.get(place)
        if known is not None:
            known.append(value)
            return
        self._values[place] = [value]
        hull = place.hull()
        if hull is None:
            self._symbolic.setdefault(place.buffer, []).append(place)
            return
        index = self._indexes.get(place.buffer)
        if index is None:
            index = self._indexes[place.buffer] = IntervalIndex()
        index.add(hull[0], hull[1], place)

    def remove(self, value: Node, place: Place) -> None:
        """`value` no longer lives in `place`: it was copied elsewhere."""
        values = self._values.get(place)
        if values is not None and value in values:
            values.remove(value)

    def hit_by(self, place: Place) -> list[tuple[Node, Place]]:
        """Live values that a write into `place` may destroy, with where they live."""
        hull = place.hull()
        index = self._indexes.get(place.buffer)
        near: list[Place] = []
        if index is not None:
            near = index.hits(*hull) if hull is not None else index.hits(*_whole(place.buffer))
        near = [*near, *self._symbolic.get(place.buffer, ())]
        found: list[tuple[Node, Place]] = []
        for other in near:
            values = self._alive(other)
            if values and may_overlap(place, other):
                found.extend((v, other) for v in values)
        return found

    def in_buffer(self, buffer: Buffer) -> list[Node]:
        """Every live value of the buffer."""
        return [v for p in buffer.places.values() for v in self._values.get(p, ()) if self.is_live(v)]

    def _alive(self, place: Place) -> list[Node]:
        values = self._values.get(place)
        if not values:
            return []
        alive = [v for v in values if self.is_live(v)]
        if alive:
            self._values[place] = alive
            return alive
        del self._values[place]
        hull = place.hull()
        if hull is None:
            self._symbolic[place.buffer].remove(place)
        else:
            self._indexes[place.buffer].remove(hull[0], hull[1], place)
        return []


def _whole(buffer: Buffer) -> tuple[int, int]:
    return (-(1 << 62), 1 << 62)
