"""Old values that are copied together: rows 0 to 1 and rows 1 to 2 of one tensor are three rows, not four.

A part of reinplace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from reink.core.aliasing import Place, is_dense
from reink.core.placement_rules import window
from reink.core.plan import total
from reink.core.program import ViewStep

Node = torch.fx.Node
Live = list[tuple[Node, Place]]

_SELECT, _SLICE, _EXPAND = "aten.select.int", "aten.slice.Tensor", "aten.expand.default"


@dataclass(frozen=True, slots=True)
class _Run:
    """Indices `first` to `last`, exclusive, of `dim` of `parent`; `row`: that dim is gone; `steps`: views of them."""

    parent: Place
    dim: int
    first: int
    last: int
    row: bool
    steps: tuple[ViewStep, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """One copy of the tensor in `cover`, which begins at index `first`, for `members`: values and where each lies.

    `expanded`: the members are the cover, expanded.
    """

    cover: Place
    members: Live
    first: int = 0
    expanded: bool = False

    def place_in(self, copy: Place, place: Place) -> Place:
        """Where a member that lies in `place` lies in a `copy` of the cover."""
        if self.expanded:
            return window(copy, ViewStep(_EXPAND, (list(place.size),)))
        own = _run(place)
        if place is self.cover or own is None:
            return copy
        start, stop = own.first - self.first, own.last - self.first
        step = ViewStep(_SELECT, (own.dim, start)) if own.row else ViewStep(_SLICE, (own.dim, start, stop))
        for view in (step, *own.steps):
            copy = window(copy, view)
        return copy


def shared(live: Live) -> list[Shared]:
    """The copies to make for `live`, whose values are all intact: one for a region, and one for runs that overlap."""
    apart: dict[Place, Live] = {}
    runs: dict[tuple[Place, int], list[tuple[_Run, tuple[Node, Place]]]] = {}
    for value, place in live:
        run = _run(place)
        if run is None:
            apart.setdefault(place, []).append((value, place))
        else:
            runs.setdefault((run.parent, run.dim), []).append((run, (value, place)))
    found = [_alone(place, members) for place, members in apart.items()]
    for beside in runs.values():
        found.extend(_merged(sorted(beside, key=lambda entry: (entry[0].first, -entry[0].last))))
    return found


def _alone(place: Place, members: Live) -> Shared:
    """One copy for what lies in one place; of an expanded tensor, of each element once."""
    if not place.has_broadcast_dim() or place.is_symbolic():
        return Shared(place, members)
    cover = place
    for dim, (size, stride) in enumerate(zip(place.size, place.stride, strict=True)):
        if stride == 0 and size > 1:
            cover = window(cover, ViewStep(_SLICE, (dim, 0, 1)))
    return Shared(cover, members, expanded=True)


def byte_total(live: Live) -> int | None:
    """The bytes that saving `live` copies; None when symbolic."""
    return total(s.cover.byte_count() for s in shared(live))


def _merged(runs: Sequence[tuple[_Run, tuple[Node, Place]]]) -> Iterable[Shared]:
    """The copies for runs of one dim, which come sorted."""
    together: list[tuple[_Run, tuple[Node, Place]]] = []
    last = 0
    for run, member in runs:
        if together and run.first >= last:
            yield _one(together, last)
            together = []
        last = max(last, run.last) if together else run.last
        together.append((run, member))
    if together:
        yield _one(together, last)


def _one(together: Sequence[tuple[_Run, tuple[Node, Place]]], last: int) -> Shared:
    """One copy for runs that overlap, from the first index of the first up to `last`."""
    members = [member for _, member in together]
    run, (_, place) = together[0]
    if all(p is place for _, p in members):
        return Shared(place, members)
    whole = not run.row and not run.steps and run.last == last
    cover = place if whole else window(run.parent, ViewStep(_SLICE, (run.dim, run.first, last)))
    return Shared(cover, members, run.first)


def _run(place: Place) -> _Run | None:
    """The indices that `place` takes of a tensor: it is a row, or some in sequence, or another view of those."""
    steps: list[ViewStep] = []
    while True:
        parent, step = place.parent, place.step
        if parent is None or step is None or place.is_symbolic() or place.bits != parent.bits:
            return None
        if place.dtype is not parent.dtype or not all(a is None or type(a) is int for a in _plain(step)):
            return None
        if step.op in (_SELECT, _SLICE):
            break
        if place.byte_count() != parent.byte_count() or not is_dense(parent):
            return None
        steps.append(step)
        place = parent
    if parent.overlaps_itself():
        return None
    dim = step.args[0] % len(parent.size)
    if step.op == _SELECT:
        index = step.args[1] % parent.size[dim]
        return _Run(parent, dim, index, index + 1, True, tuple(reversed(steps)))
    start, end, stride = (list(step.args) + [None, None, 1][len(step.args) - 1 :])[1:]
    first, last, _ = slice(start, end, stride).indices(parent.size[dim])
    if stride != 1 or first >= last:
        return None
    return _Run(parent, dim, first, last, False, tuple(reversed(steps)))


def _plain(step: ViewStep) -> Iterable[Any]:
    for argument in step.args:
        yield from argument if isinstance(argument, (list, tuple)) else (argument,)
