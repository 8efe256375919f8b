"""Where the commonest views lie, by integer arithmetic alone: running an operator on meta tensors costs 5 us.

Each function takes the view's numbers after the tensor and answers with a layout only for plain calls in
range. For anything else it answers None, and the operator itself is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

# Size, strides and offset of a tensor in its storage, in elements.
Layout = tuple[tuple[int, ...], tuple[int, ...], int]


def layout_of_view(target: Any, parent: Layout, args: tuple[Any, ...]) -> Layout | None:
    """The layout that the view `target` makes of `parent`, or None if only the operator knows."""
    rule = _RULES.get(id(target))
    return None if rule is None else rule(parent, args)


def _select(parent: Layout, args: tuple[Any, ...]) -> Layout | None:
    """``select(dim, index)``"""
    size, stride, offset = parent
    if len(args) != 2:
        return None
    dim, index = args
    if type(dim) is not int or type(index) is not int or not 0 <= dim < len(size):
        return None
    if not 0 <= index < size[dim]:
        return None
    return size[:dim] + size[dim + 1 :], stride[:dim] + stride[dim + 1 :], offset + index * stride[dim]


def _slice(parent: Layout, args: tuple[Any, ...]) -> Layout | None:
    """``slice(dim, start, end, step)``, where an end past the last element means up to there."""
    size, stride, offset = parent
    if len(args) < 3:
        return None
    dim, start, end = args[:3]
    step = args[3] if len(args) == 4 else 1
    if type(dim) is not int or type(start) is not int or type(end) is not int or type(step) is not int:
        return None
    if len(args) > 4 or not 0 <= dim < len(size) or step < 1:
        return None
    end = min(end, size[dim])
    if not 0 <= start <= end:
        return None
    count = (end - start + step - 1) // step
    sizes = (*size[:dim], count, *size[dim + 1 :])
    return sizes, (*stride[:dim], stride[dim] * step, *stride[dim + 1 :]), offset + start * stride[dim]


def _transpose(parent: Layout, args: tuple[Any, ...]) -> Layout | None:
    """``transpose(dim, other)``"""
    size, stride, offset = parent
    if len(args) != 2:
        return None
    a, b = args
    if type(a) is not int or type(b) is not int or not 0 <= a < len(size) or not 0 <= b < len(size):
        return None
    order = list(range(len(size)))
    order[a], order[b] = b, a
    return tuple([size[k] for k in order]), tuple([stride[k] for k in order]), offset


def _view(parent: Layout, args: tuple[Any, ...]) -> Layout | None:
    """``view(size)`` of a tensor with elements and the strides of new memory; one size may be -1."""
    size, stride, offset = parent
    if len(args) != 1 or type(args[0]) is not tuple:
        return None
    total = 1
    for count in size:
        total *= count
    asked: tuple[Any, ...] = args[0]
    known, unknown = 1, -1
    for k, count in enumerate(asked):
        if type(count) is int and count > 0:
            known *= count
        elif type(count) is int and count == -1 and unknown < 0:
            unknown = k
        else:
            return None
    if total == 0 or (total % known if unknown >= 0 else total != known) or stride != _row_major(size):
        return None
    if unknown >= 0:
        asked = (*asked[:unknown], total // known, *asked[unknown + 1 :])
    return asked, _row_major(asked), offset


def _row_major(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of this size."""
    strides: list[int] = []
    step = 1
    for count in reversed(size):
        strides.append(step)
        step *= count
    return tuple(strides[::-1])


# By identity, because hashing an operator is slow.
_RULES: dict[int, Callable[[Layout, tuple[Any, ...]], Layout | None]] = {
    id(aten.select.int): _select,
    id(aten.slice.Tensor): _slice,
    id(aten.transpose.int): _transpose,
    id(aten.view.default): _view,
}
