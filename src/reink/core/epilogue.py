"""The boundary of a functional program: found in a graph, or put into it so that it behaves like the user's program.

New values are copied into their inputs at the very end; outputs that alias an input or each other are made
again from it by views. The result runs with any fx interpreter and shares no memory that eager does not share.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from reink.core.calls import CALLS, written_arguments
from reink.core.opinfo import Kind, facts_of
from reink.core.program import Form, OutputKind, OutputSpec, Program, ViewStep
from reink.core.torch_internals import NodeAppender, graph_module
from reink.core.views import step_operator

Node = torch.fx.Node
aten = torch.ops.aten


def epilogue_copies(program: Program) -> frozenset[Node]:
    """The copies into whole inputs that come last: nothing after one reads or writes its input, results aside.

    Empty for a graph that is not said to have an epilogue.
    """
    found: set[Node] = set()
    used: set[Node] = set()
    for node in reversed(program.graph.nodes) if program.signature.epilogue_in_graph else ():
        if node.op != "call_function" or facts_of(node.target).kind is Kind.VIEW:
            continue
        target = node.args[0] if node.target is aten.copy_.default else None
        if isinstance(target, Node) and target.op == "placeholder" and target not in used:
            found.add(node)
        used.update(_memory(operand) for operand in node.all_input_nodes)
    return frozenset(found)


def settle_epilogue(graph: torch.fx.Graph) -> None:
    """Let the copies into inputs come last, and let what else uses such an input use what it was before.

    So the graphs of AOTAutograd are meant: inputs are values, and passes have put them where equal values stood.
    """
    output = next(iter(reversed(graph.nodes)))
    copies = [n for n in graph.find_nodes(op="call_function", target=aten.copy_.default) if _into_input(n)]
    written = {n.args[0] for n in copies}
    held: dict[Node, Node] = {}

    def hold(value: Node) -> Node:
        if _root(value) in written and value not in held:
            with graph.inserting_before(copies[0]):
                held[value] = graph.call_function(aten.clone.default, (value,))
            held[value].meta["val"] = value.meta.get("val")
        return held.get(value, value)

    for node in copies:
        output.prepend(node)
    for node in copies:
        node.args = (node.args[0], *torch.fx.map_arg(node.args[1:], hold))
    output.args = torch.fx.map_arg(output.args, hold)


def tie_epilogue(graph: torch.fx.Graph) -> None:
    """Let an input that ends with a value made elsewhere be overwritten from the last of its own versions.

    Functionalization leaves no trace of a write that was overwritten as a whole: without the tie its memory would seem
    to be needed for what the caller gave. The calls in `graph` are those of reink.
    """
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        if not _into_input(node):
            continue
        target, source = node.args[:2]
        last = target
        while (new := _next_version(last)) is not None and new is not source:
            last = new
        if last is target or new is source or _root(source) is last:
            continue
        with graph.inserting_before(node):
            tied = graph.call_function(aten.copy.default, (last, source))
        tied.meta["val"] = last.meta.get("val")
        node.args = (target, tied)


def _next_version(value: Node) -> Node | None:
    """What a write makes of all of `value`: a scatter into it, or its new value as a base or argument of a call."""
    for user in value.users:
        if user.op != "call_function":
            continue
        if facts_of(user.target).window and user.args[0] is value:
            return user
        if user.target in CALLS and value in (written := _written(user)):
            return _result(user, len(facts_of(user.args[0]).result_aliases) + written.index(value))
    return None


def _written(call: Node) -> list[Any]:
    """What each new value of a functional call is a new value of."""
    op, args, kwargs, *bases = call.args
    return list(bases[0]) if bases else [v for _, v in written_arguments(op, args, kwargs)]  # type: ignore[arg-type]


def _result(call: Node, index: int) -> Node:
    """Result `index` of a call, taken if nobody has."""
    found = next((u for u in call.users if u.args[1] == index), None)
    if found is None:
        with call.graph.inserting_after(call):
            found = call.graph.call_function(operator.getitem, (call, index))
        found.meta["val"] = call.meta["val"][index]
    return found


def _into_input(node: Node) -> bool:
    target = node.args[0]
    return isinstance(target, Node) and target.op == "placeholder"


def _memory(node: Node) -> Node:
    """The value in whose memory `node` is, through views and copies into it."""
    root = _root(node)
    while root.target is aten.copy_.default and isinstance(root.args[0], Node):
        root = _root(root.args[0])
    return root


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
