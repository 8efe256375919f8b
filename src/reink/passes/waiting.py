"""What can go on while a write waits for readers of the old value.

A part of reinplace.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Place, layout_of, may_overlap
from reink.core.opinfo import Kind, OpFacts
from reink.core.placement_rules import scatter_window
from reink.passes.in_place import is_alike
from reink.passes.placement import Placement
from reink.passes.write_back import view_place

Node = torch.fx.Node

# How many writes that wait a view is looked for behind.
MOST_PASSED = 64

# Looked up once: reading a member of an Enum, or an operator of torch.ops, runs Python code.
_COPY = torch.ops.aten.copy.default
_VIEW = Kind.VIEW


def may_wait(node: Node, facts: OpFacts) -> bool:
    """Whether `node` only carries on a value that was left for later: it costs nothing, and nothing sees it happen."""
    return facts.kind is _VIEW or bool(facts.window) or node.target is _COPY


def seen_past(node: Node, state: Placement) -> Place | None:
    """Where `node` lies if it is a view of writes that wait: where they leave its memory alone, or where the value is
    that one of them writes there."""
    facts, done = state.facts[node], state.done
    if facts.kind is not _VIEW or any(i not in done for i in state.inputs[node] if i is not node.args[0]):
        return None
    writes: list[Node] = []
    base: Any = node.args[0]
    while base not in done:
        if not state.facts[base].window or len(writes) == MOST_PASSED:
            return None
        writes.append(base)
        base = base.args[0]
    place = state.base_of(writes[-1])
    if place is None or layout_of(node.args[0].meta["val"])[:2] != (place.size, place.stride):  # type: ignore[union-attr]
        return None
    seen = view_place(place, node, facts)
    for write in writes:
        window = scatter_window(place, write)
        if window is seen:
            value = state.places.get(write.args[1])  # type: ignore[arg-type]
            return value if isinstance(value, Place) and is_alike(node.meta["val"], value) else None
        if may_overlap(seen, window):
            return None
    return seen
