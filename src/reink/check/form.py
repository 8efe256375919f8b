"""Is a graph well-formed, and in the form that it claims? One walk, about a microsecond a node."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from reink.core.calls import CALLS
from reink.core.opinfo import Kind, facts_of
from reink.core.program import Form, Program
from reink.core.torch_internals import OpOverload, input_nodes
from reink.report import Verdict

Node = torch.fx.Node

_WRITING = frozenset({Kind.CALL, Kind.IN_PLACE, Kind.METADATA})
# Only arithmetic on sizes is pure without a schema.
_UNKNOWN = "is no operator: nobody knows what it writes"
_OPS = frozenset({"placeholder", "get_attr", "call_function", "output"})


def check_form(program: Program) -> Verdict:
    """Inputs before users, one output at the end, results as the signature says, no writes if functional."""
    name = "functional" if program.form is Form.FUNCTIONAL else "well-formed"
    found = _order(program) or _arity(program)
    if not found and program.form is Form.FUNCTIONAL:
        found = _writes(program)
    for inner_name, inner in program.subgraphs.items():
        found.extend(f"in {inner_name}: {fault}" for fault in check_form(inner).details)
    return Verdict(name, not found, tuple(found))


def _order(program: Program) -> list[str]:
    """Nodes of a wrong kind, inputs that come late or do not know their user, a missing or early output."""
    found: list[str] = []
    seen: set[Node] = set()
    last = None
    for node in program.graph.nodes:
        if last is not None and last.op == "output":
            found.append(f"{node.name} comes after the output")
        last = node
        if node.op not in _OPS:
            found.append(f"{node.name} is a {node.op}: only operators and functions are allowed")
        for used in input_nodes(node):
            if used not in seen:
                found.append(f"{node.name} uses {used.name}, which is not defined before it")
            elif node not in used.users:
                found.append(f"{used.name} does not list its user {node.name}")
        seen.add(node)
    if last is None or last.op != "output":
        found.append("the graph does not end with its output")
    return found


def _arity(program: Program) -> list[str]:
    """Whether inputs and results are as many as the signature says."""
    signature = program.signature
    found: list[str] = []
    inputs, results = len(program.placeholders()), len(program.results())
    if signature.inputs and inputs != len(signature.inputs):
        found.append(f"{inputs} inputs, the signature lists {len(signature.inputs)}")
    if not signature.known:
        return found
    expected = len(signature.outputs)
    for k, change in enumerate(signature.changes, expected - len(signature.changes)):
        if change.output != k or signature.outputs[k].kind.name != "INPUT_ALIAS":
            found.append(f"input {change.name} becomes result {change.output}, which is no view of an input")
    if program.form is Form.FUNCTIONAL:
        bases = {s.source for s in signature.outputs if s.kind.name == "GROUP_ALIAS"}
        named = [m.result for m in signature.mutations] + sorted(bases)
        extra = {k for k in named if k >= expected}
        expected += len(extra)
        found.extend(f"result {k} is named by the signature and missing" for k in named if k >= results)
    elif program.form is Form.MUTABLE:
        return found
    if results != expected:
        found.append(f"{results} results, the signature has {expected}")
    return found


def _writes(program: Program) -> list[str]:
    """Nodes that write memory, which a pure graph cannot hold."""
    known: dict[int, str] = {}  # by identity, because hashing an operator is slow
    found: list[str] = []
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        fault = known.get(id(target))
        if fault is None:
            fault = known[id(target)] = _fault_of(target)
        if fault and (fault != _UNKNOWN or any(isinstance(i.meta.get("val"), torch.Tensor) for i in input_nodes(node))):
            found.append(f"{node.name} calls {facts_of(target).name}, which {fault}")
    return found


def _fault_of(target: Any) -> str:
    """What speaks against a call in a pure graph; of a Python function only if it is given tensors."""
    if target in CALLS:
        return ""
    facts = facts_of(target)
    if not isinstance(target, OpOverload):
        return _UNKNOWN if facts.kind is Kind.PYTHON else ""
    return "writes a tensor" if facts.written or facts.kind in _WRITING else ""
