"""Graphs that are functional already, of any maker: put back in place, proven, reported.

What AOTAutograd hands to a compiler has functional calls in PyTorch's own form, scatters, and at its end one ``copy_``
into each written input. It is read as a program that writes only there, and goes through the steps that every program
goes through.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from reink.backends.announcing import announce
from reink.core.aliasing import Buffer, Place, layout_of
from reink.core.epilogue import epilogue_copies, settle_epilogue, tie_epilogue
from reink.core.fakes import value_of_call
from reink.core.opinfo import Kind, facts_of, operator_name, positional
from reink.core.program import (
    Form,
    MutationSignature,
    OutputKind,
    OutputSpec,
    Program,
    ViewStep,
    attribute_of,
    copy_nodes,
    source_of,
)
from reink.core.region import disjoint
from reink.core.stock_calls import from_stock
from reink.core.torch_internals import OpOverload, codegen_of, detect_fake_mode, graph_module, pytree, storage_key
from reink.errors import ReinkError
from reink.options import Options
from reink.pipeline import Compiled, begin, complete, without_collection
from reink.report import Report

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

_ALIAS = (ViewStep("aten.alias.default"),)
_WRITES = frozenset({Kind.CALL, Kind.IN_PLACE, Kind.METADATA})


def reinplace(gm: torch.fx.GraphModule, **given: Any) -> tuple[torch.fx.GraphModule, Report]:
    """A functional `gm` with every write back in place, where that is proven safe, and the report of what became of it.

    Takes ATen graphs with ``meta["val"]``: calls of mutable operators in the form of reink or of PyTorch
    (``auto_functionalized``, ``auto_functionalized_v2``), scatters, and one ``copy_`` into each written input at the
    end. `gm` stays as it is; the result behaves as it does when it runs: it takes, writes and returns the same, and
    results share memory with inputs where those of `gm` do. `given` are the options of `Options`;
    unless they say ``codegen="inductor"``, the graph is made for PyTorch's own kernels.

    Raises ReinkError ``not-pure`` for a graph that writes elsewhere, ``no-values``, ``aliased-inputs``.
    """
    with without_collection():
        graph = FunctionalGraph.of(gm)
        _refuse_writes(graph.program)
        compiled = compile_functional(graph, Options.of({"codegen": "eager", **given}), _name(gm))
        announce(compiled)
        report = compiled.report()
        return graph.rebuilt(compiled.runs), report


@dataclass(frozen=True, slots=True)
class FunctionalGraph:
    """A graph taken in: the captured program, and how its results were packed."""

    program: Program
    packing: Any
    of_module: torch.fx.GraphModule

    @classmethod
    def of(cls, module: torch.fx.GraphModule, *, settle: bool = False) -> FunctionalGraph:
        """`module` as a captured program, its calls read; a copy, `module` stays as it is. Raises ReinkError.

        `settle`: inputs are values wherever they are read, as AOTAutograd means them.
        """
        graph, copies = torch.fx.Graph(), dict[Node, Node]()
        copy_nodes(module.graph, graph, copies)
        output = next(iter(reversed(module.graph.nodes)))
        results = torch.fx.map_arg(output.args[0], copies.__getitem__)
        leaves, packing = pytree.tree_flatten(results)
        graph.output(tuple(leaves))
        if settle:
            settle_epilogue(graph)
        _require_values(graph, module)
        from_stock(graph)
        tie_epilogue(graph)
        signature = MutationSignature(known=False, epilogue_in_graph=True)
        program = Program(graph_module(module, graph), Form.MUTABLE, signature)
        return cls(program, packing, module)

    def rebuilt(self, program: Program) -> torch.fx.GraphModule:
        """`program`, which takes and returns what the captured one does, with its results packed as they were."""
        module = program.module
        output = program.output()
        output.args = (pytree.tree_unflatten(program.results(), self.packing),)
        module.graph.set_codegen(codegen_of(self.of_module.graph))
        module.meta.update(self.of_module.meta)
        fill_in_values(module.graph)
        module.graph.lint()
        module.recompile()
        return module


def compile_functional(graph: FunctionalGraph, options: Options, name: str, shared: Collection[int] = ()) -> Compiled:
    """The graph through all steps. Results in `shared` may be memory of the input whose new value they are a view of.

    Raises ReinkError.
    """
    compiled = begin(graph.program, options, name)
    _refuse_aliased_inputs(compiled.functional)
    _share(compiled.functional, shared)
    complete(compiled, out=False)
    return compiled


def _share(functional: Program, shared: Collection[int]) -> None:
    signature, results = functional.signature, functional.results()
    inputs = {results[m.result]: m.input for m in signature.mutations if isinstance(results[m.result], Node)}
    outputs = list(signature.outputs)
    for k in shared:
        root, steps = _viewed(results[k], inputs) if outputs[k].kind is not OutputKind.OTHER else (None, ())
        if root is not None:
            outputs[k] = OutputSpec(OutputKind.INPUT_ALIAS, inputs[root], steps or _ALIAS, outputs[k].same_as)
    functional.signature = replace(signature, outputs=tuple(outputs))


def _viewed(node: Any, roots: Collection[Node]) -> tuple[Node | None, tuple[ViewStep, ...]]:
    """The one of `roots` that `node` is a view of, and how; None if it is a view of none."""
    steps: list[ViewStep] = []
    while isinstance(node, Node) and node not in roots:
        facts = facts_of(node.target) if node.op == "call_function" else None
        if facts is None or facts.kind is not Kind.VIEW:
            return None, ()
        steps.append(ViewStep(facts.name, positional(facts, node, 1)))
        node = node.args[0]
    return (node, tuple(steps[::-1])) if isinstance(node, Node) else (None, ())


def fill_in_values(graph: torch.fx.Graph) -> None:
    """Give each call that returns something and has no ``meta["val"]`` the one that it would be traced with."""
    mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])
    for node in graph.nodes:
        if node.op != "call_function" or "val" in node.meta or not _returns(node.target):
            continue
        if mode is not None:
            node.meta["val"] = value_of_call(node, mode)


def _returns(target: Any) -> bool:
    return not isinstance(target, OpOverload) or bool(target._schema.returns)


# -- what is refused -------------------------------------------------------------------------------


def _require_values(graph: torch.fx.Graph, module: torch.fx.GraphModule) -> None:
    """Every tensor of a graph has to be known by a fake value."""
    for node in graph.nodes:
        if node.op in ("call_module", "call_method"):
            raise ReinkError(
                "not-a-tensor-program",
                f"cannot put a {node.op} node back in place: {node.name}",
                why="only graphs of ATen and custom operators say what they write",
                do="trace the module with make_fx or torch.export first",
            )
        named = node.op == "get_attr" and not isinstance(attribute_of(module, str(node.target)), Tensor)
        if node.op == "output" or named or "val" in node.meta:
            continue
        if node.op == "call_function" and not _returns(node.target):
            continue
        raise ReinkError(
            "no-values",
            f'cannot put the graph back in place: {node.name} has no meta["val"]',
            where=_where(node),
            why="sizes, strides and who shares memory with whom are read from the fake values of a graph",
            do="trace the graph with fake tensors (make_fx, torch.export), or run FakeTensorProp over it",
        )


def _refuse_writes(program: Program) -> None:
    """A functional graph writes nothing but its epilogue."""
    epilogue = epilogue_copies(program)
    for node in program.graph.nodes:
        if node.op != "call_function" or node in epilogue or facts_of(node.target).kind not in _WRITES:
            continue
        raise ReinkError(
            "not-pure",
            f"cannot put the graph back in place: {node.name} writes already",
            where=_where(node),
            why=f"{operator_name(node.target)} writes a tensor, and is no copy_ into an input at the end",
            do="give the functional graph, or compile the program that it was made from",
        )


def _refuse_aliased_inputs(functional: Program) -> None:
    """Inputs of which the fake values share memory, and one is written."""
    values = [n.meta.get("val") for n in functional.placeholders()]
    tensors = {k: v for k, v in enumerate(values) if isinstance(v, Tensor) and v.layout is torch.strided}
    for k in functional.signature.mutated_inputs:
        for other, value in tensors.items():
            if other == k or storage_key(value) != storage_key(tensors[k]) or not _overlap(tensors[k], value):
                continue
            names = functional.signature.inputs
            raise ReinkError(
                "aliased-inputs",
                f"cannot put the graph back in place: the inputs {names[k]} and {names[other]} share memory",
                why=f"{names[k]} is written, and a functional graph does not say that {names[other]} changes with it",
                do="compile the program itself with reink, which takes inputs that share memory",
            )


def _overlap(one: Tensor, other: Tensor) -> bool:
    root = Buffer("input", "", one).root
    size, stride, start = layout_of(other)
    moved = start * other.element_size() - layout_of(one)[2] * one.element_size()
    place = Place(root.buffer, size, stride, moved, other.dtype, 0, None, None)
    regions = root.region, place.region
    return regions[0] is None or regions[1] is None or not disjoint(regions[0], regions[1])


def _where(node: Node) -> str:
    source = source_of(node)
    return str(source) if source is not None else f"node {node.name}"


def _name(module: torch.fx.GraphModule) -> str:
    return "graph" if type(module).__name__ == "GraphModule" else type(module).__name__
