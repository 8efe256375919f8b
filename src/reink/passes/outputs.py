"""Where each output of the user's program has its memory from. A part of functionalize.

An output that eager shares with an input, or with another output, is tied to it by views in the signature; an
output that is alone in its storage is a plain result.
"""

from __future__ import annotations

from typing import Any

import torch.fx

from reink.core.aliasing import Buffer, Place
from reink.core.ledger import Ledger
from reink.core.opinfo import Kind, facts_of
from reink.core.program import OutputKind, OutputSpec, ViewStep
from reink.core.views import chain

Node = torch.fx.Node

_ALIAS = ViewStep("aten.alias.default", ())


def output_specs(leaves: list[Any], values: list[Any], results: list[Any], ledger: Ledger) -> list[OutputSpec]:
    """A spec for each of the user's outputs. `leaves` are the captured nodes, `values` what the ledger knows them as.

    Appends to `results` the base of a storage that several outputs share when none of them is the base.
    """
    sharing: dict[Buffer, list[int]] = {}
    for k, value in enumerate(values):
        if type(value) is Place and value.buffer.kind == "fresh":
            sharing.setdefault(value.buffer, []).append(k)
    owners = {b: _owner(b, group, values, results, ledger) for b, group in sharing.items() if len(group) > 1}
    seen: dict[Node, int] = {}
    specs = []
    for k, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        if type(value) is not Place or value.buffer.kind == "constant":
            specs.append(OutputSpec(OutputKind.OTHER))
            continue
        origin = tensor_object(leaf)
        first = seen.setdefault(origin, k)
        specs.append(_spec(k, value, origin, owners, first if first != k else -1))
    return specs


def _owner(buffer: Buffer, group: list[int], values: list[Any], results: list[Any], ledger: Ledger) -> int:
    """The result that several outputs in one storage are views of: an output that is the base, or an extra one."""
    whole = [k for k in group if values[k] is buffer.root]
    if whole:
        return whole[0]
    results.append(ledger.newest(buffer))
    return len(results) - 1


def _spec(k: int, place: Place, origin: Node, owners: dict[Buffer, int], same_as: int) -> OutputSpec:
    buffer, steps = place.buffer, chain(place)
    if buffer.kind == "input":
        if not steps and origin.op != "placeholder":
            steps = (_ALIAS,)
        return OutputSpec(OutputKind.INPUT_ALIAS, buffer.input_index, steps, same_as)
    owner = owners.get(buffer, k)
    if owner == k:
        return OutputSpec(OutputKind.FRESH, like=place.value)
    return OutputSpec(OutputKind.GROUP_ALIAS, owner, steps or (_ALIAS,), same_as)


def tensor_object(node: Node) -> Node:
    """The node whose tensor object `node` is: an in-place operator returns the very tensor that it wrote."""
    while node.op == "call_function":
        facts = facts_of(node.target)
        aliases = facts.result_aliases[:1] if facts.kind in (Kind.IN_PLACE, Kind.METADATA, Kind.CALL) else ()
        if not aliases or aliases[0] < 0:
            break
        argument = facts.parameters[aliases[0]].given(node.args, node.kwargs)
        if not isinstance(argument, Node):
            break
        node = argument
    return node
