"""A user pass that does all the harm a correct pass may do: the nodes of the pure graph in a random legal order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch.fx import Graph, GraphModule, Node

_ANCHORED = ("placeholder", "get_attr")


@dataclass(slots=True)
class ShufflePass:
    """Check that a graph is pure, then put its nodes in a random order that their inputs allow.

    `sizes` gets the number of nodes of each graph seen, so that a test can tell that the pass ran.
    Not frozen: it records.
    """

    seed: int
    sizes: list[int] = field(default_factory=list)

    def __call__(self, graph: Graph) -> None:
        assert_pure(graph)
        self.sizes.append(len(graph.nodes))
        output = graph.output_node()
        for node in random_order(graph, random.Random(self.seed)):
            output.prepend(node)
        graph.lint()


def shuffle_pass(seed: int) -> ShufflePass:
    """A user pass for ``passes=(shuffle_pass(seed),)``."""
    return ShufflePass(seed)


def assert_pure(graph: Graph) -> None:
    """Fail if `graph`, or a graph nested in its module, holds a write or a node that is not ATen."""
    for each in _nested_graphs(graph):
        for node in each.nodes:
            assert node.op != "call_method", f"not an operator call: {node.format_node()}"
            schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
            assert schema is None or not schema.is_mutable, f"a write in a pure graph: {node.format_node()}"


def random_order(graph: Graph, rng: random.Random) -> list[Node]:
    """The nodes of `graph` that may move, in a random legal order; those with effects keep theirs."""
    body = [n for n in graph.nodes if n.op not in (*_ANCHORED, "output")]
    waits = {n: {m for m in n.all_input_nodes if m.op not in _ANCHORED} for n in body}
    effects = [n for n in body if has_effect(n)]
    for before, after in pairwise(effects):
        waits[after].add(before)
    order: list[Node] = []
    ready = [n for n in body if not waits[n]]
    while ready:
        chosen = ready.pop(rng.randrange(len(ready)))
        order.append(chosen)
        for n in body:
            if chosen in waits[n]:
                waits[n].discard(chosen)
                if not waits[n]:
                    ready.append(n)
    assert len(order) == len(body), "the graph has a cycle"
    return order


def has_effect(node: Node) -> bool:
    """Whether moving `node` past another such node could be seen."""
    return (
        "reink_ordered" in node.meta
        or node.is_impure()
        or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    )


def _nested_graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    owner = graph.owning_module
    if owner is None:
        return
    for module in owner.modules():
        if isinstance(module, GraphModule) and module.graph is not graph:
            yield module.graph
