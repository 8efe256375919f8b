"""The checker's arithmetic of views against torch, view by view."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reink.check.geometry import Geometries, Geometry, concrete
from reink.check.layouts import Layout, layout_of_view

aten = torch.ops.aten
DTYPES = (torch.float32, torch.int8, torch.complex64)
LARGEST = 2**63 - 1


def layout_of(tensor: Tensor) -> Layout:
    return tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset())


def some_tensor(draw: random.Random) -> Tensor:
    """A meta tensor, often with gaps, an offset, lazy bits, dims of one element or of none."""
    size = [draw.choice([0, 1, 1, 2, 3, 4, 6, 6, 6, 6]) for _ in range(draw.randrange(4))]
    tensor = torch.empty(size, dtype=draw.choice(DTYPES), device="meta")
    if tensor.is_complex():
        tensor = draw.choice([tensor, tensor.conj(), tensor.conj().imag, tensor.real])
    for dim in range(tensor.dim()):
        if draw.random() < 0.3:
            tensor = tensor[(slice(None),) * dim + (slice(draw.randrange(3), None, draw.choice([1, 2])),)]
    if tensor.dim() > 1 and draw.random() < 0.3:
        tensor = tensor.transpose(draw.randrange(tensor.dim()), 0)
    if draw.random() < 0.2:
        tensor = tensor.unsqueeze(0).expand(draw.choice([1, 2, 3]), *tensor.size())
    return tensor


def some_select(draw: random.Random, tensor: Tensor) -> tuple[Any, ...]:
    return draw.randrange(-1, tensor.dim() + 1), draw.randrange(-3, 5)


def some_slice(draw: random.Random, tensor: Tensor) -> tuple[Any, ...]:
    ends = [None, *range(-4, 9), LARGEST]
    step = draw.choice([1, 1, 1, 2, 3, 0, -1])
    args = (draw.randrange(-1, tensor.dim() + 1), draw.choice(ends), draw.choice(ends), step)
    return args[: draw.choice([0, 1, 2, 3, 3, 3, 4, 4])]


def some_transpose(draw: random.Random, tensor: Tensor) -> tuple[Any, ...]:
    return draw.randrange(-1, tensor.dim() + 1), draw.randrange(-1, tensor.dim() + 1)


def some_view(draw: random.Random, tensor: Tensor) -> tuple[Any, ...]:
    """Mostly a size that fits: dims joined, split, or of one element added."""
    size = list(tensor.size())
    if len(size) > 1 and draw.random() < 0.5:
        k = draw.randrange(len(size) - 1)
        size[k : k + 2] = [size[k] * size[k + 1]]
    if size and draw.random() < 0.5:
        k = draw.randrange(len(size))
        size[k : k + 1] = [2, size[k] // 2]
    if draw.random() < 0.3:
        size.insert(draw.randrange(len(size) + 1), 1)
    if size and draw.random() < 0.4:
        size[draw.randrange(len(size))] = draw.choice([-1, -1, -1, 0, 5, -2])
    return (tuple(size),)


VIEWS: dict[Any, Callable[[random.Random, Tensor], tuple[Any, ...]]] = {
    aten.select.int: some_select,
    aten.slice.Tensor: some_slice,
    aten.transpose.int: some_transpose,
    aten.view.default: some_view,
}


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_views_lie_where_torch_puts_them(view: Any) -> None:
    """Whatever arithmetic answers, torch answers too; and what it does not answer is asked of torch."""
    draw, answers = random.Random(11), Counter[str]()
    for _ in range(4000):
        tensor = some_tensor(draw)
        args = VIEWS[view](draw, tensor)
        try:
            made = view(tensor, *(list(a) if isinstance(a, tuple) else a for a in args))
        except (RuntimeError, IndexError, ValueError):
            made = None
        found = layout_of_view(view, layout_of(tensor), args)
        if found is not None:
            assert made is not None, (tensor.size(), tensor.stride(), args)
            assert found == layout_of(made), (tensor.size(), tensor.stride(), args)
        geometries = Geometries()
        geometry = geometries.apply(view, geometries.of(tensor), args)
        assert (geometry is None) == (made is None)
        if made is not None:
            assert geometry is geometries.of(made)
            same_tensor(geometry, made)
        answers["refused" if made is None else "torch" if found is None else "arithmetic"] += 1
    assert min(answers[k] for k in ("refused", "torch", "arithmetic")) > 100, answers


def same_tensor(geometry: Geometry, made: Tensor) -> None:
    """The tensor that operators are run on is the one that torch made, but for strides that do not count."""
    tensor = geometry.tensor
    assert (tensor.size(), tensor.dtype, tensor.is_conj()) == (made.size(), made.dtype, made.is_conj())
    assert tensor.is_neg() == made.is_neg() and geometry.bits == made.is_conj() + 2 * made.is_neg()
    assert tensor.device.type == "meta" and layout_of(tensor) == geometry.layout
    if made.numel():
        assert tensor.storage_offset() == made.storage_offset()
        assert all(n == 1 or a == b for n, a, b in zip(made.size(), made.stride(), tensor.stride(), strict=True))


def test_what_is_said_of_bytes_is_what_they_are() -> None:
    """First and last byte, gaps, elements that share memory: counted one by one."""
    draw, seen = random.Random(12), Counter[str]()
    for _ in range(3000):
        tensor = some_tensor(draw)
        geometry = Geometries().of(tensor)
        pairs = zip(tensor.size(), tensor.stride(), strict=True)
        steps = itertools.product(*(range(0, n * s, s) if s else [0] * n for n, s in pairs))
        starts = [tensor.storage_offset() + sum(step) for step in steps]
        assert geometry.is_empty == (not starts)
        if starts:
            item = tensor.element_size()
            assert (geometry.lo, geometry.hi) == (min(starts) * item, (max(starts) + 1) * item)
            full = len(set(starts)) * item == geometry.hi - geometry.lo
            assert full or not geometry.is_solid
            assert geometry.is_solid or not tensor.is_contiguous()
            assert geometry.overlaps_itself == (len(set(starts)) < len(starts))
        seen["contiguous" if tensor.is_contiguous() else "overlapping" if geometry.overlaps_itself else "other"] += 1
    assert min(seen.values()) > 100 and len(seen) == 3, seen


def test_numbers_that_are_no_plain_integers_are_left_to_the_operator() -> None:
    """A bool, a float or a string where an integer belongs; too many or too few."""
    layout = ((4, 4), (4, 1), 0)
    for view in VIEWS:
        for args in ((), (True, True), (0.0, 1.0), ("0", "1"), (0, 1, 2, 1, 1), ((4, 4.0),), ((True, 16),)):
            assert layout_of_view(view, layout, concrete(args)) is None, (view, args)
    assert layout_of_view(aten.detach.default, layout, ()) is None


def test_a_view_of_a_view_may_reach_the_whole_storage() -> None:
    """`as_strided` from a row sees what the storage holds beyond it."""
    geometries = Geometries()
    row = geometries.apply(aten.select.int, geometries.new((4, 4), (4, 1), torch.float32), (0, 1))
    assert geometries.strided(row, (8,), (1,), 4) is geometries.of(torch.empty(4, 4, device="meta").view(-1)[8:])
