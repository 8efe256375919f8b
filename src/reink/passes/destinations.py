"""Tensors that are joined, computed where the whole will be.

``cat`` and ``stack`` copy each part. Where the parts are made by operators that can be given memory for their result,
the whole is memory first, and each part is written there: a chain of scatters, of which re-inplacing makes what it
makes of any. What no operator can be told to compute there is copied into its place, as it would have been anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import bits_of, canonical, layout_of
from reink.core.fakes import value_of_call
from reink.core.opinfo import facts_of
from reink.core.program import Program
from reink.core.torch_internals import detect_fake_mode
from reink.passes.out_forms import ALIGNMENT

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

# What a node that stands for another knows of it.
_KEPT = ("reink_order", "reink_from", "stack_trace")
_CAT, _STACK, _EMPTY = aten.cat.default, aten.stack.default, aten.empty.memory_format


def compute_where_joined(functional: Program) -> None:
    """Take ``cat`` and ``stack`` apart where most of the bytes can be computed in the memory of the whole."""
    for inner in functional.subgraphs.values():
        compute_where_joined(inner)
    graph = functional.graph
    joins = [n for target in (_CAT, _STACK) for n in graph.find_nodes(op="call_function", target=target)]
    if not joins:
        return
    results = {r for r in functional.results() if isinstance(r, Node)}
    position = {n: k for k, n in enumerate(graph.nodes)}
    for node in sorted(joins, key=position.__getitem__):
        parts = list(_parts(node))
        direct = [n for n, window in parts if _is_made_for(n, node, window, results)]
        total = node.meta["val"].numel()
        if direct and 2 * sum(n.meta["val"].numel() for n in direct) >= total:
            _take_apart(node, parts, min(direct, key=position.__getitem__))


def _parts(node: Node) -> Iterator[tuple[Node, tuple[int, int]]]:
    """Each part with the indices that it takes of the joined dim; nothing where they are not just put side by side."""
    whole, given = node.meta.get("val"), node.args[0]
    if not isinstance(whole, Tensor) or node.kwargs or not isinstance(given, (list, tuple)):
        return
    if len(set(given)) < len(given):
        return
    dim, stacked = _dim(node), node.target is _STACK
    size, stride, _ = layout_of(whole)
    if not all(type(n) is int for n in (*size, *stride)) or math.prod(size[:dim]) != 1 or 0 in size or bits_of(whole):
        return
    if stride != canonical(size, tuple(math.prod(size[k + 1 :]) for k in range(len(size)))):
        return  # the memory that is made for it is row-major
    found, start = [], 0
    for part in given:
        value = part.meta.get("val") if isinstance(part, Node) else None
        if not isinstance(value, Tensor) or value.dtype is not whole.dtype or value.dim() + stacked != whole.dim():
            return
        count = 1 if stacked else layout_of(value)[0][dim]
        if type(count) is not int:
            return
        found.append((part, (start, start + count)))
        start += count
    if start == size[dim]:
        yield from found  # type: ignore[misc]


def _dim(node: Node) -> int:
    dim: Any = node.args[1] if len(node.args) > 1 else 0
    return dim % node.meta["val"].dim()  # type: ignore[no-any-return]


def _is_made_for(part: Node, whole: Node, window: tuple[int, int], results: set[Node]) -> bool:
    """Whether an operator can be told to make `part` in its place in `whole`, and the program needs it nowhere else."""
    if (
        part.op != "call_function"
        or len(part.users) > 1
        or part in results
        or whole.meta["val"].device != part.meta["val"].device
    ):
        return False
    facts, value, joined = facts_of(part.target), part.meta["val"], whole.meta["val"]
    stride, outer, dim = layout_of(value)[1], layout_of(joined)[1], _dim(whole)
    inner = outer[dim + 1 :] if whole.target is _STACK else outer[dim:]
    kept = (*outer[:dim], *inner)
    same = all(n == 1 or a == b for n, a, b in zip(value.size(), stride, kept, strict=True))
    aligned = window[0] * outer[dim] * joined.dtype.itemsize % ALIGNMENT == 0
    return facts.out is not None and same and not bits_of(value) and (facts.pointwise or aligned)


def _take_apart(node: Node, parts: list[tuple[Node, tuple[int, int]]], first: Node) -> None:
    """Memory before the `first` part that is made for it, and a scatter for each part."""
    graph, whole, dim = node.graph, node.meta["val"], _dim(node)
    mode = detect_fake_mode([whole])
    meta = {k: v for k, v in node.meta.items() if k in _KEPT}
    with graph.inserting_before(first):
        options = {"dtype": whole.dtype, "device": whole.device, "pin_memory": False}
        made = graph.call_function(_EMPTY, (list(layout_of(whole)[0]),), options)
        made.meta.update(meta)
        made.meta["val"] = value_of_call(made, mode)
        if "reink_order" in first.meta:
            made.meta["reink_order"] = first.meta["reink_order"]
    with graph.inserting_before(node):
        for part, (start, end) in parts:
            if node.target is _STACK:
                made = graph.call_function(aten.select_scatter.default, (made, part, dim, start))
            else:
                made = graph.call_function(aten.slice_scatter.default, (made, part, dim, start, end))
            made.meta.update(meta)
            made.meta["val"], made.meta["reink_joins"] = whole, True
    node.replace_all_uses_with(made)
    graph.erase_node(node)
