"""Whether an operator can run as its in-place twin on the memory of its first operand, and whose memory that is.

A part of reinplace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Place, geometry_of, may_overlap
from reink.core.calls import operand_nodes
from reink.core.opinfo import Kind, OpFacts, facts_of
from reink.passes.write_back import WriteBack

Node = torch.fx.Node
Tensor = torch.Tensor

# Looked up once: reading an operator of torch.ops runs Python code.
_VIEW_DTYPE = torch.ops.aten.view.dtype


def is_alike(value: Tensor, place: Place) -> bool:
    """Whether `value` has the size, strides and dtype of `place`, and no elements that share memory."""
    size, stride, _, dtype, _, extent = geometry_of(value)
    return size == place.size and stride == place.stride and dtype is place.dtype and not extent.overlaps


def fits(node: Node, value: Tensor, place: Place, chain: WriteBack) -> bool:
    """Whether nobody can tell the result in `place` from one in memory of its own."""
    size, stride, _, dtype, _, _ = geometry_of(value)
    if place.extent.overlaps or size != place.size:
        return False
    if stride == place.stride and dtype is place.dtype:
        return True
    if dtype is place.dtype:
        return all(_is_carried(user, chain) for user in node.users)
    return torch.can_cast(dtype, place.dtype) and all(u in chain.exempt for u in node.users)


def reads_itself(node: Node, place: Place, facts: OpFacts, inputs: Iterable[Node], places: Mapping[Node, Any]) -> bool:
    """Whether another operand lies in the written place, other than element for element."""
    for used in inputs:
        other = places.get(used)
        if other is place or other is None:
            continue
        if isinstance(other, tuple) or may_overlap(other, place):
            return True
    if facts.pointwise:
        return False
    first = node.args[0]
    again = sum(a is first for a in operand_nodes(node.args, node.kwargs)) > 1
    return again or any(u is not first and places.get(u) is place for u in inputs)


def _is_carried(user: Node, chain: WriteBack) -> bool:
    """Whether `user` only carries a value back, whatever its strides: itself, or by all that use the same bytes."""
    if user in chain.exempt:
        return True
    value: Any = user.meta.get("val")
    if user.target is not _VIEW_DTYPE or user.args[0].meta["val"].element_size() != value.element_size():  # type: ignore[union-attr]
        return False
    return all(_is_carried(u, chain) for u in user.users)


def shares_elements(base: Any) -> bool:
    """Whether elements of a value share memory: a scatter into it then writes more than its window."""
    return geometry_of(base.meta["val"])[5].overlaps


def makes_memory(node: Node) -> bool:
    """Whether an operator of PyTorch's own made the tensor: a custom one may return what it promised not to."""
    maker = node.args[0] if facts_of(node.target).kind is Kind.GETITEM else node
    return isinstance(maker, Node) and facts_of(maker.target).name.startswith("aten.")
