"""Everything private that reink uses of torch, in one place.

Each name or behaviour relied on here has a test in ``tests/test_torch_facts.py``, so that a torch upgrade
fails by naming the broken assumption.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch._C import _NodeBase
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.backends.registry import lookup_backend
from torch._export.verifier import TrainingIRVerifier, Verifier
from torch._guards import TracingContext
from torch._higher_order_ops.auto_functionalize import auto_functionalized as STOCK_V1
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2 as STOCK_V2
from torch._higher_order_ops.auto_functionalize import can_auto_functionalize
from torch._higher_order_ops.effects import _get_effect
from torch._logging._internal import trace_structured
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_symbols,
    free_unbacked_symbols,
)
from torch.fx.graph import _register_custom_builtin
from torch.fx.node import has_side_effect
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts
from torch.fx.traceback import preserve_node_meta, set_stack_trace
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as _is_wrapper
from torch.utils._sympy.value_ranges import bound_sympy

__all__ = [
    "EXPORT_VERIFIERS",
    "STOCK_V1",
    "STOCK_V2",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "NodeAppender",
    "OpOverload",
    "OpOverloadPacket",
    "ShapeEnv",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "argument_of",
    "can_auto_functionalize",
    "codegen_of",
    "detect_fake_mode",
    "enable_python_dispatcher",
    "expression",
    "fake_view",
    "forward_of",
    "graph_module",
    "has_data_dependent_size",
    "has_own_dispatch",
    "has_registered_effect",
    "has_side_effect",
    "hint_of",
    "inductor_config",
    "inductor_pass",
    "inner_tensors",
    "input_nodes",
    "insert_size_checks",
    "is_wrapper_subclass",
    "living",
    "lower_bound",
    "make_fx",
    "operator_named",
    "operator_of",
    "preserve_node_meta",
    "print_by_name",
    "pytree",
    "ranges_of",
    "rename_placeholder",
    "set_stack_trace",
    "stock_backend",
    "storage_key",
    "trace",
    "trace_artifact",
    "trace_decomposed",
    "user_results",
]

Tensor = torch.Tensor
Node = torch.fx.Node

_EMPTY: dict[str, Any] = {}
# All that `Node.__init__` does for a callable, besides `_update_args_kwargs`.
_new_node, _init_node = Node.__new__, _NodeBase.__init__


def storage_key(tensor: Tensor) -> int:
    """The identity of the memory behind `tensor`, also for fake tensors. Two tensors share iff keys are equal."""
    return int(tensor.untyped_storage()._cdata)


def expression(value: Any) -> Any:
    """An int as it is; a symbolic integer as its sympy expression, which compares without adding a guard."""
    if type(value) is int:
        return value
    if isinstance(value, torch.SymInt):
        node = value.node
        constant = node.maybe_as_int()
        return constant if constant is not None else node.expr
    return value


def hint_of(value: Any) -> Any:
    """An int as it is; what a symbolic integer was when it was made, or itself where only the data decide."""
    if not isinstance(value, torch.SymInt):
        return value
    found = value.node.hint if value.node.has_hint() else None
    return value if found is None else int(found)


def lower_bound(expr: Any, environment: ShapeEnv | None) -> float | None:
    """A proven lower bound of a sympy expression from the ranges of its symbols, or None. Adds no guard."""
    if environment is None:
        return None
    bound = bound_sympy(expr, environment.var_to_range).lower
    return float(bound) if bound.is_number else None


# What passes an exported program, by its dialect; only the first lets a graph write.
EXPORT_VERIFIERS: dict[str, Any] = {"TRAINING": TrainingIRVerifier, "ATEN": Verifier}


def ranges_of(graph: torch.fx.Graph, environment: ShapeEnv | None) -> dict[Any, Any]:
    """The range of each symbol in the values of a graph."""
    if environment is None:
        return {}
    values = (v for n in graph.nodes for v in pytree.tree_leaves(n.meta.get("val")))
    found = {s for v in values if isinstance(v, (Tensor, torch.SymInt, torch.SymFloat)) for s in free_symbols(v)}
    return {s: environment.var_to_range[s] for s in sorted(found, key=str) if s in environment.var_to_range}


def print_by_name(cls: type) -> type:
    """Class decorator: fx writes values of `cls` into generated code by their bare name, however nested."""
    _register_custom_builtin(cls.__name__, f"from {cls.__module__} import {cls.__name__}", cls)
    return cls


def detect_fake_mode(values: Sequence[Any]) -> FakeTensorMode | None:
    """The fake mode of the first fake tensor among `values`."""
    for value in values:
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def fake_view(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor | None:
    """The fake view of a fake `tensor` with plain numbers, made many times faster than by tracing; None for another."""
    if type(tensor) is not FakeTensor or tensor._has_symbolic_sizes_strides:
        return None
    with no_dispatch():
        return FakeTensor(tensor.fake_mode, torch.as_strided(tensor, size, stride, offset), tensor.fake_device)


def has_registered_effect(op: Any) -> bool:
    """True when torch keeps an order for calls of `op` (effect tokens)."""
    return _get_effect(op) is not None


def operator_named(name: str) -> OpOverload:
    """The operator written as ``namespace.name.overload``."""
    namespace, packet, overload = name.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    assert isinstance(found, OpOverload)
    return found


def operator_of(name: str) -> OpOverload | None:
    """The operator that a user calls ``namespace::name`` or ``namespace::name.overload`` (dots do as well), or None."""
    parts = name.replace("::", ".").split(".")
    if len(parts) not in (2, 3):
        return None
    found: Any = torch.ops
    for part in (*parts, *["default"] * (3 - len(parts))):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def input_nodes(node: Node) -> Iterable[Node]:
    """`node.all_input_nodes` without the copy; not to be kept while the node changes."""
    return node._input_nodes


class NodeAppender:
    """Adds call_function nodes at the insertion point of one graph, many times cheaper than `Graph.create_node`.

    Skips the check of the target and the scan of the arguments for raw symbolic integers: reink never puts any there.
    """

    __slots__ = ("_counts", "_graph", "_names", "_namespace", "_targets", "_used")

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        namespace = self._namespace = graph._graph_namespace
        self._names, self._used, self._counts = namespace._obj_to_name, namespace._used_names, namespace._base_count
        # By identity: hashing an operator runs Python code. The target is kept alive beside what is known of it.
        self._targets: dict[int, tuple[Any, str, dict[Node, None]]] = {}

    def append(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node:
        """A new node, named after its operator without the overload, and numbered as fx would number it."""
        graph, counts = self._graph, self._counts
        _, hint, same_target = self._targets.get(id(target)) or self._meet(target)
        # the name that fx would give, without its parsing when the hint has been used before
        count = counts.get(hint, -1) + 1
        name = f"{hint}_{count}"
        if not count or name in self._used:
            name = self._namespace.create_name(hint, None)
        else:
            self._used.add(name)
            counts[hint] = count
        node = _new_node(Node)
        _init_node(node, graph, name, "call_function", target, None)
        node._update_args_kwargs(args, kwargs or _EMPTY)
        self._names[node] = name
        graph._insert(node)
        same_target[node] = None
        graph._len += 1
        return node

    def _meet(self, target: Any) -> tuple[Any, str, dict[Node, None]]:
        """What is needed for each node of `target`: the stem of its name, and the graph's own record of such nodes."""
        hint = target._schema.name.partition("::")[2] if isinstance(target, OpOverload) else target.__name__
        same_target = self._graph._find_nodes_lookup_table.table["call_function", target]
        known = self._targets[id(target)] = (target, hint, same_target)
        return known


def rename_placeholder(node: Node, name: str) -> None:
    """Give an input of a graph another name, made unique."""
    node._rename(re.sub(r"\W", "_", name))
    node.target = node.name


@contextmanager
def _trace_context(mode: FakeTensorMode | None) -> Iterator[None]:
    with ExitStack() as stack:
        if mode is not None:
            stack.enter_context(mode)
            if mode.shape_env is not None:
                stack.enter_context(enable_python_dispatcher())
        stack.enter_context(preserve_node_meta())
        stack.enter_context(_dropout_as_in_eager())
        yield


@contextmanager
def _dropout_as_in_eager() -> Iterator[None]:
    """Dropout that drops nothing returns its very operand; torch traces it as a clone."""
    op = torch.ops.aten.dropout.default
    traced = dict(op.py_kernels)

    def dropout(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def drop(tensor: Tensor, p: float, train: bool) -> Tensor:
            kept: Tensor = kernel(tensor, p, train) if train and p != 0 else tensor
            return kept

        return drop

    op.py_kernels.update({key: dropout(kernel) for key, kernel in traced.items()})
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels.update(traced)
        op._dispatch_cache.clear()


def _dropout_with_mask() -> Callable[..., Any]:
    """A tracing rule for ``native_dropout``: of one that drops nothing the fake kernel returns its very operand.

    The trace would take every later use of the operand for one of the result, so the kernel is given another object.
    """
    op, inside = torch.ops.aten.native_dropout.default, False

    def drop(tensor: Tensor, p: float, train: bool | None) -> Any:
        nonlocal inside
        if inside or (train and p != 0):
            return NotImplemented
        inside = True
        try:
            return op(torch.ops.aten.alias.default(tensor), p, train)
        finally:
            inside = False

    return drop


def trace(function: Callable[..., Any], inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """Trace `function` over fake `inputs` to ATen, mutations kept, node metadata kept."""
    mode = detect_fake_mode(inputs)
    with _trace_context(mode):
        traced = make_fx(
            function,
            decomposition_table={torch.ops.aten.native_dropout.default: _dropout_with_mask()},
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*inputs)
    assert isinstance(traced, torch.fx.GraphModule)
    return traced


def trace_decomposed(
    function: Callable[..., Any], inputs: Sequence[Any], table: Mapping[Any, Callable[..., Any]], mode: FakeTensorMode
) -> torch.fx.GraphModule:
    """Trace a pure `function` over fake `inputs` of `mode`, with the operators of `table` decomposed."""
    with mode, enable_python_dispatcher():
        traced = make_fx(function, decomposition_table=dict(table), tracing_mode="real", _allow_non_fake_inputs=True)(
            *inputs
        )
    assert isinstance(traced, torch.fx.GraphModule)
    return traced


def trace_artifact(name: str, payload: Callable[[], str]) -> None:
    """Put a JSON text into PyTorch's structured trace; `payload` is asked only where the trace is on."""
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": "json"}, payload_fn=payload)


def insert_size_checks(module: torch.fx.GraphModule, environment: ShapeEnv, note: str) -> None:
    """Put what tracing took for granted of sizes that the data decide into the graph: assertions that end in `note`."""
    if not environment.deferred_runtime_asserts:
        return
    known = set(module.graph.nodes)
    insert_deferred_runtime_asserts(module, environment, "reink")
    for node in module.graph.nodes:
        if node not in known and node.target is torch.ops.aten._assert_scalar.default:
            node.args = (node.args[0], f"{node.args[1]}: {note}")


def has_data_dependent_size(value: Any) -> bool:
    """Whether a size contains a number that only the data decide."""
    return isinstance(value, torch.SymInt) and bool(free_unbacked_symbols(value))


def argument_of(placeholder: Node) -> str:
    """The argument of Dynamo's frame that an input of its graph comes with; nothing for what comes from elsewhere."""
    given = placeholder.meta.get("grapharg")
    source = given.source if given is not None else None
    while source is not None and not hasattr(source, "local_name"):
        source = getattr(source, "base", None)
    return str(source.local_name) if source is not None and source.is_input else ""


def living(storage: StorageWeakRef) -> torch.UntypedStorage | None:
    """The storage, if anything still holds it."""
    found: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
    return found


def is_wrapper_subclass(value: Any) -> bool:
    """Whether `value` is a tensor that only wraps others."""
    return bool(_is_wrapper(value))


def has_own_dispatch(value: Any) -> bool:
    """Whether `value` is of a tensor subclass that says itself what operators do on it; fake tensors are not meant."""
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
        return False
    return type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__


def inner_tensors(value: Tensor) -> list[Tensor]:
    """The plain tensors that a wrapper subclass holds, at any depth; the tensor itself when it is plain."""
    if not is_wrapper_subclass(value):
        return [value]
    flatten: Any = value.__tensor_flatten__  # type: ignore[attr-defined]
    names, _ = flatten()
    held = (getattr(value, name) for name in names)
    return [t for inside in held if isinstance(inside, Tensor) for t in inner_tensors(inside)]


def graph_module(
    owner: torch.nn.Module, graph: torch.fx.Graph, attributes: Mapping[str, Any] | None = None
) -> torch.fx.GraphModule:
    """A module for `graph` with the attributes of `owner`, and before them `attributes`.

    Its Python code is written when it is first needed.
    """
    if not attributes:
        return _LazyGraphModule(owner, graph)
    names = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    found = {n: attributes[n] if n in attributes else operator.attrgetter(n)(owner) for n in names}
    return _LazyGraphModule(found, graph)


def codegen_of(graph: torch.fx.Graph) -> torch.fx.graph.CodeGen:
    """How a graph takes and returns what it does, besides its nodes."""
    return graph._codegen


def inductor_config() -> Any:
    """The settings of Inductor, which are loaded when they are first asked for."""
    return importlib.import_module("torch._inductor.config")


def user_results() -> int | None:
    """How many results of the forward graph that is being compiled are not there for its backward graph alone."""
    context = TracingContext.try_get()
    known = context.fw_metadata if context is not None else None
    return None if known is None else int(known.num_forward)


def inductor_pass(run: Callable[[torch.fx.Graph], None]) -> Any:
    """`run` as a custom pass of Inductor; compile caches tell one state of reink's source from another."""
    base: Any = importlib.import_module("torch._inductor.custom_graph_pass").CustomGraphPass

    class Pass(base):  # type: ignore[misc]
        """A pass of reink."""

        def __call__(self, graph: torch.fx.Graph) -> None:
            run(graph)

        def uuid(self) -> str:
            return f"{run.__module__}.{run.__qualname__} {_source_hash()}"

    return Pass()


@functools.cache
def _source_hash() -> str:
    """A name for what the source of reink is now."""
    files = sorted(Path(__file__).parent.parent.rglob("*.py"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def forward_of(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """The generated function of a module, its code written now."""
    if isinstance(module, _LazyGraphModule):
        module.real_recompile()
    forward: Callable[..., Any] = module.forward
    return forward


def stock_backend(name: str) -> Any:
    """A back end of torch by name."""
    return lookup_backend(name)
