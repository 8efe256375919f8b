"""Wrapper tensors: subclasses that hold plain tensors, which may be shared with others."""

from __future__ import annotations

from typing import Any

import torch
from support.operators import ops
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from corpus.registry import counting, program


def pair(*shape: int, start: float = 1) -> TwoTensor:
    """A wrapper around two tensors of `shape`."""
    return TwoTensor(counting(*shape, start=start), counting(*shape, start=start + 100))


def _beside_overlap() -> tuple[Any, ...]:
    x = counting(7)
    return pair(2), x[:4], x[3:]


@program("beside_overlapping_inputs", _beside_overlap)
def beside_overlapping_inputs(both: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    # pytorch#119755
    a.add_(0.5)
    b.mul_(3)
    return both * 2, a * b.sum()


def _of_one_pair() -> tuple[Any, ...]:
    a, b = counting(3), counting(3, start=8)
    return TwoTensor(a, b), TwoTensor(a, b)


@program("share_inside", _of_one_pair)
def share_inside(a: Tensor, b: Tensor) -> Tensor:
    # pytorch#114415
    a.add_(1)
    return b * 2


def _overlap_inside() -> tuple[Any, ...]:
    x, y = counting(9), counting(9, start=30)
    return TwoTensor(x[:4], y[:4]), TwoTensor(x[3:7], y[3:7]), x[4:6]


@program("overlap_in_part_inside", _overlap_inside)
def overlap_in_part_inside(a: Tensor, b: Tensor, between: Tensor) -> tuple[Tensor, Tensor]:
    a.add_(1)
    before = b * 2
    between.mul_(10)
    return before, a + b


def _around_an_input() -> tuple[Any, ...]:
    x = counting(3, 4)
    return TwoTensor(x, counting(3, 4, start=50)), x[1]


@program("plain_input_is_inside", _around_an_input)
def plain_input_is_inside(both: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    both[1].mul_(2)
    row.add_(1)
    return both.sum(0), row * 1


@program("write_through_a_view", lambda: (pair(3, 4),))
def write_through_a_view(both: Tensor) -> Tensor:
    row = both.t()[1]
    row.add_(5)
    return both * row.sum()


@program("returns_itself_and_a_view", lambda: (pair(3, 4), counting(4)))
def returns_itself_and_a_view(both: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    both[0].copy_(both[1])
    return both.add_(1), both[2:], x.mul_(2)


@program("the_same_object_twice", lambda: (pair(4),) * 2)
def the_same_object_twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a.add_(1)
    b.mul_(2)
    return b, a + b


def _one_in_another() -> tuple[Any, ...]:
    inner = pair(2, 3)
    return TwoTensor(inner, pair(2, 3, start=40)), inner.b[0]


@program("one_in_another", _one_in_another)
def one_in_another(nested: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
    nested[0].add_(1)
    return nested * 2, part.mul_(3)


@program("made_in_the_program", lambda: (pair(3, 2),))
def made_in_the_program(both: Tensor) -> tuple[Tensor, Tensor]:
    made = both * 2
    column = made[:, 1]
    column.fill_(7)
    return made, column


def _rows_inside() -> tuple[Any, ...]:
    x = counting(4, 3)
    return TwoTensor(x[1], counting(6, start=50)[3:]), x


@program("custom_operator_beside", _rows_inside)
def custom_operator_beside(both: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    ops.bump(x[1])
    both.mul_(2)
    ops.bump(x[:2])
    return both + 1, x.sum()


@program("in_a_loop", lambda: (pair(3), torch.tensor(2.0)))
def in_a_loop(both: Tensor, factor: Tensor) -> Tensor:
    for _ in range(3):
        both.mul_(factor)
        factor.add_(1)
    return both - factor
