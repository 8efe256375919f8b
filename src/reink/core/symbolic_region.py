"""Regions of tensors whose sizes are symbolic: boxes in the dims of the root tensor.

Multiplied by symbolic strides, index ranges become polynomials that few facts can order. In the dims of the
root tensor they stay simple: ``cache[0]`` and ``cache[1]`` are apart in the first dim for every size. No
answer adds a guard: symbolic values are never compared with ``==`` or ``<``, only handed to `Facts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Protocol, TypeAlias

from reink.core.region_search import progressions_meet

Number: TypeAlias = Any
"""An int, or a symbolic integer that supports ``+``, ``-`` and ``*``."""

Interval: TypeAlias = tuple[Number, Number, Number]
"""``(start, length, step)``: the indices ``start + i * step``, ``0 <= i < length``, step >= 1."""


class Facts(Protocol):
    """What is known about symbolic values."""

    def is_nonnegative(self, expr: Number, /) -> bool:
        """Whether ``expr >= 0`` is proven for every value; False when not known. Never guards."""
        ...


class IntegerFacts:
    """The facts about plain ints; of anything else it knows nothing."""

    def is_nonnegative(self, expr: Number, /) -> bool:
        """Whether `expr` is an int and not negative."""
        return isinstance(expr, int) and expr >= 0


@dataclass(frozen=True, slots=True)
class Box:
    """The elements of a root tensor whose index in each dim lies in that dim's interval.

    Selecting and slicing give a new box in the same root dims. Indices and starts are as torch has them after
    its own checks: not negative, and inside the box.
    """

    dims: tuple[Interval, ...]

    @staticmethod
    def whole(sizes: Sequence[Number]) -> "Box":
        """All of a root tensor of these sizes."""
        return Box(tuple((0, size, 1) for size in sizes))

    def select(self, dim: int, index: Number) -> "Box":
        """The box at one index of `dim`, which stays as a dim of length 1.

        >>> Box.whole((4, 8)).select(0, 2)
        Box(dims=((2, 1, 1), (0, 8, 1)))
        """
        start, _, step = self.dims[dim]
        return self._with(dim, (start + index * step, 1, 1))

    def slice(self, dim: int, start: Number, length: Number, step: Number = 1) -> "Box":
        """The box at `length` indices of `dim`, counted within the box.

        >>> Box.whole((16,)).slice(0, 2, 6, 2).slice(0, 1, 2, 3)
        Box(dims=((4, 2, 6),))
        """
        own_start, _, own_step = self.dims[dim]
        return self._with(dim, (own_start + start * own_step, length, step * own_step))

    def _with(self, dim: int, interval: Interval) -> "Box":
        """This box with the interval of `dim` (not negative) replaced."""
        assert 0 <= dim < len(self.dims), f"no dim {dim} in a box of {len(self.dims)} dims"
        return Box((*self.dims[:dim], interval, *self.dims[dim + 1 :]))


def boxes_disjoint(a: Box, b: Box, facts: Facts) -> bool:
    """Whether the boxes, of one root tensor, are proven to share no element; exact for plain ints."""
    pairs = list(zip(a.dims, b.dims, strict=True))
    return any(_intervals_apart(ours, theirs, facts) for ours, theirs in pairs)


def box_contains(outer: Box, inner: Box, facts: Facts) -> bool:
    """Whether every element of `inner` is proven to be in `outer`, a box of the same root tensor."""
    if _is_empty(inner, facts):
        return True
    return all(_interval_contains(*pair, facts) for pair in zip(outer.dims, inner.dims, strict=True))


def boxes_equal(a: Box, b: Box, facts: Facts) -> bool:
    """Whether the boxes, of one root tensor, are proven to have the same elements."""
    return box_contains(a, b, facts) and box_contains(b, a, facts)


def _is_empty(box: Box, facts: Facts) -> bool:
    """Whether the box is proven to have no element."""
    return any(facts.is_nonnegative(0 - length) for _, length, _ in box.dims)


def _last(interval: Interval) -> Number:
    """Last index of the interval, if it has one; below its start if not."""
    start, length, step = interval
    return start + (length - 1) * step


def _same(x: Number, y: Number, facts: Facts) -> bool:
    """Whether two values are proven equal."""
    return x is y or (facts.is_nonnegative(x - y) and facts.is_nonnegative(y - x))


def _intervals_apart(a: Interval, b: Interval, facts: Facts) -> bool:
    """Whether two intervals of one dim are proven to share no index: in order, or on different residues."""
    if all(isinstance(value, int) for value in (*a, *b)):
        return not progressions_meet(a, b)
    if facts.is_nonnegative(0 - a[1]) or facts.is_nonnegative(0 - b[1]):
        return True
    if facts.is_nonnegative(b[0] - _last(a) - 1) or facts.is_nonnegative(a[0] - _last(b) - 1):
        return True
    return _residues_differ(a, b, facts)


def _residues_differ(a: Interval, b: Interval, facts: Facts) -> bool:
    """Whether the starts are proven to differ by no multiple of the steps."""
    (start, _, step), (other, _, other_step) = a, b
    if all(isinstance(value, int) for value in (start, other, step, other_step)):
        return bool((start - other) % gcd(step, other_step))
    if not _same(step, other_step, facts):
        return False
    gap = start - other
    return any(facts.is_nonnegative(d - 1) and facts.is_nonnegative(step - d - 1) for d in (gap, 0 - gap))


def _interval_contains(outer: Interval, inner: Interval, facts: Facts) -> bool:
    """Whether every index of `inner` is proven to be one of `outer`, inner being possibly empty."""
    if not facts.is_nonnegative(inner[0] - outer[0]) or not facts.is_nonnegative(_last(outer) - _last(inner)):
        return False
    (start, _, step), (inner_start, inner_length, inner_step) = outer, inner
    if not _is_multiple(inner_start - start, step, facts):
        return False
    return _same(inner_length, 1, facts) or _is_multiple(inner_step, step, facts)


def _is_multiple(value: Number, step: Number, facts: Facts) -> bool:
    """Whether `value` is proven a multiple of `step`; of a symbolic step only 0 and the step itself are."""
    if isinstance(step, int) and (step == 1 or isinstance(value, int)):
        return bool(step == 1 or value % step == 0)
    return _same(value, 0, facts) or _same(value, step, facts)
