"""The boundary of a functional program put into the graph itself, so that it behaves like the user's program.

New values are copied into their inputs at the very end; outputs that alias an input or each other are made
again from it by views. The result runs with any fx interpreter and shares no memory that eager does not share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.fx

from reink.core.opinfo import Kind, facts_of
from reink.core.program import Form, OutputKind, OutputSpec, Program, ViewStep
from reink.core.torch_internals import NodeAppender, graph_module
from reink.core.views import step_operator

Node = torch.fx.Node
aten = torch.ops.aten


def with_epilogue(functional: Program) -> Program:
    """`functional` with its write-backs as final ``copy_`` nodes and its outputs tied to inputs as eager has them."""
    copied: dict[Node, Node] = {}
    graph = torch.fx.Graph()
    results = list(graph.graph_copy(functional.graph, copied))  # type: ignore[arg-type]
    for old, new in copied.items():
        new.meta = dict(old.meta)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    signature = functional.signature
    _detach_sources(graph, results, signature, placeholders)
    for mutation in signature.mutations:
        target = placeholders[mutation.input]
        node = NodeAppender(graph).append(aten.copy_.default, (target, results[mutation.result]))
        node.meta["val"] = target.meta.get("val")
    outputs: list[Any] = []
    for k, spec in enumerate(signature.outputs):
        again = spec.same_as >= 0
        outputs.append(outputs[spec.same_as] if again else _output(graph, k, spec, results, placeholders, copied))
    graph.output(tuple(outputs))
    _drop_dead_views(graph)
    module = graph_module(functional.module, graph)
    return replace(
        functional, module=module, form=Form.INPLACE, signature=replace(signature, epilogue_in_graph=True), bare=False
    )


def _detach_sources(graph: torch.fx.Graph, results: list[Any], signature: Any, placeholders: list[Node]) -> None:
    """What a pass left as a view of an input is copied: a new value because the epilogue may overwrite it, and a
    fresh output because eager gives it memory and strides of its own."""
    wanted: list[tuple[int, Any]] = [(m.result, None) for m in signature.mutations]
    wanted += [(k, s.like) for k, s in enumerate(signature.outputs) if s.kind is OutputKind.FRESH]
    for k, like in wanted:
        value = results[k]
        if not isinstance(value, Node) or _root(value) not in placeholders:
            continue
        if like is not None and all(type(n) is int for n in (*like.size(), *like.stride())):
            strided = (value, list(like.size()), list(like.stride()))
            empty = NodeAppender(graph).append(aten.new_empty_strided.default, strided)
            copied = NodeAppender(graph).append(aten.copy.default, (empty, value))
            copied.meta["val"] = like
        else:
            copied = NodeAppender(graph).append(aten.clone.default, (value,))
            copied.meta["val"] = value.meta.get("val")
        results[k] = copied


def _root(node: Node) -> Node:
    while node.op == "call_function" and facts_of(node.target).kind is Kind.VIEW:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _output(
    graph: torch.fx.Graph,
    k: int,
    spec: OutputSpec,
    results: list[Any],
    placeholders: list[Node],
    copied: dict[Node, Node],
) -> Any:
    if spec.kind is OutputKind.INPUT_ALIAS:
        return _chain(graph, placeholders[spec.source], spec.steps, copied)
    if spec.kind is OutputKind.GROUP_ALIAS:
        return _chain(graph, results[spec.source], spec.steps, copied)
    return results[k]


def _chain(graph: torch.fx.Graph, node: Node, steps: tuple[ViewStep, ...], copied: dict[Node, Node]) -> Node:
    for step in steps:
        args = torch.fx.map_arg(step.args, lambda n: copied[n])
        node = NodeAppender(graph).append(step_operator(step), (node, *args))
    return node


def _drop_dead_views(graph: torch.fx.Graph) -> None:
    """The values that stood for regenerated outputs have no user any more."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and facts_of(node.target).kind is Kind.VIEW:
            graph.erase_node(node)
