"""Applying a table of decompositions to a pure graph, as `torch.export`'s `run_decompositions` takes it.

Only pure operators are taken apart. Views, scatters and calls of mutable operators stay what they are: re-inplacing
reads them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from reink.core.decomposing import Table, traced_decomposition
from reink.core.opinfo import Kind, facts_of
from reink.core.program import Form, Program
from reink.core.torch_internals import OpOverload

Node = torch.fx.Node
aten = torch.ops.aten

_COPIES = frozenset({aten.copy.default, aten.clone.default, aten.lift_fresh_copy.default})


def decompose(program: Program, table: Table) -> None:
    """Replace each pure operator of `table` in `program`, and in the graphs inside it, by what it is made of."""
    assert program.form is Form.FUNCTIONAL
    used = {op: rule for op, rule in table.items() if isinstance(op, OpOverload) and _may_go(op)}
    _decompose(program, used)


def _may_go(op: OpOverload) -> bool:
    facts = facts_of(op)
    return facts.kind is Kind.PURE and not facts.window and op not in _COPIES


def _decompose(program: Program, table: Table) -> None:
    for inner in program.subgraphs.values():
        _decompose(inner, table)
    for node in list(program.graph.nodes):
        if node.op == "call_function" and node.target in table:
            _take_apart(program, node, table)


def _take_apart(program: Program, node: Node, table: Table) -> None:
    traced = traced_decomposition(node, table)
    if traced is None:
        return
    operands = node.all_input_nodes
    made: dict[Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), operands, strict=True))
    with program.graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "call_function":
                made[inner] = _copied(program.graph, inner, made, node)
    output: Any = next(iter(reversed(traced.graph.nodes))).args[0]
    _replace(node, torch.fx.map_arg(output, lambda n: made[n]))


def _copied(graph: torch.fx.Graph, inner: Node, made: dict[Node, Any], of: Node) -> Node:
    new = graph.node_copy(inner, lambda n: made[n])
    new.meta = {"val": inner.meta.get("val")}
    for name in ("stack_trace", "reink_order", "reink_write"):
        if name in of.meta:
            new.meta[name] = of.meta[name]
    return new


def _replace(node: Node, output: Any) -> None:
    """Let the users of `node` use `output`."""
    if isinstance(output, (list, tuple)):
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(output[user.args[1]])  # type: ignore[index]
            user.graph.erase_node(user)
    else:
        node.replace_all_uses_with(output)
    node.graph.erase_node(node)
