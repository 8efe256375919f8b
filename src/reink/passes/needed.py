"""The nodes of a pure graph that matter, and what a walk over them asks of each: looked up once.

A part of reinplace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.fx

from reink.core.opinfo import Kind, OpFacts, facts_of
from reink.core.program import OutputKind, Program, tensors_in
from reink.core.torch_internals import input_nodes
from reink.passes.order import is_ordered

Node = torch.fx.Node

# Looked up once: reading a member of an Enum runs Python code.
_VIEW = Kind.VIEW
REGENERATED = (OutputKind.INPUT_ALIAS, OutputKind.GROUP_ALIAS)


class Needed:
    """`nodes` in graph order, without the output, with the `facts` and `inputs` of those that are calls.

    `pending` counts the reads of each value; `viewed` are the values that views are taken of; `dropped` are the nodes
    that nobody needs. The graph must not change while this is in use.
    """

    __slots__ = ("dropped", "facts", "inputs", "nodes", "pending", "viewed")

    def __init__(self, program: Program) -> None:
        self.nodes: list[Node] = []
        self.facts: dict[Node, OpFacts] = {}
        self.inputs: dict[Node, Iterable[Node]] = {}
        self.pending: dict[Node, int] = {}
        self.dropped: set[Node] = set()
        self.viewed: set[Any] = set()
        self._walk(program, self._results(program))

    def _results(self, program: Program) -> set[Node]:
        """What the boundary needs; counts its reads."""
        outputs, pending, needed = program.signature.outputs, self.pending, set[Node]()
        aliases = {k for k, s in enumerate(outputs) if s.kind in REGENERATED}
        for k, result in enumerate(program.results()):
            if k not in aliases and isinstance(result, Node):
                pending[result] = pending.get(result, 0) + 1
                needed.add(result)
        for spec in outputs:
            needed.update(tensors_in(spec.steps))
        return needed

    def _walk(self, program: Program, needed: set[Node]) -> None:
        """Every node before its inputs, so that a node is known to be needed when it is met."""
        pending, nodes, known, viewed = self.pending, self.nodes, self.facts, self.viewed
        for node in reversed(program.graph.nodes):
            op = node.op
            if node not in needed and (op == "output" or (op != "placeholder" and not is_ordered(node))):
                self.dropped.add(node)
                continue
            nodes.append(node)
            if op != "call_function":
                continue
            inputs = self.inputs[node] = input_nodes(node)
            facts = known[node] = facts_of(node.target)
            needed.update(inputs)
            if facts.kind is _VIEW:
                viewed.add(node.args[0])
            if not facts.looks_at_shape:
                for used in inputs:
                    pending[used] = pending.get(used, 0) + 1
        nodes.reverse()
