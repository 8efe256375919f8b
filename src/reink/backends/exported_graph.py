"""The graph of an exported program, made of a program of reink: the same boundary, and operators of torch alone.

A part of the back end for exported programs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from reink.core.boundary import AliasPattern, Cluster, Member, members_of
from reink.core.calls import CALLS, result_count
from reink.core.fakes import refresh_values, value_of_call
from reink.core.opinfo import Kind, facts_of
from reink.core.program import Form, Program, attribute_of
from reink.core.program import OutputKind as Origin
from reink.core.subgraphs import subgraph_call
from reink.core.to_stock import to_stock
from reink.core.torch_internals import (
    STOCK_V2,
    FakeTensorMode,
    HigherOrderOperator,
    detect_fake_mode,
    ranges_of,
)
from reink.errors import ReinkError

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

_ARGUMENTS: tuple[tuple[Any, Any], ...] = (
    (Tensor, TensorArgument),
    ((torch.SymBool, bool), SymBoolArgument),
    ((torch.SymInt, int), SymIntArgument),
    ((torch.SymFloat, float), SymFloatArgument),
)
_MUTATIONS = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
}


@dataclass(slots=True)
class Rebuilt:
    """What of an exported program is new. Not frozen: the graph is made bit by bit.

    `constants` are further ones, by name. `ranges` are those of all symbols in the graph.
    """

    module: torch.fx.GraphModule
    signature: ExportGraphSignature
    ranges: dict[Any, Any]
    module_calls: list[Any]
    constants: dict[str, Tensor] = field(default_factory=dict)


def rebuilt(exported: ExportedProgram, program: Program, pattern: AliasPattern, values: Sequence[Any]) -> Rebuilt:
    """`program`, which was captured from `exported` for inputs that share memory as `pattern` says, as its new graph.

    `values` are the tensors that inputs are known to be. A functional program returns its new values; another writes.
    Raises ReinkError ``cannot-export``.
    """
    if program.signature.changes:
        raise _refused(
            f"it changes sizes or strides of the input {program.signature.changes[0].name}",
            "a caller's tensor would have to become a view of itself, which no operator of a graph does",
            "make a new view and use that instead (y = x.t())",
        )
    if program.form is Form.FUNCTIONAL:
        program = _with_stock_calls(program)
    return _Rebuilding(exported, program, pattern, values).run()


def _with_stock_calls(program: Program) -> Program:
    """A functional program with its calls as PyTorch makes them. Raises ReinkError.

    PyTorch counts the offset of a view from the start of the storage, so each base has to know where it begins: a new
    value does not where the input did.
    """
    for each in _every_graph(program):
        if any(node.target in CALLS for node in each.graph.nodes):
            refresh_values(each.graph)
    return to_stock(program)


def _every_graph(program: Program) -> Iterator[Program]:
    yield program
    for inner in program.subgraphs.values():
        yield from _every_graph(inner)


class _Rebuilding:
    def __init__(
        self, exported: ExportedProgram, program: Program, pattern: AliasPattern, values: Sequence[Any]
    ) -> None:
        self.exported, self.program, self.pattern, self.values = exported, program, pattern, values
        self.graph = torch.fx.Graph()
        self.copied: dict[Node, Node] = {}
        self.inputs: list[Node] = []
        self.specs: list[InputSpec] = list(exported.graph_signature.input_specs)
        self.constants: dict[str, Tensor] = {}
        mode = detect_fake_mode([n.meta.get("val") for n in exported.graph.nodes])
        self.mode = mode or FakeTensorMode(allow_non_fake_inputs=True)

    def run(self) -> Rebuilt:
        self._placeholders()
        for node in self.program.graph.nodes:
            if node.op not in ("placeholder", "output") and node not in self.copied:
                new = self.copied[node] = self.graph.node_copy(node, self.copied.__getitem__)
                _finish(self.program, new, self.mode)
        results, specs = self._results()
        self.graph.output(tuple(results))
        module = torch.fx.GraphModule(self.program.module, self.graph)
        for name, inner in self.program.subgraphs.items():
            _finish_all(inner, self.mode)
            setattr(module, name, inner.module)
        signature = ExportGraphSignature(self.specs, specs)
        ranges = ranges_of(self.graph, self.mode.shape_env)
        known = {s: r for s, r in self.exported.range_constraints.items() if s.free_symbols <= ranges.keys()}
        return Rebuilt(module, signature, {**ranges, **known}, self._module_calls(), self.constants)

    # -- inputs ----------------------------------------------------------------------------------

    def _placeholders(self) -> None:
        """The inputs of the exported program, the constants that capture found, and what they are in `program`."""
        known = self.exported.graph.find_nodes(op="placeholder")
        first_user = next((k for k, s in enumerate(self.specs) if s.kind is InputKind.USER_INPUT), len(self.specs))
        constants = [n for n in self.program.graph.nodes if self._is_constant(n)]
        taken = {n.name for n in known}
        for k, node in enumerate(known):
            if k == first_user:
                self._lift(constants, taken, k)
            self._input(node)
        if first_user == len(known):
            self._lift(constants, taken, first_user)
        self._bind()

    def _input(self, node: Node) -> None:
        new = self.graph.placeholder(str(node.target))
        assert new.name == node.name, f"{node.name} became {new.name}"
        new.meta = dict(node.meta)
        self.inputs.append(new)

    def _is_constant(self, node: Node) -> bool:
        return node.op == "get_attr" and isinstance(attribute_of(self.program.module, str(node.target)), Tensor)

    def _lift(self, nodes: Sequence[Node], taken: set[str], place: int) -> None:
        """Make constants of the graph inputs, as an exported program has them."""
        names = (f"reink_constant_{k}" for k in range(len(nodes) + len(taken) + len(self.exported.constants)))
        for count, node in enumerate(nodes):
            name = next(n for n in names if n not in taken and n not in self.exported.constants)
            new = self.copied[node] = self.graph.placeholder(name)
            new.meta = dict(node.meta)
            self.constants[name] = attribute_of(self.program.module, str(node.target))
            spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(new.name), name, None)
            self.specs.insert(place + count, spec)

    def _bind(self) -> None:
        """Say what the inputs of `program` are: inputs, and bases of those that share memory."""
        inside = members_of(self.pattern)
        outside = [n for k, n in enumerate(self.inputs) if k not in inside]
        given = self.program.placeholders()
        for node, new in zip(given[: len(outside)], outside, strict=True):
            self.copied[node] = new
        for node, cluster in zip(given[len(outside) :], self.pattern, strict=True):
            self.copied[node] = self._base(cluster, node.meta["val"])
        offsets = dict(self.program.signature.offset_sensitive)
        bases = [b for n in self.program.graph.nodes if n.target is STOCK_V2 for b in n.kwargs["_all_bases"]]
        offsets.update({k: n.meta["val"].storage_offset() for k, n in enumerate(given) if n in bases})
        for k, offset in offsets.items():
            if k < len(outside) and type(offset) is int:
                self._expect_offset(outside[k], offset)

    def _base(self, cluster: Cluster, value: Tensor) -> Node:
        """The flat tensor that spans the state in `cluster`, taken from one of it: its storage is saved as a whole."""
        users = [m.input for m in cluster.members if self._kind(m.input) is InputKind.USER_INPUT]
        if users:
            names = " and ".join(self.inputs[m.input].name for m in cluster.members)
            alone = len(cluster.members) == 1
            raise _refused(
                f"it writes beyond the input {names}" if alone else f"{names} share memory, and one of them is written",
                "the program would be right only for inputs that share memory in the same way",
                "give the tensor itself, and take its views inside",
            )
        fits = [m for m in cluster.members if m.dtype is cluster.dtype and not m.is_conj and not m.is_neg]
        if not fits:
            names = " and ".join(self.inputs[m.input].name for m in cluster.members)
            raise _refused(
                f"{names} share memory and are of different dtypes",
                "no view of one of them spans them all",
                "keep one buffer, and take the other as a view of it",
            )
        member = max(fits, key=lambda m: self.values[m.input].numel())
        tensor, item = self.values[member.input], cluster.dtype.itemsize
        start = tensor.storage_offset() - member.offset // item
        node = self.graph.call_function(
            aten.as_strided.default, (self.inputs[member.input], [cluster.length], [1], start)
        )
        node.meta["val"] = value
        return node

    def _kind(self, position: int) -> InputKind:
        found: InputKind = self.exported.graph_signature.input_specs[position].kind
        return found

    def _expect_offset(self, node: Node, offset: int) -> None:
        """Let the program raise for an input that begins elsewhere in its storage than the one that it was made for."""
        found = self.graph.call_function(aten.sym_storage_offset.default, (node,))
        same = self.graph.call_function(operator.eq, (found, offset))
        message = f"{node.name} begins elsewhere in its storage than the one that the program was exported with"
        check = self.graph.call_function(aten._assert_scalar.default, (same, message))
        found.meta["val"], same.meta["val"], check.meta["val"] = offset, True, None

    # -- outputs ---------------------------------------------------------------------------------

    def _results(self) -> tuple[list[Any], list[OutputSpec]]:
        """What the graph returns: new values of what a functional program writes, then the user's outputs."""
        results = torch.fx.map_arg(tuple(self.program.results()), self.copied.__getitem__)
        own = list(results[: len(self.program.signature.outputs)])
        written: list[tuple[Node, OutputSpec]] = []
        if self.program.form is Form.FUNCTIONAL:
            written = list(self._new_values(results, own))
        elif self.pattern:  # a result that is an input is that very object, where the graph has a view of it
            for k, position in self.program.signature.identical:
                own[k] = self.inputs[position]
        specs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(r), None) for r in own]
        return [*(node for node, _ in written), *own], [*(spec for _, spec in written), *specs]

    def _new_values(self, results: Sequence[Any], own: list[Any]) -> Iterator[tuple[Node, OutputSpec]]:
        """The new value of each input that a functional program writes, a node of its own for each.

        They are copied into the inputs one after the other, so none is a view of an input; nor are those among the
        user's outputs `own` that would change with it.
        """
        inside, signature = members_of(self.pattern), self.program.signature
        outside = [k for k in range(len(self.inputs)) if k not in inside]
        written: list[tuple[int, Node]] = []
        for mutation in signature.mutations:
            value = results[mutation.result]
            if mutation.input < len(outside):
                written.append((outside[mutation.input], value))
            else:
                members = self.pattern[mutation.input - len(outside)].members
                written += [(m.input, self._part(value, m)) for m in members]
        seen: set[Node] = set()
        targets = [self.inputs[position] for position, _ in written]
        new: dict[Node, Node] = {}
        for position, value in written:
            again = value in seen or _root(value) in self.inputs
            kept = new[self.inputs[position]] = self._clone(value) if again else value
            seen.add(kept)
            yield kept, OutputSpec(*self._mutation(position, kept))
        for k, spec in enumerate(signature.outputs):
            if spec.kind is Origin.INPUT_ALIAS and not spec.steps and not self.pattern:
                own[k] = new.get(self.inputs[spec.source], own[k])
            elif isinstance(own[k], Node) and _root(own[k]) in targets:
                own[k] = self._clone(own[k])

    def _part(self, base: Node, member: Member) -> Node:
        """A member of a cluster, as a view of the new value of its base."""
        start = member.offset // member.dtype.itemsize
        args = (base, list(member.size), list(member.stride), start)
        part = self.graph.call_function(aten.as_strided.default, args)
        part.meta["val"] = self.inputs[member.input].meta["val"]
        return part

    def _clone(self, node: Node) -> Node:
        copied = self.graph.call_function(aten.clone.default, (node,))
        copied.meta["val"] = node.meta["val"]
        return copied

    def _mutation(self, position: int, value: Node) -> tuple[OutputKind, TensorArgument, str]:
        """What an output says that is the new value of an input."""
        spec = self.exported.graph_signature.input_specs[position]
        kind = _MUTATIONS.get(spec.kind)
        if kind is None:
            raise _refused(
                f"it writes the constant {spec.target}",
                "a pure exported program brings out new values of inputs, parameters and buffers",
                "register the tensor as a buffer of its module",
            )
        named = self.inputs[position].name if spec.kind is InputKind.USER_INPUT else str(spec.target)
        return kind, TensorArgument(value.name), named

    def _module_calls(self) -> list[Any]:
        """The modules that were exported; the graph does not say any more where one begins or ends."""
        calls = self.exported.module_call_graph
        return [copy(entry) if not entry.fqn else replace(entry, signature=None) for entry in calls]


def _refused(what: str, why: str, do: str) -> ReinkError:
    return ReinkError("cannot-export", f"no exported program can say this: {what}", why=why, do=do)


def _root(node: Node) -> Node:
    """The tensor that `node` is a view of."""
    while node.op == "call_function" and facts_of(node.target).kind is Kind.VIEW:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _argument(result: Any) -> Any:
    """How a signature names a result."""
    if not isinstance(result, Node):
        return ConstantArgument("", result)
    value = result.meta["val"]
    return next(argument for kind, argument in _ARGUMENTS if isinstance(value, kind))(result.name)


def _finish_all(program: Program, mode: FakeTensorMode) -> None:
    """`_finish` for every node of a graph that a call runs, and of those inside it, which its module names."""
    for name, inner in program.subgraphs.items():
        _finish_all(inner, mode)
        setattr(program.module, name, inner.module)
    for node in program.graph.nodes:
        _finish(program, node, mode)


def _finish(program: Program, node: Node, mode: FakeTensorMode) -> None:
    """Leave on a node of `program` what torch expects there and no more. Raises ReinkError for a function of reink."""
    call = node.meta.get("reink_of")
    node.meta = {k: v for k, v in node.meta.items() if not k.startswith("reink_")}
    if node.op == "call_function":
        _require_of_torch(node)
        if node.meta.get("val") is None:
            node.meta["val"] = _value(program, node, call, mode)


def _require_of_torch(node: Node) -> None:
    target: Any = node.target
    if str(getattr(target, "__module__", "")).partition(".")[0] == "reink":
        raise _refused(
            f"a call of {target.__name__}",
            "that function is of reink, and an exported program has to run without it",
            "replace the operator by one that writes nothing, or use reinplace_exported, which needs no such function",
        )


def _value(program: Program, node: Node, call: Node | None, mode: FakeTensorMode) -> Any:
    """The fake value of a lowered node that has none: what the functional `call` returns, or what a run returns."""
    if isinstance(node.target, HigherOrderOperator):
        parts = subgraph_call(node)
        if call is not None and parts is not None:
            return tuple(call.meta["val"][: len(program.subgraphs[str(parts.graphs[-1].target)].signature.outputs)])
    elif call is not None and call.target in CALLS:
        own = call.meta["val"][: result_count(node.target)]
        if own and None not in own:
            return own[0] if len(own) == 1 else own
    return value_of_call(node, mode)
