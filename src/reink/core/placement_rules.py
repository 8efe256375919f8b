"""Where the parts of a value lie: the window of a scatter and the views of a v2 call, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import PARTICULAR_VIEWS, Place, canonical, view_value
from reink.core.opinfo import facts_of, positional
from reink.core.program import BaseView, ViewStep

Node = torch.fx.Node


def scatter_window(base: Place, node: Node, guess: Place | None = None) -> Place:
    """The place that a scatter node writes when its base lives in `base`; `guess` is a view that it may be."""
    found = base.windows.get(node)
    if found is not None:
        return found
    facts = facts_of(node.target)
    if guess is not None and guess.parent is base and not node.kwargs and guess.step == (facts.window, node.args[2:]):
        base.windows[node] = guess
        return guess
    place = base.windows[node] = window(base, ViewStep(facts.window, positional(facts, node, 2)))
    known = node.meta.get("reink_window")
    if known is not None:
        place.suggest_value(known)
    return place


def window(base: Place, step: ViewStep) -> Place:
    """The place of `step` applied to the tensor in `base`."""
    found = _RULES[step.op](base, step) if step.op in _RULES and not base.is_symbolic() else None
    if found is not None:
        return found
    if step.op in PARTICULAR_VIEWS:
        base = base.regular()
    return base.child(step, base.value, view_value(base.value, step))


def _select(base: Place, step: ViewStep) -> Place | None:
    dim, index = step.args
    if type(index) is not int:
        return None
    rank = len(base.size)
    dim %= rank
    index = index + base.size[dim] if index < 0 else index
    size = base.size[:dim] + base.size[dim + 1 :]
    stride = base.stride[:dim] + base.stride[dim + 1 :]
    offset = base.offset + index * base.stride[dim] * base.dtype.itemsize
    return base.at(step, size, canonical(size, stride), offset, base.dtype, base.bits)


def _slice(base: Place, step: ViewStep) -> Place | None:
    args: list[Any] = [*step.args, *(0, None, None, 1)[len(step.args) :]]
    dim, start, end, stride = args
    if any(isinstance(a, torch.fx.Node) for a in args):
        return None
    dim %= len(base.size)
    start, end, stride = slice(start, end, stride).indices(base.size[dim])
    count = max(0, -(-(end - start) // stride))
    size = (*base.size[:dim], count, *base.size[dim + 1 :])
    strides = (*base.stride[:dim], base.stride[dim] * stride, *base.stride[dim + 1 :])
    offset = base.offset + start * base.stride[dim] * base.dtype.itemsize
    return base.at(step, size, canonical(size, strides), offset, base.dtype, base.bits)


def _strided(base: Place, step: ViewStep) -> Place | None:
    size, stride = step.args[0], step.args[1]
    if len(step.args) > 2 and step.args[2] is not None:
        return None
    if not all(type(n) is int for n in (*size, *stride)):
        return None
    strides = canonical(tuple(size), tuple(stride))
    return base.at(step, tuple(size), strides, base.offset, base.dtype, base.bits)


_RULES = {"aten.select.int": _select, "aten.slice.Tensor": _slice, "aten.as_strided.default": _strided}


def base_view_place(base: Place, view: BaseView, values: Sequence[Any] | None = None) -> Place:
    """The place of a v2 call's argument; `values` are the fake values after each step, when they are known."""
    place = base
    if values is None or len(values) != len(view.steps):
        for step in view.steps:
            place = window(place, step)
        return place
    before = base.value
    for step, value in zip(view.steps, values, strict=True):
        place = place.child(step, before, value)
        before = value
    return place
