"""Functionalizing calls that run graphs of their own, such as ``cond`` and ``while_loop``. A part of functionalize.

A graph of a call is functionalized like a program of its own. What it writes and did not make becomes a base: the call
is given the whole storage, each of its graphs takes its views of it, and a new value comes back. So operands that
share memory share it inside as well.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place
from reink.core.emitting import GraphEmitter
from reink.core.ledger import Ledger
from reink.core.opinfo import Kind, OpFacts, facts_of
from reink.core.program import Form, MutationSignature, OutputKind, OutputSpec, Program, attribute_of, tensors_in
from reink.core.subgraphs import SubgraphCall, arguments_of, subgraph_call, with_new_values
from reink.core.values import Pending, Values
from reink.core.views import chain
from reink.passes.refusals import OutsideInput, refuse_unwritable, subgraph_alias, subgraph_mutation

Node = torch.fx.Node
GraphModule = torch.fx.GraphModule

# Operators that run one graph once, and the position of the first operand.
RUN_ONCE = {"invoke_subgraph": 2, "wrap": 1}


@dataclass(slots=True)
class Bound:
    """What an inner graph is given. Not frozen: it is filled while the operands are looked at.

    `inputs`: name and fake value of each input to make; `sources`: what the outer graph gives for it, a place, a node
    or a number; `captured[k]`: which input captured input k is, and the place in it that it looks at (None: all of it);
    `numbers`: the inputs that are symbolic sizes of the outer graph.
    """

    inputs: list[tuple[str, Any]] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    captured: list[tuple[int, Place | None]] = field(default_factory=list)
    numbers: dict[Node, int] = field(default_factory=dict)

    def add(self, name: str, value: Any, source: Any) -> int:
        """One more input; its number."""
        taken = {n for n, _ in self.inputs}
        self.inputs.append((next(n for n in _numbered(name) if n not in taken), value))
        self.sources.append(source)
        return len(self.inputs) - 1


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A captured call, its graphs made pure as far as `bases` are known to be written, and what they are given."""

    node: Node
    facts: OpFacts
    call: SubgraphCall
    bases: list[Buffer]
    bound: Bound
    inner: list[Program]


def _numbered(name: str) -> Iterator[str]:
    yield name
    for k in itertools.count(1):
        yield f"{name}_{k}"


Functionalize = Callable[[Program, Bound | None], Program]


class Subgraphs:
    """The calls of one graph; `functionalize` makes the program of an inner graph pure.

    `made` are the graphs that the calls run from now on, by the names that they have in the functional graph.
    """

    def __init__(
        self,
        program: Program,
        graph: torch.fx.Graph,
        emitter: GraphEmitter,
        ledger: Ledger,
        values: Values,
        functionalize: Functionalize,
    ) -> None:
        self._program, self._graph = program, graph
        self._emitter, self._ledger, self._values = emitter, ledger, values
        self._functionalize = functionalize
        self.made: dict[str, Program] = {}
        self._untouched: dict[str, GraphModule] = {}
        self._alone: dict[Node, Program] = {}
        self._aliased: list[tuple[Node, OpFacts, list[tuple[Buffer, int]]]] = []

    def modules(self) -> dict[str, GraphModule]:
        """Every graph that the functional graph names."""
        return {**self._untouched, **{name: inner.module for name, inner in self.made.items()}}

    def graph_of(self, node: Any) -> GraphModule | None:
        """The graph that a captured ``get_attr`` node names, if it names one."""
        if not isinstance(node, Node) or node.op != "get_attr":
            return None
        found = attribute_of(node.graph.owning_module or self._program.module, str(node.target))
        return found if isinstance(found, GraphModule) else None

    def inlined(self, node: Node, facts: OpFacts) -> tuple[GraphModule, tuple[Any, ...]] | None:
        """The graph and operands of a call that runs one graph once, if it writes them or returns their memory.

        The graph then becomes part of this one. What it does not touch stays a graph, compiled once.
        """
        first, module = RUN_ONCE.get(facts.name), self.graph_of(node.args[0])
        if first is None or module is None:
            return None
        signature = self._pure_alone(node.args[0]).signature
        if signature.reshaped:
            raise subgraph_mutation(node, facts, "what an operand is")
        if not signature.mutations and not any(_shares_memory(spec) for spec in signature.outputs):
            return None
        return module, node.args[first:]

    def call(self, node: Node, facts: OpFacts) -> Any:
        """The results of a call; None for one that is to be kept as it is, of graphs that write nothing."""
        call = subgraph_call(node)
        if call is None:
            self._own_writes(node, facts)
            return None
        bases: list[Buffer] = []
        while True:
            bound = self._bound(call, bases)
            attempt = _Attempt(node, facts, call, bases, bound, [self._pure(g, bound) for g in call.graphs])
            found = self._written(attempt)
            if not found:
                break
            bases += found
        if any(_shares_memory(spec) for i in attempt.inner for spec in i.signature.outputs):
            if bases or any(_writes(m) for m in map(self.graph_of, call.graphs) if m is not None):
                raise subgraph_alias(node, facts)
            self._keep(node, facts, call)
            return None
        return self._emit(attempt)

    def finish(self) -> None:
        """Refuse a program that writes what a graph may have handed on, or what it may have got from a graph."""
        for node, facts, versions in self._aliased:
            results = [p.buffer for user in node.users for p in self._values.places(user)]
            if any(self._ledger.version(b) != v for b, v in versions) or any(self._ledger.version(b) for b in results):
                raise subgraph_alias(node, facts)

    # -- what the graphs are given ---------------------------------------------------------------

    def _pure(self, graph: Any, bound: Bound | None) -> Program:
        """The pure program of a captured graph. An error names an input of this graph, not of that one."""
        module = self.graph_of(graph)
        assert module is not None
        try:
            return self._functionalize(Program(module, Form.MUTABLE, MutationSignature(known=False)), bound)
        except OutsideInput as error:
            source = bound.sources[error.input] if bound is not None and error.input >= 0 else None
            is_input = isinstance(source, Place) and source.buffer.kind == "input"
            error.input = source.buffer.input_index if is_input else -1  # type: ignore[union-attr]
            raise

    def _pure_alone(self, graph: Any) -> Program:
        """`_pure` of a graph of whose operands nothing is known."""
        if graph not in self._alone:
            self._alone[graph] = self._pure(graph, None)
        return self._alone[graph]

    def _bound(self, call: SubgraphCall, bases: list[Buffer]) -> Bound:
        bound, values = Bound(), self._values
        for operand in call.carried:
            bound.captured.append((self._add(bound, operand), None))
        roots = {b: bound.add(b.name, b.root.value, b.root) for b in bases}
        for operand in call.shared:
            place = values.place(operand)
            if place is None or (place.buffer not in roots and (place.is_root or not place.overlaps_itself())):
                bound.captured.append((self._add(bound, operand), None))
                continue
            # also a view whose elements share memory is taken inside: a copy of it would have other strides
            buffer = place.buffer
            if buffer not in roots:
                roots[buffer] = bound.add(buffer.name, buffer.root.value, buffer.root)
            bound.captured.append((roots[buffer], place))
        for _, place in bound.captured:
            for number in _numbers(place):
                if number not in bound.numbers:
                    bound.numbers[number] = bound.add(number.name, number.meta.get("val"), number)
        return bound

    def _add(self, bound: Bound, operand: Any) -> int:
        if not isinstance(operand, Node):
            return bound.add("number", operand, operand)
        return bound.add(operand.name, operand.meta.get("val"), self._values[operand])

    def _written(self, attempt: _Attempt) -> list[Buffer]:
        """The storages that the graphs write and that are not among `bases`. Raises ReinkError for what has to stay."""
        node, facts, call, bases = attempt.node, attempt.facts, attempt.call, attempt.bases
        found: list[Buffer] = []
        for graph, program in zip(call.graphs, attempt.inner, strict=True):
            if program.signature.offset_sensitive:
                raise subgraph_alias(node, facts)
            if program.signature.reshaped:
                raise subgraph_mutation(node, facts, "what an operand is")
            for k in program.signature.mutated_inputs:
                positions = [p for p, (i, _) in enumerate(attempt.bound.captured) if i == k]
                places = [self._values.place(call.operands[p]) for p in positions]
                if graph not in call.writers or any(p < len(call.carried) for p in positions):
                    raise subgraph_mutation(node, facts, "the condition or a carried value of a loop")
                for place in places:
                    refuse_unwritable(node, facts, place, by_call=True)
                    if place is not None and place.buffer not in (*bases, *found):
                        found.append(place.buffer)
        carried = [self._values.place(a) for a in call.carried]
        if any(place is not None and place.buffer in (*bases, *found) for place in carried):
            raise subgraph_mutation(node, facts, "memory that a carried value of the loop starts in")
        return found

    # -- the call --------------------------------------------------------------------------------

    def _emit(self, attempt: _Attempt) -> Any:
        """The functional call; each base gets its new value."""
        node, call, bases, values = attempt.node, attempt.call, attempt.bases, self._values
        first = len(call.carried)
        for graph, program in zip(call.graphs, attempt.inner, strict=True):
            if graph in call.writers:
                with_new_values(program, first, len(bases))
        given = [values.read_value(source) for source in attempt.bound.sources]
        parts = SubgraphCall(
            tuple(values.read_all(call.head)),
            tuple(self._named(str(g.target), p) for g, p in zip(call.graphs, attempt.inner, strict=True)),
            tuple(given[:first]),
            tuple(given[first + len(bases) :]),
        )
        own = tuple(node.meta["val"])
        args = arguments_of(node.target, parts, tuple(given[first : first + len(bases)]), in_place=False)
        new = self._emitter.emit(node.target, args, (*own, *(b.root.value for b in bases)))
        for k, base in enumerate(bases):
            value = self._emitter.emit(operator.getitem, (new, len(own) + k), base.root.value)
            self._ledger.bind(base, value)
        return tuple(Pending(new, k, v) for k, v in enumerate(own))

    def _named(self, name: str, program: Program) -> Node:
        """A node that names the graph of `program`, by a name of its own."""
        unique = next(n for n in _numbered(name) if n not in self.made and n not in self._untouched)
        self.made[unique] = program
        return self._graph.get_attr(unique)

    # -- graphs that stay as they are ------------------------------------------------------------

    def _own_writes(self, node: Node, facts: OpFacts) -> None:
        """Graphs of an operator that is not followed: they may write what they made themselves, and nothing else."""
        for used in node.all_input_nodes:
            module = self.graph_of(used)
            if module is None or used in self._values:
                continue
            if not _writes(module):
                names = (n for n in _numbered(str(used.target)) if n not in self.made)
                name = next(n for n in names if self._untouched.get(n, module) is module)
                self._untouched[name] = module
                self._values[used] = self._graph.get_attr(name)
                continue
            inner = self._pure_alone(used)
            signature = inner.signature
            if signature.mutations or signature.reshaped:
                raise subgraph_mutation(node, facts, "an operand")
            if signature.offset_sensitive or any(_shares_memory(spec) for spec in signature.outputs):
                raise subgraph_alias(node, facts)
            self._values[used] = self._named(str(used.target), inner)

    def _keep(self, node: Node, facts: OpFacts, call: SubgraphCall) -> None:
        """Keep the graphs of a call of which a result may be an operand."""
        places = [p for a in call.operands for p in self._values.places(a)]
        self._aliased.append((node, facts, [(p.buffer, self._ledger.version(p.buffer)) for p in places]))
        self._own_writes(node, facts)


def _shares_memory(spec: OutputSpec) -> bool:
    return spec.kind not in (OutputKind.FRESH, OutputKind.OTHER) or spec.same_as >= 0


def _writes(module: GraphModule) -> bool:
    """Whether a node of a graph, or of one inside it, writes a tensor."""
    for each in module.modules():
        if isinstance(each, GraphModule):
            known = [facts_of(n.target) for n in each.graph.nodes if n.op == "call_function"]
            if any(f.written or f.kind in (Kind.CALL, Kind.METADATA) for f in known):
                return True
    return False


def _numbers(place: Place | None) -> Iterator[Node]:
    """The symbolic sizes in the steps from the base to `place`."""
    for step in chain(place) if place is not None else ():
        yield from tensors_in(step.args)
