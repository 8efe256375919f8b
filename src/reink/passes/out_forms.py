"""Memory that an operator can be given for its result, where it would be copied anyway.

A part of reinplace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Place, bits_of, may_overlap
from reink.core.opinfo import OpFacts
from reink.passes.in_place import is_alike
from reink.passes.placement import Placement
from reink.passes.write_back import WriteBack

Node = torch.fx.Node
Tensor = torch.Tensor

# How new memory is aligned, in bytes.
ALIGNMENT = 64


def destination(node: Node, facts: OpFacts, state: Placement) -> tuple[Node, Place, WriteBack] | None:
    """The scatter or copy that writes the result of `node`, where it does, and what carries it on; None if the operator
    cannot be given that memory yet, or at all."""
    if state.hoisting:
        return None
    found = state.write_backs.carrier(node)
    if found is None:
        return None
    carrier, place = found
    if (carrier, 0) in state.elsewhere or not _fits(node, facts, place, state.places):
        return None
    chain = state.write_backs.follow(node, place)
    if carrier not in chain.exempt or not state.is_free(place, [place], chain):
        return None
    return carrier, place, chain


def _fits(node: Node, facts: OpFacts, place: Place, places: Mapping[Node, Any]) -> bool:
    """Whether the form of an operator with ``out`` computes in `place`, to the last bit, what it returns otherwise.

    Memory like that of the result lets the same kernel run. Those of libraries may round otherwise where it is not
    aligned as new memory is.
    """
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not is_alike(value, place) or bits_of(value) != place.bits:
        return False
    aligned = place.buffer.kind == "fresh" and place.buffer.input_index < 0 and place.offset % ALIGNMENT == 0
    if not facts.pointwise and not aligned:
        return False
    others = [places[i] for i in node.all_input_nodes if i in places]
    return not any(isinstance(other, tuple) or may_overlap(other, place) for other in others)
