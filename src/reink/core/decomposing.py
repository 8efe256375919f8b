"""What one operator of a graph is made of, by a table of decompositions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

from reink.core.torch_internals import detect_fake_mode, pytree, trace_decomposed

Node = torch.fx.Node
Table = Mapping[Any, Callable[..., Any]]


def traced_decomposition(node: Node, table: Table) -> torch.fx.GraphModule | None:
    """The pure graph that stands for `node`, whose inputs are ``node.all_input_nodes``; None where there is none."""
    operands = list(node.all_input_nodes)
    place = {n: k for k, n in enumerate(operands)}

    def run(*values: Any) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: values[place[n]])
        return node.target(*args, **kwargs)  # type: ignore[operator]

    mode = detect_fake_mode(pytree.tree_leaves([n.meta.get("val") for n in (*operands, node)]))
    if mode is None:
        return None
    traced = trace_decomposed(run, [n.meta.get("val") for n in operands], table, mode)
    refused = any(n.target is node.target or _is_refused(n) for n in traced.graph.nodes)
    return None if refused else traced


def _is_refused(node: Node) -> bool:
    """Whether a part of a decomposition is nothing that a pure graph may hold."""
    if node.op == "get_attr":
        return True
    return node.op == "call_function" and bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))
