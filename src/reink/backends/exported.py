"""Exported programs: re-inplaced, so that they copy nothing needless, and made pure.

Both run in plain PyTorch: what comes out holds no function of reink. The parameters, buffers and constants are those of
the program that was given, not copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from reink.backends.exported_graph import Rebuilt, rebuilt
from reink.core.boundary import AliasPattern
from reink.core.opinfo import Kind, facts_of
from reink.core.stock_calls import STOCK_CALLS, from_stock
from reink.core.torch_internals import EXPORT_VERIFIERS, FakeTensor, pytree
from reink.errors import ReinkError
from reink.options import Options
from reink.passes.capture import capture_graph
from reink.pipeline import Compiled, begin, complete, reaching, without_collection
from reink.report import Report

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def reinplace_exported(exported: ExportedProgram, **given: Any) -> tuple[ExportedProgram, Report]:
    """The exported program with its writes in place, and the report of what became of each.

    It has the inputs, state and outputs of the one that was given, and its ``module()`` does what the other's does. Its
    dialect is ``TRAINING``, the only one in which a graph may write. If a check fails, and the report says so, the
    program comes back as it was given (with user passes, made pure). Takes the options of `Options`. Raises ReinkError,
    of which ``cannot-export`` is for what no exported program can say.
    """
    program = _Exported.of(exported)
    compiled, pattern = program.completed(_options(given))
    if compiled.fallback and not compiled.options.passes:
        return exported, compiled.report()
    runs = compiled.functional if compiled.fallback else compiled.runs
    made = rebuilt(exported, runs, pattern, program.values)
    return _with_graph(exported, made, "ATEN" if compiled.fallback else "TRAINING"), compiled.report()


def explain_exported(exported: ExportedProgram, **given: Any) -> Report:
    """The report alone. Takes the options of `Options`. Raises ReinkError."""
    return _Exported.of(exported).completed(_options(given))[0].report()


def functionalize_exported(exported: ExportedProgram, strategy: str = "v2") -> ExportedProgram:
    """The exported program without a write in it: what it writes are further outputs, as its signature says.

    One that is pure already comes back as it is. Raises ReinkError.
    """
    program = _Exported.of(exported)
    if exported.dialect == "ATEN":
        return exported
    compiled, pattern = program.compiled(Options.of({"strategy": strategy}))
    made = rebuilt(exported, compiled.functional, pattern, program.values)
    return _with_graph(exported, made, "ATEN")


def _options(given: dict[str, Any]) -> Options:
    if given.get("codegen", "eager") != "eager":
        raise ReinkError(
            "unknown-option",
            f"an exported program has no code generator, and codegen is {given['codegen']!r}",
            why="it is a graph of operators; what runs it decides how",
            do="leave codegen out",
        )
    options = Options.of({**given, "codegen": "eager"})
    if options.donate:
        raise ReinkError(
            "unknown-option",
            "an exported program cannot be given its inputs for good",
            why="its signature has no word for it, and whoever calls it would not know",
            do="leave donate out, or compile the module with reink.compile",
        )
    return options


def _with_graph(exported: ExportedProgram, made: Rebuilt, dialect: str) -> ExportedProgram:
    """`exported` with another graph; PyTorch's verifier of `dialect` has passed it."""
    return ExportedProgram(
        root=made.module,
        graph=made.module.graph,
        graph_signature=made.signature,
        state_dict=exported.state_dict,
        range_constraints=made.ranges,
        module_call_graph=made.module_calls,
        example_inputs=exported.example_inputs,
        constants={**exported.constants, **made.constants},
        verifiers=[EXPORT_VERIFIERS[dialect]],
    )


@dataclass(frozen=True, slots=True)
class _Exported:
    """An exported program as a graph that writes, to capture.

    `values[k]` is the tensor that input k is known to be: part of the state, or of the example inputs; None for another
    input, and for one that the graph does not use. `is_pure`: it writes nothing before its end.
    """

    module: torch.fx.GraphModule
    inputs: list[Any]
    values: list[Any]
    name: str
    is_pure: bool

    @classmethod
    def of(cls, exported: ExportedProgram) -> _Exported:
        """Raises ReinkError for what is no exported program, and for one that is not followed."""
        if not isinstance(exported, ExportedProgram):
            raise ReinkError(
                "not-a-tensor-program",
                f"a {type(exported).__name__} is no exported program",
                do="give what torch.export.export or torch.export.load returns",
            )
        _refuse_kinds(exported)
        _refuse_unregistered(exported)
        placeholders = exported.graph.find_nodes(op="placeholder")
        values = [v if n.users else None for n, v in zip(placeholders, _known(exported), strict=True)]
        inputs = [n.meta.get("val") for n in placeholders]
        return cls(_with_writes(exported), inputs, values, _name(exported), exported.dialect == "ATEN")

    def compiled(self, options: Options) -> tuple[Compiled, AliasPattern]:
        """Made pure, for the way in which the known inputs share memory."""

        def build(pattern: AliasPattern) -> Compiled:
            captured = capture_graph(self.module, self.inputs, pattern)
            for module in captured.module.modules():
                if isinstance(module, torch.fx.GraphModule):
                    from_stock(module.graph)
            captured.signature = replace(captured.signature, epilogue_in_graph=self.is_pure)
            return begin(captured, options, self.name)

        with without_collection():
            compiled, first, watched = reaching(build, self.values, lambda begun: begun.functional)
            pattern = watched.pattern(self.values)
            if pattern != first:
                compiled = build(pattern)
        return compiled, pattern

    def completed(self, options: Options) -> tuple[Compiled, AliasPattern]:
        """Through all steps."""
        compiled, pattern = self.compiled(options)
        with without_collection():
            complete(compiled, out=False)
        return compiled, pattern


def _refuse_kinds(exported: ExportedProgram) -> None:
    """Refuse inputs and outputs that are more than tensors and numbers."""
    signature = exported.graph_signature
    wrong = [str(s.kind.name) for s in signature.input_specs if s.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN)]
    known = (*_MUTATIONS, OutputKind.USER_OUTPUT)
    wrong += [str(s.kind.name) for s in signature.output_specs if s.kind not in known]
    if wrong:
        raise ReinkError(
            "cannot-export",
            f"cannot take in the exported program: it has an input or output of kind {wrong[0]}",
            why="only tensors and numbers are followed, in programs for inference",
            do="give the program as torch.export.export made it, of a module that takes and returns tensors",
        )


def _refuse_unregistered(exported: ExportedProgram) -> None:
    """Refuse a call of an operator that was not registered when the program was loaded: PyTorch then has its name."""
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.target in STOCK_CALLS and isinstance(node.args[0], str):
                raise ReinkError(
                    "unknown-call",
                    f"the operator {node.args[0].removeprefix('torch.ops.')} is not registered",
                    why="the program was loaded before its operator was known",
                    do="import what registers it before torch.export.load, on the command line with --load FILE",
                )


def _known(exported: ExportedProgram) -> list[Any]:
    """The tensors that the inputs of the graph are known to be, in its order; None for the others."""
    examples = iter(())
    if exported.example_inputs is not None:
        examples = iter(pytree.tree_leaves(exported.example_inputs))
    found: list[Any] = []
    for spec in exported.graph_signature.input_specs:
        value = next(examples, None) if spec.kind is InputKind.USER_INPUT else _state(exported, spec.target)
        real = isinstance(value, Tensor) and not isinstance(value, FakeTensor) and value.layout is torch.strided
        found.append(value if real else None)
    return found


def _state(exported: ExportedProgram, name: str | None) -> Any:
    return exported.state_dict.get(str(name), exported.constants.get(str(name)))


def _name(exported: ExportedProgram) -> str:
    """The class of the module that was exported, if the graph says it."""
    stacks = (n.meta.get("nn_module_stack") or {} for n in exported.graph.nodes)
    kinds = (str(getattr(kind, "__name__", kind)).rpartition(".")[2] for s in stacks for _, kind in s.values())
    return next((kind for kind in kinds if not kind.startswith("_")), "exported")


def _with_writes(exported: ExportedProgram) -> torch.fx.GraphModule:
    """The graph with its mutations as final ``copy_`` nodes; it returns the user's outputs alone.

    As in ``ExportedProgram.module()``, an output that is the new value of an input is that input.
    """
    graph, copied = torch.fx.Graph(), dict[Node, Node]()
    results: Any = graph.graph_copy(exported.graph, copied)
    specs = exported.graph_signature.output_specs
    written = [(r, _target(exported, s, copied)) for r, s in zip(results, specs, strict=True) if s.kind in _MUTATIONS]
    targets = [target for _, target in written]
    new = [_kept(graph, value, targets) for value, _ in written]
    own = [r for r, spec in zip(results, specs, strict=True) if spec.kind not in _MUTATIONS]
    values = [value for value, _ in written]
    own = [r if r in values or not isinstance(r, Node) else _kept(graph, r, targets) for r in own]
    ends: dict[Any, Node] = {}
    for value, (result, target) in zip(new, written, strict=True):
        ends[result] = _call(graph, aten.copy_.default, (target, value), target)
    graph.output(tuple(ends.get(r, r) for r in own))
    return torch.fx.GraphModule(exported.graph_module, graph)


def _target(exported: ExportedProgram, spec: Any, copied: dict[Node, Node]) -> Node:
    """The placeholder that a mutation is of."""
    placeholders = exported.graph.find_nodes(op="placeholder")
    for node, given in zip(placeholders, exported.graph_signature.input_specs, strict=True):
        name = node.name if spec.kind is OutputKind.USER_INPUT_MUTATION else given.target
        if name == spec.target:
            return copied[node]
    raise AssertionError(f"{spec.target} is no input")


def _kept(graph: torch.fx.Graph, result: Node, roots: Sequence[Node]) -> Node:
    """A result that writes to `roots` do not change: a copy, where it is one of them or a view of one."""
    root = result
    while root.op == "call_function" and facts_of(root.target).kind is Kind.VIEW:
        root = root.args[0]  # type: ignore[assignment]
    return _call(graph, aten.clone.default, (result,), result) if root in roots else result


def _call(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], like: Node) -> Node:
    """A new node at the end of a graph; its value looks like that of `like`."""
    node = graph.call_function(target, args)
    node.meta["val"] = like.meta["val"]
    return node
