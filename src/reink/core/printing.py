"""A program as text that is the same on every run: what golden files, reports and ``print`` show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from reink.core.calls import CALLS
from reink.core.opinfo import operator_name
from reink.core.program import BaseView, OutputKind, OutputSpec, Program, ViewStep, attribute_of
from reink.core.torch_internals import OpOverload, expression

Node = torch.fx.Node

_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "b8",
}


def program_text(program: Program, *, types: bool = True) -> str:
    """The program, a line a node, then what its boundary does. `types` adds the type of each value."""
    return "\n".join([text for text, _ in program_lines(program, types=types)])


def program_lines(program: Program, *, types: bool = True) -> Iterator[tuple[str, Node | None]]:
    """Each line of the program's text, with the node of this graph that it shows, if it shows one.

    The output node is that of the line that returns; the nodes of graphs inside are not told.
    """
    placeholders = program.placeholders()
    inputs = ", ".join(_typed(n) if types else n.name for n in placeholders)
    yield (f"inputs {inputs}" if inputs else "no inputs"), None
    inner: dict[str, Program] = {}
    for node in program.graph.nodes:
        if node.op == "get_attr" and (found := _graph_of(program, str(node.target))) is not None:
            inner[str(node.target)] = found
        elif node.op == "get_attr":
            yield f"    {_typed(node) if types else node.name} = constant {node.target}", node
        elif node.op == "call_function":
            yield "    " + _line(node, types), node
    for k, text in enumerate(_boundary(program, placeholders)):
        yield text, None if k else program.output()
    for name, graph in inner.items():
        yield f"graph {name}", None
        yield from (("    " + line, None) for line, _ in program_lines(graph, types=types))


def _graph_of(program: Program, name: str) -> Program | None:
    """The graph that a ``get_attr`` node names, if it is one."""
    known = program.subgraphs.get(name)
    attribute = attribute_of(program.module, name)
    if known is None and isinstance(attribute, torch.fx.GraphModule):
        return Program(attribute, program.form)
    return known


def _line(node: Node, types: bool) -> str:
    call = f"{short_name(node.target)}({_arguments(node)})"
    if not node.users and _is_void(node):
        return call
    return f"{_typed(node) if types else node.name} = {call}"


def _is_void(node: Node) -> bool:
    target = node.target
    if isinstance(target, OpOverload):
        return target._schema.is_mutable or not target._schema.returns
    return False


def _boundary(program: Program, placeholders: list[Node]) -> Iterator[str]:
    results, signature = program.results(), program.signature
    if not signature.known:
        yield "    return " + ", ".join(_argument(r) for r in results)
        return
    shown = [
        _output(spec, k, results, placeholders, signature.epilogue_in_graph) for k, spec in enumerate(signature.outputs)
    ]
    changes = signature.changes
    returned = shown[: len(shown) - len(changes)]
    yield "    return " + ", ".join(returned) if returned else "    return nothing"
    for change in changes:
        yield f"    input {change.name} becomes {shown[change.output]}"
    if signature.epilogue_in_graph:
        return
    for mutation in signature.mutations:
        yield f"    epilogue {placeholders[mutation.input].name} <- {_argument(results[mutation.result])}"


def _output(spec: OutputSpec, k: int, results: list[Any], placeholders: list[Node], lowered: bool) -> str:
    if lowered:
        return _argument(results[k])
    if spec.kind is OutputKind.INPUT_ALIAS:
        return _chain(placeholders[spec.source].name, spec.steps)
    if spec.kind is OutputKind.GROUP_ALIAS:
        return _chain(_argument(results[spec.source]), spec.steps)
    return _argument(results[k])


def _chain(text: str, steps: tuple[ViewStep, ...]) -> str:
    for step in steps:
        arguments = "".join(f", {_argument(a)}" for a in step.args)
        text = f"{_short(step.op)}({text}{arguments})"
    return text


def short_name(target: Any) -> str:
    """``add`` for ATen's, ``namespace.name`` for custom operators, with the overload where it tells something."""
    return _short(operator_name(target))


def _short(name: str) -> str:
    parts = name.split(".")
    if len(parts) != 3:
        return parts[-1]
    namespace, packet, overload = parts
    shown = packet if overload in ("default", "Tensor", "Scalar", "int") else f"{packet}.{overload}"
    return shown if namespace == "aten" else f"{namespace}.{shown}"


def _arguments(node: Node) -> str:
    args, kwargs = node.args, node.kwargs
    if node.target in CALLS:
        op, inner_args, inner_kwargs, *rest = args
        bases = rest[0] if rest else ()
        shown = [short_name(op), *(_argument(a, bases) for a in inner_args)]  # type: ignore[union-attr]
        shown += [f"{k}={_argument(v, bases)}" for k, v in inner_kwargs.items()]  # type: ignore[union-attr]
        if rest:
            shown.append(f"bases={_argument(list(bases))}")  # type: ignore[arg-type]
        return ", ".join(shown)
    shown = [_argument(a) for a in args]
    return ", ".join(shown + [f"{k}={_argument(v)}" for k, v in kwargs.items()])


def _argument(value: Any, bases: Any = ()) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, BaseView):
        name = _argument(bases[value.base]) if value.base < len(bases) else f"base{value.base}"
        return _chain(name, value.steps)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_argument(v, bases) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, torch.dtype):
        return _DTYPES.get(value, str(value).removeprefix("torch."))
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    return repr(value)


def _typed(node: Node) -> str:
    described = type_text(node.meta.get("val"))
    return f"{node.name}: {described}" if described else node.name


def type_text(value: Any) -> str:
    """``f32[2, 8]`` for a tensor, with strides where they are not the usual ones; empty for what has no type."""
    if isinstance(value, torch.Tensor):
        size = ", ".join(str(expression(n)) for n in value.size())
        return f"{_DTYPES.get(value.dtype, str(value.dtype).removeprefix('torch.'))}[{size}]"
    if isinstance(value, torch.SymInt):
        return f"int {expression(value)}"
    return ""
