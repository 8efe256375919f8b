"""Regions against the byte sets of real NumPy views, boxes and the interval index against brute force.

``REINK_LONG=1`` checks 100,000 random pairs of views in place of 2,000.
"""

import copy
import os
import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from reink.core import region_search
from reink.core.region import (
    DIFFERENCE_BUDGET,
    Box,
    IntegerFacts,
    IntervalIndex,
    Region,
    box_contains,
    boxes_disjoint,
    boxes_equal,
    byte_size,
    contains,
    difference,
    disjoint,
    equal_bytes,
    is_empty,
    overlaps_itself,
    self_overlaps,
    span,
)

LONG = os.environ.get("REINK_LONG") == "1"
PAIRS = 100_000 if LONG else 2_000
STORAGE = 2048
"""Bytes of the storage that random views look at."""

Array = np.ndarray[Any, Any]
Bytes = frozenset[int]


@dataclass(frozen=True)
class View:
    """A view as torch describes it, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    itemsize: int

    @property
    def region(self) -> Region:
        return Region.of(self.size, self.stride, self.offset, self.itemsize)

    def mask(self) -> Array:
        """One flag for each byte of the storage: whether the view addresses it."""
        touched = np.zeros(STORAGE, dtype=bool)
        at = np.full((), self.offset * self.itemsize)
        for count, step in zip(self.size, self.stride, strict=True):
            at = at[..., None] + np.arange(count) * step * self.itemsize
        for byte in range(self.itemsize):
            touched[at + byte] = True
        return touched


def view_of(array: Array, storage: Array) -> View:
    """How torch would describe `array`, a view of the bytes of `storage`."""
    start = array.__array_interface__["data"][0] - storage.__array_interface__["data"][0]
    item = array.itemsize
    assert start % item == 0 and all(step % item == 0 for step in array.strides)
    return View(array.shape, tuple(step // item for step in array.strides), start // item, item)


def region_of(array: Array, storage: Array) -> Region:
    return view_of(array, storage).region


def bytes_of(region: Region) -> Bytes:
    """The bytes of a region by its definition."""
    found = {region.lo} if region.count else set()
    for count, stride in region.dims:
        found = {base + step * stride for base in found for step in range(count)}
    return frozenset(found)


# Random real views


def random_step(array: Array, rng: random.Random) -> Array:
    """One more view of `array`, of a kind drawn by chance."""
    kind = rng.randrange(8)
    changed: Array = array
    axis = rng.randrange(array.ndim)
    length = array.shape[axis]
    index: list[Any] = [slice(None)] * array.ndim
    if kind <= 2:
        start, stop = sorted((rng.randint(0, length), rng.randint(0, length)))
        index[axis] = slice(start, stop, rng.choice((1, 1, 2, 3)))
        changed = array[tuple(index)]
    elif kind == 3:
        index[axis] = slice(None, None, rng.choice((-1, -2, 2)))
        changed = array[tuple(index)]
    elif kind == 4 and length and array.ndim > 1:
        index[axis] = rng.randrange(length)
        changed = array[tuple(index)]
    elif kind == 5:
        changed = array.transpose(rng.sample(range(array.ndim), array.ndim))
    elif kind == 6 and array.ndim > 1:
        changed = array.diagonal(rng.randint(-2, 2), *rng.sample(range(array.ndim), 2))
    elif kind == 7 and length >= 2:
        changed = sliding_window_view(array, rng.randint(1, min(4, length)), axis)
    return changed


def random_strided(typed: Array, rng: random.Random) -> Array:
    """A view with strides drawn by chance, inside `typed` (1-d)."""
    rank = rng.randint(1, 4)
    size = [rng.choice((1, 2, 3, 4, 5, 7, 8)) for _ in range(rank)]
    stride = [
        rng.choice((0, 1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 31)) * rng.choice((1, 1, 1, -1)) for _ in range(rank)
    ]
    reaches = [(count - 1) * step for count, step in zip(size, stride, strict=True)]
    below, above = -sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0)
    if below + above >= len(typed):
        return typed[:1]
    start = below + rng.randint(0, len(typed) - below - above - 1)
    return as_strided(typed[start:], size, [step * typed.itemsize for step in stride])


SHAPES = ((32,), (64,), (8, 16), (16, 8), (4, 4, 8), (6, 10), (5, 7, 3), (3, 4, 2, 5), (12, 12))


def random_view(storage: Array, rng: random.Random) -> Array:
    """A view as programs make them: a typed shape at an offset, then up to four view operators."""
    itemsize = rng.choice((1, 2, 4, 4, 8))
    typed = storage.view(f"u{itemsize}")
    if rng.random() < 0.25:
        return random_strided(typed, rng)
    shape = rng.choice(SHAPES)
    first = rng.choice((0, 0, 8, 16, rng.randint(0, len(typed) - int(np.prod(shape)))))
    if first + int(np.prod(shape)) > len(typed):
        first = 0
    array = typed[first : first + int(np.prod(shape))].reshape(shape)
    for _ in range(rng.randint(0, 4)):
        array = random_step(array, rng)
    return array


def random_pairs(seed: int, count: int) -> Iterator[tuple[View, View]]:
    rng = random.Random(seed)
    storage = np.zeros(STORAGE, dtype=np.uint8)
    for _ in range(count):
        yield view_of(random_view(storage, rng), storage), view_of(random_view(storage, rng), storage)


def test_disjoint_against_numpy_views() -> None:
    """Never "disjoint" on a shared byte; undecided at most once in a thousand apart pairs."""
    undecided = apart = 0
    for a, b in random_pairs(seed=1, count=PAIRS):
        share = bool((a.mask() & b.mask()).any())
        says_apart = disjoint(a.region, b.region)
        assert says_apart == disjoint(b.region, a.region), (a, b)
        assert not (says_apart and share), (a, b)
        apart += not share
        undecided += not share and not says_apart
    assert apart > PAIRS // 10
    assert undecided <= PAIRS // 1000, f"{undecided} of {PAIRS} pairs undecided"


def test_set_relations_against_numpy_views() -> None:
    """What `contains` and the others claim is true of the byte sets; they seldom miss what is true."""
    missed = 0
    for a, b in random_pairs(seed=2, count=PAIRS // 2):
        ours, theirs = a.mask(), b.mask()
        first, second = a.region, b.region
        inside, same = not (theirs & ~ours).any(), bool((ours == theirs).all())
        assert not contains(first, second) or inside, (a, b)
        assert not equal_bytes(first, second) or same, (a, b)
        assert byte_size(first) == ours.sum(), a
        missed += (inside and not contains(first, second)) + (same and not equal_bytes(first, second))
        check_difference(first, second, ours & ~theirs)
    assert missed <= PAIRS // 1000, f"{missed} of {PAIRS // 2} pairs undecided"


def check_difference(first: Region, second: Region, expected: Array) -> None:
    """The pieces are few, pairwise disjoint and together exactly the `expected` bytes."""
    pieces = difference(first, second)
    if pieces is None:
        return
    found = [byte for piece in pieces for byte in bytes_of(piece)]
    assert len(pieces) <= DIFFERENCE_BUDGET
    assert len(found) == len(set(found)), (first, second)
    assert sorted(found) == np.flatnonzero(expected).tolist(), (first, second)


def test_contained_views_are_seen() -> None:
    """A view of a view lies in it: NumPy's own chains give pairs where containment holds."""
    rng = random.Random(3)
    storage = np.zeros(STORAGE, dtype=np.uint8)
    missed = 0
    for _ in range(PAIRS // 2):
        outer = random_view(storage, rng)
        inner = random_step(outer, rng)
        missed += not contains(region_of(outer, storage), region_of(inner, storage))
    assert missed <= PAIRS // 1000


# Arbitrary geometry


@st.composite
def views(draw: st.DrawFn) -> View:
    """Any size and strides whose span fits the storage."""
    itemsize = draw(st.sampled_from((1, 2, 4, 8)))
    dims = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(-40, 40)), max_size=4))
    reaches = [(max(count, 1) - 1) * step for count, step in dims]
    below, above = -sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0)
    length = STORAGE // itemsize
    if below + above >= length:
        return View((), (), 0, itemsize)
    offset = draw(st.integers(below, length - above - 1))
    return View(tuple(count for count, _ in dims), tuple(step for _, step in dims), offset, itemsize)


@settings(max_examples=300, deadline=None)
@given(views(), views())
def test_any_pair_of_geometries(a: View, b: View) -> None:
    first, second = a.region, b.region
    ours, theirs = a.mask(), b.mask()
    assert bytes_of(first) == frozenset(np.flatnonzero(ours).tolist())
    assert disjoint(first, second) == (not (ours & theirs).any())
    assert not contains(first, second) or not (theirs & ~ours).any()
    assert not equal_bytes(first, second) or bool((ours == theirs).all())
    check_difference(first, second, ours & ~theirs)


@settings(max_examples=300, deadline=None)
@given(views())
def test_any_geometry(view: View) -> None:
    region, touched = view.region, view.mask()
    elements = int(np.prod(view.size))
    assert byte_size(region) == touched.sum()
    assert is_empty(region) == (not touched.any())
    assert overlaps_itself(view.size, view.stride) == (touched.sum() < elements * view.itemsize)
    assert self_overlaps(region) == (touched.sum() < region.count)
    if touched.any():
        assert span(region) == (int(touched.argmax()), STORAGE - int(touched[::-1].argmax()))
    assert equal_bytes(region, region) and contains(region, region)
    assert difference(region, region) == []


@settings(max_examples=200, deadline=None)
@given(views())
def test_normal_form(view: View) -> None:
    """Order and sign of dims do not matter; strides ascend and nothing is left to merge."""
    region = view.region
    again = View(view.size[::-1], view.stride[::-1], view.offset, view.itemsize)
    assert again.region is region
    if is_empty(region):
        return
    assert all(count > 1 and stride > 0 for count, stride in region.dims)
    strides = [stride for _, stride in region.dims]
    assert strides == sorted(set(strides))
    for place, (count, inner) in enumerate(region.dims):
        assert not any(s % inner == 0 and s <= count * inner for s in strides[place + 1 :])


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), st.integers(1, 60), st.data())
def test_first_multiple_within(factor: int, modulus: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, modulus - 1))
    high = data.draw(st.integers(low, modulus - 1))
    expected = next((x for x in range(modulus) if low <= factor * x % modulus <= high), None)
    assert region_search.first_multiple_within(factor, modulus, low, high) == expected


# Identity


def test_equal_regions_are_one_object() -> None:
    whole = Region.of((4, 8), (8, 1), 0, 4)
    assert whole is Region.of((32,), (1,), 0, 4)
    assert whole is Region.of((8, 16), (1, 8), 0, 1)
    assert whole is Region.of((16,), (-1,), 15, 8)
    assert whole is not Region.of((32,), (1,), 1, 4)
    assert copy.deepcopy(whole) is whole
    assert pickle.loads(pickle.dumps(whole)) is whole
    assert Region.of((3, 0), (1, 1), 5, 4) is Region.empty(20)


def test_regions_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Region.empty().lo = 1  # type: ignore[misc]


def test_empty_regions() -> None:
    some, none = Region.of((4,), (1,), 0, 4), Region.empty(4)
    assert span(none) == (4, 4) and byte_size(none) == 0
    assert disjoint(some, none) and disjoint(none, none) and contains(some, none) and not contains(none, some)
    assert equal_bytes(none, Region.empty(9)) and not equal_bytes(none, some)
    assert difference(none, some) == [] and difference(some, none) == [some]


# Known hard pairs


def matrix(rows: int, columns: int) -> tuple[Array, Array]:
    """A float32 matrix and the bytes under it."""
    storage = np.zeros(rows * columns * 4, dtype=np.uint8)
    return storage.view(np.float32).reshape(rows, columns), storage


APART: dict[str, tuple[Any, Any]] = {
    "even and odd rows": (np.s_[::2], np.s_[1::2]),
    "left and right half": (np.s_[:, :64], np.s_[:, 64:]),
    "two blocks of one row band": (np.s_[4:8, :10], np.s_[4:8, 10:]),
    "columns of different parity": (np.s_[:, ::2], np.s_[:, 1::2]),
    "every third and a block between": (np.s_[:, ::3], np.s_[5, 1:3]),
    "one row and the next row's start": (np.s_[5:6, 4:], np.s_[6:, :4]),
    "backward and forward": (np.s_[::-2], np.s_[::2]),
}
MEETING: dict[str, tuple[Any, Any]] = {
    "one row and the first columns": (np.s_[5:6], np.s_[:, :4]),
    "crossing row and column": (np.s_[3], np.s_[:, 9]),
    "overlapping windows": (np.s_[:, :65], np.s_[:, 64:]),
    "every second and every third": (np.s_[:, 1::2], np.s_[:, ::3]),
}


@pytest.mark.parametrize("name", APART)
def test_pairs_that_are_apart(name: str) -> None:
    x, storage = matrix(16, 128)
    a, b = (region_of(x[index], storage) for index in APART[name])
    assert disjoint(a, b) and disjoint(b, a)
    assert difference(a, b) == [a]


@pytest.mark.parametrize("name", MEETING)
def test_pairs_that_meet(name: str) -> None:
    x, storage = matrix(16, 128)
    a, b = (region_of(x[index], storage) for index in MEETING[name])
    assert not disjoint(a, b) and not disjoint(b, a)


def test_transposed_windows() -> None:
    x, storage = matrix(64, 64)
    turned = x.T
    assert disjoint(region_of(turned[8:16, 8:16], storage), region_of(x[16:24, 8:16], storage))
    assert equal_bytes(region_of(turned[8:16, 8:16], storage), region_of(x[8:16, 8:16], storage))
    assert not disjoint(region_of(turned[8:17, 8:16], storage), region_of(x[8:16, 16:24], storage))


def test_crossing_diagonals() -> None:
    """The two diagonals of a square matrix cross at one element if its side is odd, nowhere if it is even."""
    for side in (8, 9, 128, 129):
        x, storage = matrix(side, side)
        main, other = region_of(x.diagonal(), storage), region_of(x[:, ::-1].diagonal(), storage)
        assert disjoint(main, other) == (side % 2 == 0)
    x, storage = matrix(64, 64)
    assert disjoint(region_of(x.diagonal(1), storage), region_of(x.diagonal(), storage))


def test_dtype_views() -> None:
    """The low and the high halves of int32 items, as int16 views."""
    storage = np.zeros(64, dtype=np.uint8)
    halves = storage.view(np.int16)
    low, high = region_of(halves[::2], storage), region_of(halves[1::2], storage)
    assert disjoint(low, high)
    assert difference(region_of(storage.view(np.int32), storage), low) == [high]


def test_difference_of_a_column_block() -> None:
    x, storage = matrix(16, 128)
    whole, middle = region_of(x, storage), region_of(x[:, 32:64], storage)
    pieces = difference(whole, middle)
    assert pieces is not None and len(pieces) <= 3
    assert sum(map(byte_size, pieces)) == byte_size(whole) - byte_size(middle)
    assert all(disjoint(piece, middle) for piece in pieces)


def test_large_strides_need_no_listing() -> None:
    """Sizes of a real cache, where listing bytes would never end."""
    batch, heads, length, width = 64, 32, 8192, 128
    size, stride = (batch, heads, length, width), (heads * length * width, length * width, width, 1)
    cache = Region.of(size, stride, 0, 2)
    first = Region.of((batch, heads, 1, width), stride, 4000 * width, 2)
    second = Region.of((batch, heads, 17, width), stride, 4001 * width, 2)
    assert disjoint(first, second) and contains(cache, first) and contains(cache, second)
    rest = difference(cache, first)
    assert rest is not None and sum(map(byte_size, rest)) == byte_size(cache) - byte_size(first)


def test_over_budget_means_may_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four incommensurate strides over odd bytes apart from an even target: proven, or not claimed."""
    a = Region.of((90, 90, 90, 90), (10007, 10501, 11003, 11701), 0, 1)
    b = Region.of((90, 90), (9001, 12011), 5, 1)
    monkeypatch.setattr(region_search, "SEARCH_BUDGET", 0)
    assert not disjoint(a, b)
    assert overlaps_itself((90, 90, 90, 90), (10007, 10501, 11003, 11701))


# Another oracle


def islpy_text(region: Region) -> str:
    """The region as an integer set in isl's notation."""
    names = [f"i{place}" for place in range(len(region.dims))]
    terms = [f"{stride}*{name}" for name, (_, stride) in zip(names, region.dims, strict=True)]
    ranges = [f"0 <= {name} < {count}" for name, (count, _) in zip(names, region.dims, strict=True)]
    formula = " and ".join([f"b = {' + '.join([str(region.lo), *terms])}", *ranges])
    return f"{{ [b] : exists {', '.join(names)} : {formula} }}" if names else f"{{ [b] : {formula} }}"


def test_against_islpy() -> None:
    isl = pytest.importorskip("islpy")
    for a, b in random_pairs(seed=4, count=60):
        first, second = isl.Set(islpy_text(a.region)), isl.Set(islpy_text(b.region))
        assert disjoint(a.region, b.region) == bool(first.is_disjoint(second)), (a, b)
        assert contains(a.region, b.region) == bool(second.is_subset(first)), (a, b)


# Boxes


def elements(box: Box) -> set[tuple[int, ...]]:
    """The index tuples of a box of plain ints."""
    found: set[tuple[int, ...]] = {()}
    for start, length, step in box.dims:
        found = {(*index, start + i * step) for index in found for i in range(length)}
    return found


intervals = st.tuples(st.integers(0, 8), st.integers(0, 5), st.integers(1, 4))
boxes = st.lists(intervals, min_size=2, max_size=2).map(lambda dims: Box(tuple(dims)))


@settings(max_examples=400, deadline=None)
@given(boxes, boxes)
def test_boxes_of_integers(a: Box, b: Box) -> None:
    ours, theirs = elements(a), elements(b)
    assert boxes_disjoint(a, b, IntegerFacts()) == (not ours & theirs)
    assert not box_contains(a, b, IntegerFacts()) or ours >= theirs
    assert not boxes_equal(a, b, IntegerFacts()) or ours == theirs
    assert boxes_equal(a, a, IntegerFacts())


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_box_steps_follow_numpy(data: st.DataObject) -> None:
    """select and slice, composed, address what NumPy's slices address; the result lies in the box before."""
    root = np.arange(12 * 10).reshape(12, 10)
    array, box = root, Box.whole(root.shape)
    for _ in range(data.draw(st.integers(0, 4))):
        dim = data.draw(st.integers(0, 1))
        size = array.shape[dim]
        start = data.draw(st.integers(0, size - 1))
        step = data.draw(st.integers(1, 3))
        length = data.draw(st.integers(1, (size - start + step - 1) // step))
        index = [slice(None), slice(None)]
        before = box
        if length == 1:
            box, index[dim] = box.select(dim, start), slice(start, start + 1)
        else:
            box, index[dim] = box.slice(dim, start, length, step), slice(start, start + length * step, step)
        array = array[tuple(index)]
        assert box_contains(before, box, IntegerFacts())
    assert {row * 10 + column for row, column in elements(box)} == set(array.ravel().tolist())


def test_what_is_known_of_integers() -> None:
    facts = IntegerFacts()
    assert facts.is_nonnegative(0) and not facts.is_nonnegative(-1) and not facts.is_nonnegative("n")


class SympyFacts:
    """Facts from sympy's assumptions; it fails on a comparison, which would be a guard."""

    def is_nonnegative(self, value: Any) -> bool:
        sympy = pytest.importorskip("sympy")
        return bool(sympy.expand(value).is_nonnegative)


def symbols(names: str) -> Any:
    """Sympy integers that are at least 1."""
    sympy = pytest.importorskip("sympy")
    return sympy.symbols(names, integer=True, positive=True)


def test_symbolic_boxes_that_are_apart() -> None:
    batch, length = symbols("batch length")
    cache, facts = Box.whole((2, batch, length)), SympyFacts()
    rest = cache.slice(2, 3, length - 3)
    assert boxes_disjoint(cache.select(0, 0), cache.select(0, 1), facts)
    assert boxes_disjoint(cache.slice(2, 0, 3), rest, facts) and boxes_disjoint(rest, cache.slice(2, 0, 3), facts)
    assert boxes_disjoint(cache.slice(1, 0, batch), cache.slice(1, batch, batch), facts)
    assert boxes_disjoint(cache.slice(2, 0, length, 2), cache.slice(2, 1, length, 2), facts)
    assert boxes_disjoint(cache.slice(2, batch, length, 2), cache.slice(2, batch + 1, length, 4), facts) is False
    assert boxes_disjoint(cache.slice(1, 0, 0), cache, facts)


def test_symbolic_boxes_that_may_meet() -> None:
    batch, length = symbols("batch length")
    cache, facts = Box.whole((batch, length)), SympyFacts()
    assert not boxes_disjoint(cache.select(0, 0), cache.select(0, batch - 1), facts)
    assert not boxes_disjoint(cache.select(0, 0), cache.select(1, 0), facts)
    assert not boxes_disjoint(cache.slice(1, 0, batch), cache.slice(1, length, 1), facts)
    assert not boxes_disjoint(cache.slice(1, 0, length, batch), cache.slice(1, batch, length, batch), facts)


def test_symbolic_containment() -> None:
    batch, length = symbols("batch length")
    cache, facts = Box.whole((batch, length)), SympyFacts()
    window = cache.slice(1, 2, length - 2)
    assert box_contains(cache, window, facts) and not box_contains(window, cache, facts)
    assert box_contains(cache, cache.select(0, batch - 1), facts)
    assert boxes_equal(cache, cache.slice(0, 0, batch).slice(1, 0, length), facts)
    assert boxes_equal(window.slice(1, 1, 4), cache.slice(1, 3, 4), facts)
    strided = cache.slice(1, 0, length, batch)
    assert box_contains(strided, strided, facts) and not box_contains(strided, cache, facts)
    assert box_contains(strided, strided.slice(1, 1, 1), facts) is False
    assert box_contains(window, cache.slice(1, 0, 0), facts)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(-2, 1), st.integers(1, 3)),
        min_size=2,
        max_size=2,
    )
)
def test_symbolic_verdicts_hold_for_every_size(steps: list[tuple[int, int, int, int]]) -> None:
    """What is claimed for a symbolic size n >= 1 is true at each small n."""
    n = symbols("n")
    facts, root = SympyFacts(), Box.whole((n, n))
    a, b = (root.slice(dim, start, n + extra, step) for dim, start, extra, step in steps)
    apart, inside, same = boxes_disjoint(a, b, facts), box_contains(a, b, facts), boxes_equal(a, b, facts)
    for value in range(1, 7):
        ours, theirs = (elements(at_size(box, n, value)) for box in (a, b))
        assert not apart or not ours & theirs
        assert not inside or ours >= theirs
        assert not same or ours == theirs


def at_size(box: Box, symbol: Any, value: int) -> Box:
    """The box with the symbol replaced by a number."""
    sympy = pytest.importorskip("sympy")
    numbers = [[int(sympy.sympify(part).subs(symbol, value)) for part in dim] for dim in box.dims]
    return Box(tuple((start, length, step) for start, length, step in numbers))


# Interval index

spans = st.tuples(st.integers(0, 60), st.integers(0, 40)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(spans, st.integers(0, 3)), max_size=30), st.data())
def test_interval_index(added: list[tuple[tuple[int, int], int]], data: st.DataObject) -> None:
    index = IntervalIndex[int]()
    for (lo, hi), item in added:
        index.add(lo, hi, item)
    live = set(added)
    for entry in data.draw(st.lists(st.sampled_from(sorted(live)), unique=True)) if live else []:
        index.remove(*entry[0], entry[1])
        live.remove(entry)
    assert len(index) == len(live)
    lo, hi = data.draw(spans)
    expected = [item for (start, stop), item in live if max(lo, start) < min(hi, stop)]
    assert sorted(index.hits(lo, hi)) == sorted(expected)


def test_interval_index_refuses_to_remove_what_is_not_there() -> None:
    index = IntervalIndex[str]()
    index.add(0, 4, "a")
    for lo, hi, item in ((0, 4, "b"), (1, 4, "a"), (0, 99, "a")):
        with pytest.raises(KeyError):
            index.remove(lo, hi, item)
    assert len(index) == 1


def test_interval_index_holds_many_items() -> None:
    index = IntervalIndex[int]()
    for item in range(50_000):
        index.add(item * 256, item * 256 + 256, item)
    assert index.hits(256 * 40_000 - 1, 256 * 40_000 + 1) == [39_999, 40_000]
    for item in range(50_000):
        index.remove(item * 256, item * 256 + 256, item)
    assert len(index) == 0 and index.hits(0, 1 << 40) == []
