"""Arithmetic of strided sets of integers: the engine under `reink.core.region`.

A strided set is ``{ lo + sum t_k * s_k : 0 <= t_k < n_k }``, written as ``lo`` and its ``(n_k, s_k)`` pairs,
`Dims`. Everything rests on one observation. Sets A and B meet iff ``last(B) - lo(A)`` is a member of the set
at 0 whose dims are those of A and of B together: counting B's indices from their far ends turns the
difference of a member of each into a sum. After `normalise` the strides of real views nearly always nest,
and whether an integer is a member is then a chain of divisions.
"""

from collections.abc import Iterable
from itertools import pairwise
from math import gcd, prod
from typing import NamedTuple, TypeAlias

Dims: TypeAlias = tuple[tuple[int, int], ...]
"""``(count, stride)`` pairs; strides are positive and ascend."""

Strided: TypeAlias = tuple[int, Dims]
"""The lowest member of a strided set, and its dims."""

DigitBox: TypeAlias = tuple[tuple[int, int], ...]
"""``(first digit, how many)`` for each place of a number system, the lowest place first."""

SEARCH_BUDGET = 20_000
"""Steps of one search before it answers "not known"."""

REMEMBERED = 256
"""Answers of searches that one `PointSet` remembers."""

LISTING_BUDGET = 1 << 14
"""Largest set that is listed member by member."""

PIECE_BUDGET = 64
"""Most boxes that a subtraction holds on its way; its caller bounds the result."""


def normalise(dims: Iterable[tuple[int, int]]) -> Dims:
    """The same set in fewest dims: no count of 1, no stride of 0, outer dims merged into inner ones.

    A dim merges into an inner one whose stride divides its own and which reaches up to it. Merges may
    overlap: the result keeps the set and forgets how often each member was named. Counts are at least 1,
    strides at least 0. One ascending pass is enough: no dim that grows has a kept dim above it to reach
    newly.

    >>> normalise([(4, 8), (2, 4), (4, 1)])
    ((32, 1),)
    """
    kept: list[tuple[int, int]] = []
    for stride, count in sorted((stride, count) for count, stride in dims if count > 1 and stride):
        for place, (inner_count, inner) in enumerate(kept):
            if stride <= inner_count * inner and stride % inner == 0:
                kept[place] = (inner_count + (count - 1) * (stride // inner), inner)
                break
        else:
            kept.append((count, stride))
    return tuple(kept)


def reach(dims: Dims) -> int:
    """Largest member of the set when its lowest is 0."""
    return sum((count - 1) * stride for count, stride in dims)


def first_multiple_within(factor: int, modulus: int, low: int, high: int) -> int | None:
    """Least ``x >= 0`` with ``low <= factor * x % modulus <= high``, or None.

    Needs ``0 <= low <= high < modulus``. Takes as many steps as Euclid's algorithm.

    >>> first_multiple_within(7, 10, 2, 3)
    6
    """
    if low == 0:
        return 0
    factor %= modulus
    if factor == 0:
        return None
    if 2 * factor > modulus:
        factor, low, high = modulus - factor, modulus - high, modulus - low
    turns = -(-low // factor)
    if turns * factor <= high:
        return turns
    wraps = first_multiple_within(-modulus, factor, low % factor, high % factor)
    return None if wraps is None else -(-(low + modulus * wraps) // factor)


class Level(NamedTuple):
    """One dim of a `PointSet`, with what the dims below it can add.

    Not a dataclass: some are made for every new pair of shapes, and a frozen dataclass is slow to make.
    """

    length: int
    stride: int
    below: int
    """Largest sum of all lower dims, the run included."""
    divisor: int
    """Greatest common divisor of the strides below, the run left out; 0 when there are none."""

    def choices(self, point: int) -> tuple[int, int]:
        """First and last index of this dim that leaves the lower dims a sum within their reach."""
        return max(0, -((self.below - point) // self.stride)), min(self.length - 1, point // self.stride)


class PointSet:
    """A strided set with lowest member 0, prepared for the question "is this integer in it?".

    Not a dataclass: it is made once from dims and holds only what is derived from them.
    """

    __slots__ = ("found", "levels", "nested", "reach", "run", "unit")

    def __init__(self, dims: Dims) -> None:
        """Prepare the set of `dims`, which must come from `normalise`."""
        self.found: dict[int, bool | None] = {}
        self.reach = reach(dims)
        self.unit = gcd(*(stride for _, stride in dims)) if dims else 1
        scaled = [(count, stride // self.unit) for count, stride in dims]
        self.run = scaled.pop(0)[0] if scaled and scaled[0][1] == 1 else 1
        below, divisor, levels = self.run - 1, 0, []
        for count, stride in scaled:
            levels.append(Level(count, stride, below, divisor))
            below, divisor = below + (count - 1) * stride, gcd(divisor, stride)
        self.levels = tuple(reversed(levels))
        self.nested = all(level.below < level.stride for level in levels)

    def holds(self, point: int) -> bool | None:
        """Whether `point` is a member; None when the search ran over its budget.

        In a nested set no index needs a check: what is within reach of a level has its index in range.
        """
        if not 0 <= point <= self.reach:
            return False
        if self.unit != 1:
            point, off = divmod(point, self.unit)
            if off:
                return False
        if not self.nested:
            return self._looked_up(point)
        for level in self.levels:
            point %= level.stride
            if point > level.below:
                return False
        return True

    def _looked_up(self, point: int) -> bool | None:
        """The answer of `_search`, remembered: an answer can take the whole budget."""
        if point not in self.found:
            if len(self.found) >= REMEMBERED:
                self.found.clear()
            self.found[point] = self._search(point)
        return self.found[point]

    def _search(self, point: int) -> bool | None:
        """Branch over the indices of the largest stride first; the last two levels have a closed form."""
        closing = len(self.levels) - 2
        steps = 0
        seen = {(0, point)}
        stack = [(0, point)]
        while stack:
            depth, rest = stack.pop()
            if depth == closing:
                if self._closes(rest):
                    return True
                continue
            level = self.levels[depth]
            first, last = level.choices(rest)
            steps += max(0, last - first) + 1
            if steps > SEARCH_BUDGET:
                return None
            lefts = (rest - index * level.stride for index in range(first, last + 1))
            fresh = {(depth + 1, left) for left in lefts if left % level.divisor < self.run} - seen
            seen |= fresh
            stack.extend(fresh)
        return False

    def _closes(self, rest: int) -> bool:
        """Whether the two smallest strides and the run can make up `rest`.

        Any index of the larger one that leaves a sum within reach will do if that sum, modulo the smaller
        stride, falls in the run: the index of the smaller stride is then in range by itself.
        """
        larger, smaller = self.levels[-2:]
        first, last = larger.choices(rest)
        if first > last:
            return False
        residue = (rest - first * larger.stride) % smaller.stride
        if residue < self.run:
            return True
        low = smaller.stride - residue
        found = first_multiple_within(-larger.stride, smaller.stride, low, low + self.run - 1)
        return found is not None and first + found <= last


def progressions_meet(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    """Whether two arithmetic progressions, each ``(start, length, step)`` with step >= 1, share an integer.

    >>> progressions_meet((0, 5, 2), (1, 5, 2)), progressions_meet((0, 5, 2), (1, 5, 3))
    (False, True)
    """
    (start, length, step), (other, other_length, other_step) = a, b
    if length < 1 or other_length < 1:
        return False
    sums = PointSet(normalise([(length, step), (other_length, other_step)]))
    return sums.holds(other + (other_length - 1) * other_step - start) is True


def repeats(dims: Iterable[tuple[int, int]]) -> bool:
    """Whether two index tuples of `dims` may name one integer; False only if proven not.

    Takes each dim as the highest in which two such tuples differ, and looks for an equal sum of the lower
    ones. Counts are at least 1, strides at least 0.
    """
    ordered = sorted((stride, count) for count, stride in dims if count > 1)
    lower: list[tuple[int, int]] = []
    below = 0
    for stride, count in ordered:
        if stride == 0:
            return True
        if stride <= below:
            sums = PointSet(normalise([*lower, (count - 1, stride)]))
            if sums.holds(below - stride) is not False:
                return True
        lower.append((2 * count - 1, stride))
        below += (count - 1) * stride
    return False


def members(dims: Dims) -> set[int]:
    """Every member of the set whose lowest is 0; the caller has checked that they are few."""
    found = {0}
    for count, stride in dims:
        found = {base + step for base in found for step in range(0, count * stride, stride)}
    return found


def subtract(left: Strided, right: Strided) -> list[Strided] | None:
    """The members of `left` that are not in `right`, as pairwise disjoint strided sets in ascending order.

    None if that is not expressible. Exact for strides that form one divisibility chain. Other sets are
    listed if small, else None.
    """
    strides = sorted({1, *(stride for _, stride in left[1] + right[1])})
    if all(outer % inner == 0 for inner, outer in pairwise(strides)):
        return _subtract_digits(left, right, strides)
    return _subtract_members(left, right)


def _subtract_digits(left: Strided, right: Strided, strides: list[int]) -> list[Strided] | None:
    """`subtract` in the number system whose places are `strides`, with `right` starting at 0."""
    origin = right[0]
    boxes, holes = _digit_boxes(left, origin, strides), _digit_boxes(right, origin, strides)
    for hole in holes:
        boxes = [piece for box in boxes for piece in _box_difference(box, hole)]
        if len(boxes) > PIECE_BUDGET:
            return None
    pieces: list[Strided] = []
    for box in boxes:
        lo = origin + sum(first * stride for (first, _), stride in zip(box, strides, strict=True))
        pieces.append((lo, normalise((many, stride) for (_, many), stride in zip(box, strides, strict=True))))
    return _joined(pieces)


def _digit_boxes(operand: Strided, origin: int, strides: list[int]) -> list[DigitBox]:
    """`operand` cut where a digit would carry, so that each piece is a box of digits.

    A dim that passes the end of its place becomes a head, whole turns (counted in the next place) and a tail.
    The highest place takes any integer.
    """
    lo, dims = operand
    counts = {stride: count for count, stride in dims}
    grown: list[tuple[DigitBox, int, int]] = [((), lo - origin, 1)]
    for inner, outer in pairwise(strides):
        radix, cut = outer // inner, list[tuple[DigitBox, int, int]]()
        for box, position, turns in grown:
            high, first = divmod(position, radix)
            stop = first + counts.get(inner, 1) + turns - 1
            if stop <= radix:
                cut.append(((*box, (first, stop - first)), high, 1))
                continue
            partial = 1 if first else 0
            whole, rest = stop // radix - partial, stop % radix
            if partial:
                cut.append(((*box, (first, radix - first)), high, 1))
            if whole:
                cut.append(((*box, (0, radix)), high + partial, whole))
            if rest:
                cut.append(((*box, (0, rest)), high + partial + whole, 1))
        grown = cut
    own = counts.get(strides[-1], 1)
    return [(*box, (position, own + turns - 1)) for box, position, turns in grown]


def _box_difference(box: DigitBox, hole: DigitBox) -> list[DigitBox]:
    """`box` without `hole`, as disjoint boxes: slabs cut off from the highest place downward."""
    common = [
        (max(first, start), min(first + many, start + length))
        for (first, many), (start, length) in zip(box, hole, strict=True)
    ]
    if any(start >= stop for start, stop in common):
        return [box]
    pieces: list[DigitBox] = []
    for place in reversed(range(len(box))):
        first, many = box[place]
        start, stop = common[place]
        inside = tuple((begin, end - begin) for begin, end in common[place + 1 :])
        if first < start:
            pieces.append((*box[:place], (first, start - first), *inside))
        if stop < first + many:
            pieces.append((*box[:place], (stop, first + many - stop), *inside))
    return pieces


def _joined(pieces: list[Strided]) -> list[Strided]:
    """The pieces in ascending order, contiguous neighbours joined into one."""
    joined: list[Strided] = []
    for lo, dims in sorted(pieces):
        length = _run_length(dims)
        if joined and length:
            before, before_dims = joined[-1]
            before_length = _run_length(before_dims)
            if before_length and before + before_length == lo:
                joined[-1] = (before, ((before_length + length, 1),))
                continue
        joined.append((lo, dims))
    return joined


def _run_length(dims: Dims) -> int:
    """Length of the set if it is one contiguous run, else 0."""
    if not dims:
        return 1
    return dims[0][0] if len(dims) == 1 and dims[0][1] == 1 else 0


def _subtract_members(left: Strided, right: Strided) -> list[Strided] | None:
    """`subtract` for any strides, by listing `left` in units of the largest grain that both sets respect."""
    (lo, dims), (hole_lo, hole_dims) = left, right
    grain = gcd(hole_lo - lo, _grain(dims), _grain(hole_dims))
    units, hole_units = _in_grains(dims, grain), _in_grains(hole_dims, grain)
    if prod(count for count, _ in units) > LISTING_BUDGET:
        return None
    hole, shift = PointSet(hole_units), (hole_lo - lo) // grain
    kept: list[int] = []
    for member in sorted(members(units)):
        verdict = hole.holds(member - shift)
        if verdict is None:
            return None
        if not verdict:
            kept.append(member)
    return [
        (lo + start * grain, normalise([(grain, 1), (length, grain), (times, gap * grain)]))
        for start, length, times, gap in _combs(kept)
    ]


def _grain(dims: Dims) -> int:
    """Largest unit in which the set is made of whole units: it divides every stride and the innermost run."""
    run = dims[0][0] if dims and dims[0][1] == 1 else 1
    return gcd(run, *(stride for _, stride in dims if stride > 1))


def _in_grains(dims: Dims, grain: int) -> Dims:
    """The set in units of `grain` members."""
    return normalise((count // grain, 1) if stride == 1 else (count, stride // grain) for count, stride in dims)


def _combs(ascending: list[int]) -> list[tuple[int, int, int, int]]:
    """The integers as few ``(start, run length, times, gap)`` groups: equal runs at equal distances."""
    runs: list[tuple[int, int]] = []
    for member in ascending:
        if runs and sum(runs[-1]) == member:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((member, 1))
    groups: list[tuple[int, int, int, int]] = []
    for start, length in runs:
        begin, size, times, gap = groups[-1] if groups else (0, 0, 0, 0)
        if size == length and (times == 1 or start == begin + times * gap):
            groups[-1] = (begin, size, times + 1, gap if times > 1 else start - begin)
        else:
            groups.append((start, length, 1, 0))
    return groups
