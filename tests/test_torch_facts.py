"""What reink assumes of torch, one fact a test: a torch upgrade that breaks one fails by naming it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from support.operators import ops
from support.stock import stock_calls, stock_graph
from torch import Tensor
from torch._higher_order_ops.auto_functionalize import can_auto_functionalize
from torch._inductor import config, graph
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import lowerings
from torch._inductor.scheduler import Scheduler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx import proxy as fx_proxy
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._sympy.value_ranges import bound_sympy
from torch.utils.dlpack import from_dlpack

import reink.backends.inductor  # noqa: F401  (it gives Inductor its rules)
from reink.backends.mutable_call import CALLS
from reink.core.opinfo import HIDDEN_VIEWS, HIDDEN_WRITES
from reink.core.torch_internals import (
    EXPORT_VERIFIERS,
    NodeAppender,
    argument_of,
    detect_fake_mode,
    fake_view,
    hint_of,
    inductor_config,
    inductor_pass,
    input_nodes,
    operator_named,
    ranges_of,
    storage_key,
)

aten = torch.ops.aten


def _mutating(x: Tensor) -> Tensor:
    flat = x.view(-1)
    flat.add_(1)
    row = x[0]
    row.relu_()
    ops.bump(row)
    return x * 2


def _traced(fn: Callable[..., Any], *args: object, **options: Any) -> GraphModule:
    traced: GraphModule = make_fx(fn, tracing_mode="fake", **options)(*args)
    return traced


def _calls(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op == "call_function"]


def _dynamo_graph(fn: Callable[..., Any], *args: object) -> Graph:
    seen: list[GraphModule] = []

    def keep(module: GraphModule, inputs: list[Tensor]) -> GraphModule:
        seen.append(module)
        return module

    torch.compile(fn, backend=keep)(*args)
    return seen[0].graph


class Pair(NamedTuple):
    """An argument of a node, as a program might write it."""

    number: int
    value: object


# --- tracing --------------------------------------------------------------------------------------------


def test_a_fake_trace_keeps_views_and_writes_as_written() -> None:
    targets = [n.target for n in _calls(_traced(_mutating, torch.ones(2, 3)).graph)]
    assert targets == [
        aten.view.default,
        aten.add_.Tensor,
        aten.select.int,
        aten.relu_.default,
        ops.bump.default,
        aten.mul.Tensor,
    ]


def test_every_node_of_a_trace_but_a_void_call_has_a_value() -> None:
    graph = _traced(_mutating, torch.ones(2, 3)).graph
    without = [n.target for n in graph.nodes if n.meta.get("val") is None and n.op != "output"]
    assert without == [ops.bump.default]


def test_dead_code_elimination_keeps_operators_with_a_mutable_schema() -> None:
    traced = _traced(_mutating, torch.ones(2, 3))
    before = len(_calls(traced.graph))
    traced.graph.eliminate_dead_code()
    assert len(_calls(traced.graph)) == before


def test_dead_code_elimination_drops_an_operator_that_declares_and_returns_nothing() -> None:
    def fn(x: Tensor) -> Tensor:
        ops.note(x)
        return x + 1

    traced = _traced(fn, torch.ones(2))
    assert [n.is_impure() for n in _calls(traced.graph)] == [False, False]
    traced.graph.eliminate_dead_code()
    assert [n.target for n in _calls(traced.graph)] == [aten.add.Tensor]


def test_traced_views_have_no_base_but_share_storage() -> None:
    values = {n.name: n.meta.get("val") for n in _traced(_mutating, torch.ones(2, 3)).graph.nodes}
    x, view, row, product = (values[k] for k in ("x_1", "view", "select", "mul"))
    assert view._base is None
    assert not view._is_view()
    assert row._base is None
    keys = [t.untyped_storage()._cdata for t in (x, view, row, product)]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_inference_mode_views_have_no_base_but_share_storage() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
        row = x[1:]
        assert row._base is None
        assert row.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_fake_inputs_that_share_storage_still_do_and_keep_their_offsets() -> None:
    x = torch.arange(8.0)
    mode = FakeTensorMode()
    a, b = mode.from_tensor(x[2:5]), mode.from_tensor(x[4:])
    assert a.untyped_storage()._cdata == b.untyped_storage()._cdata
    assert (a.storage_offset(), b.storage_offset()) == (2, 4)


# --- schemas --------------------------------------------------------------------------------------------


def test_the_schema_tells_what_is_written() -> None:
    schema: Any = aten.add_.Tensor._schema
    assert schema.is_mutable
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert written == ["self"]
    assert schema.arguments[0].alias_info.before_set == {"a"}
    assert schema.returns[0].alias_info.before_set == {"a"}


@pytest.mark.parametrize("op", [aten.view.default, aten.split.Tensor, aten.detach.default, aten.reshape.default])
def test_view_operators_say_so(op: Any) -> None:
    assert op.is_view
    assert not op._schema.is_mutable


@pytest.mark.parametrize("op", [aten.add_.Tensor, *map(operator_named, sorted(HIDDEN_VIEWS)), aten.clone.default])
def test_other_operators_are_no_views(op: Any) -> None:
    assert not op.is_view


@pytest.mark.parametrize("name", sorted(HIDDEN_VIEWS))
def test_some_views_do_not_say_so(name: str) -> None:
    x = torch.ones(4, 1)
    results = operator_named(name)(x, [2, 2] if "split.Tensor" not in name else 2)
    parts = [results] if isinstance(results, Tensor) else results
    assert all(storage_key(part) == storage_key(x) for part in parts)


@pytest.mark.parametrize(("name", "options"), [("native_batch_norm", (True, 0.1, 1e-5)), ("update_stats", (0.1,))])
def test_batch_norm_writes_its_statistics_and_does_not_say_so(name: str, options: tuple[object, ...]) -> None:
    (full,) = (n for n in HIDDEN_WRITES if n.startswith("aten.") and n.split(".")[1].endswith(name))
    op, x, mean, variance = operator_named(full), torch.rand(4, 3) + 1, torch.zeros(3), torch.ones(3)
    assert not op._schema.is_mutable
    op(x, *((None, None) if name == "native_batch_norm" else ()), mean, variance, *options)
    assert mean.ne(0).all() and variance.ne(1).all()


def test_the_fake_kernel_of_dropout_that_drops_nothing_returns_its_operand() -> None:
    x, op = torch.ones(3), aten.native_dropout.default
    assert op(x, 0.5, False)[0] is not x and op(x, 0.0, True)[0] is not x
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert op(fake, 0.5, False)[0] is fake and op(fake, 0.0, True)[0] is fake


def test_a_tracing_rule_may_decline() -> None:
    rules = {aten.neg.default: lambda x: NotImplemented if x.dim() else aten.mul.Tensor(x, -1)}
    targets = [
        n.target
        for n in _calls(_traced(lambda x: (x.neg(), x[0].neg()), torch.ones(3), decomposition_table=rules).graph)
    ]
    assert targets == [aten.neg.default, aten.select.int, aten.mul.Tensor]


def test_optional_lists_of_written_tensors_are_visible_in_the_schema() -> None:
    for op in (ops.bump_present.default, ops.spill_all.default, ops.spill.default):
        assert [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write], op


# --- source lines ---------------------------------------------------------------------------------------


def test_dynamo_graphs_carry_source_lines() -> None:
    lines = {n.name: n.stack_trace or "" for n in _dynamo_graph(_mutating, torch.ones(2, 3)).nodes}
    assert "flat.add_(1)" in lines["add_"]
    assert __file__ in lines["add_"]


def test_a_plain_trace_carries_no_source_lines() -> None:
    assert all(n.stack_trace is None for n in _traced(_mutating, torch.ones(2, 3)).graph.nodes)


def test_recorded_stack_traces_are_dropped_for_a_function_not_named_forward() -> None:
    graph = _traced(_mutating, torch.ones(2, 3), record_stack_traces=True).graph
    assert all(n.stack_trace is None for n in graph.nodes)


def test_recorded_stack_traces_of_a_module_name_its_forward_and_nothing_below() -> None:
    class Wrapped(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _mutating(x)

    first, *_ = _calls(_traced(Wrapped(), torch.ones(2, 3), record_stack_traces=True).graph)
    assert "return _mutating(x)" in str(first.stack_trace)
    assert "flat" not in str(first.stack_trace)


def test_a_registered_anchor_gives_the_lines_of_any_function() -> None:
    code = _mutating.__code__
    anchor = (code.co_filename, code.co_name)
    fx_proxy._STACK_TRACE_ANCHORS.add(anchor)
    try:
        graph = _traced(_mutating, torch.ones(2, 3), record_stack_traces=True).graph
    finally:
        fx_proxy._STACK_TRACE_ANCHORS.discard(anchor)
    lines = {n.name: str(n.stack_trace) for n in graph.nodes}
    assert "flat.add_(1)" in lines["add_"]
    assert "return x * 2" in lines["mul"]


# --- layouts --------------------------------------------------------------------------------------------

LAYOUTS = [pytest.param((1, 3), id="transposed"), pytest.param((8, 3), id="gapped")]


def _laid_out(stride: tuple[int, int]) -> Tensor:
    return torch.empty_strided((3, 2), stride).fill_(1)


@pytest.mark.parametrize("stride", LAYOUTS)
def test_functional_copy_and_scatters_into_views_keep_the_strides_of_the_base(
    stride: tuple[int, int],
) -> None:
    base = _laid_out(stride)
    results: list[Tensor] = [
        aten.copy(base, torch.ones(3, 2)),
        aten.slice_scatter(base, torch.ones(1, 2), 0, 0, 1),
        aten.select_scatter(base, torch.ones(2), 0, 0),
        aten.diagonal_scatter(base, torch.ones(2)),
        aten.as_strided_scatter(base, torch.ones(1), (1,), (1,), 0),
    ]
    assert [r.stride() for r in results] == [stride] * len(results)


_POINTWISE: list[Callable[[Tensor], Tensor]] = [
    lambda t: aten.add(t, torch.ones(3, 2)),
    lambda t: aten.mul(t, 2),
    aten.relu,
    lambda t: aten.fill(t, 1),
    aten.clone,
    aten.uniform,
]


@pytest.mark.parametrize("twin", _POINTWISE)
def test_pointwise_twins_keep_strides_of_a_dense_operand_only(twin: Callable[[Tensor], Tensor]) -> None:
    assert twin(_laid_out((1, 3))).stride() == (1, 3)
    assert twin(_laid_out((8, 3))).stride() == (2, 1)


_REORDERING: list[Callable[[Tensor], Tensor]] = [
    aten.tril,
    lambda t: aten.masked_fill(t, torch.ones(3, 2) > 0, 1.0),
    lambda t: aten.index_copy(t, 0, torch.tensor([0]), torch.ones(1, 2)),
    lambda t: aten.scatter(t, 0, torch.tensor([[0]]), 1.0),
]


@pytest.mark.parametrize("twin", _REORDERING)
def test_other_twins_lose_strides_even_of_a_dense_operand(twin: Callable[[Tensor], Tensor]) -> None:
    assert twin(_laid_out((1, 3))).stride() == (2, 1)


def test_as_strided_without_offset_uses_that_of_the_tensor() -> None:
    x = torch.arange(10.0)[4:]
    assert x.as_strided((2,), (1,)).storage_offset() == 4
    assert x.as_strided((2,), (1,), 0).storage_offset() == 0


# --- graphs ---------------------------------------------------------------------------------------------


def _with_pair(value: object) -> tuple[Graph, Node]:
    graph = Graph()
    x = graph.placeholder("x")
    pair: Any = Pair(1, x if value is None else value)
    node = graph.call_function(len, (pair,))
    graph.output(node)
    return graph, x


def test_named_tuples_as_arguments_are_tracked_and_printed() -> None:
    graph, x = _with_pair(None)
    assert [n.all_input_nodes for n in _calls(graph)] == [[x]]
    assert [list(input_nodes(n)) for n in _calls(graph)] == [[x]]
    assert isinstance(_calls(graph)[0].args[0], Pair)
    assert "Pair(1, x)" in graph.python_code("self").src
    assert GraphModule(torch.nn.Module(), graph)(0) == 2


def test_an_operator_inside_a_named_tuple_breaks_generated_code_but_its_name_does_not() -> None:
    graph, _ = _with_pair(aten.add.Tensor)
    with pytest.raises(SyntaxError):
        GraphModule(torch.nn.Module(), graph)
    graph, _ = _with_pair("aten::add.Tensor")
    assert GraphModule(torch.nn.Module(), graph)(0) == 2


def test_an_appended_node_is_the_one_that_fx_would_make() -> None:
    calls: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("add", aten.add.Tensor, 1, {"alpha": 2}),
        ("bump", ops.bump.default, [3], {}),
        ("len", len, Pair(1, 2), {}),
        ("add", aten.add.Tensor, slice(1), {}),
        ("add", aten.add.Tensor, None, {}),
    ]
    plain, ours = Graph(), Graph()
    x, y = plain.placeholder("x"), ours.placeholder("x")
    append = NodeAppender(ours).append
    for stem, target, argument, kwargs in calls:
        x = plain.create_node("call_function", target, (x, [x], argument), kwargs, stem)
        y = append(target, (y, [y], argument), kwargs)
    assert [_state(n) for n in ours.nodes] == [_state(n) for n in plain.nodes]
    assert [n.name for n in ours.find_nodes(op="call_function", target=aten.add.Tensor)] == ["add", "add_1", "add_2"]
    assert (len(ours.nodes), str(ours)) == (len(plain.nodes), str(plain))
    last = ours.call_function(len, (y,))
    assert plain.call_function(len, (x,)).name == last.name
    y._rename("other")
    ours.erase_node(last)
    ours.lint()


def _state(node: Node) -> dict[str, tuple[type, str]]:
    """Everything that a node holds, as text; its graph and neighbours by name."""
    return {k: (type(v), str(v)) for k, v in node.__getstate__().items() if k != "graph"}


# --- export and stock functional forms ------------------------------------------------------------------


class _WritesRow(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        ops.bump(x[0])
        return x * 2


def test_training_export_keeps_writes_and_decompositions_make_them_v2_nodes() -> None:
    exported = torch.export.export(_WritesRow(), (torch.ones(2, 3),))
    assert aten.add_.Tensor in [n.target for n in _calls(exported.graph)]
    decomposed = exported.run_decompositions({})
    targets = [n.target for n in _calls(decomposed.graph)]
    assert torch.ops.higher_order.auto_functionalized_v2 in targets
    assert aten.copy_.default not in targets
    kinds = [spec.kind.name for spec in decomposed.graph_signature.output_specs]
    assert kinds == ["USER_INPUT_MUTATION", "USER_OUTPUT"]


def test_only_the_training_dialect_lets_an_exported_graph_write() -> None:
    exported = torch.export.export(_WritesRow(), (torch.ones(2, 3),))
    assert exported.verifiers == [EXPORT_VERIFIERS["TRAINING"]]
    EXPORT_VERIFIERS["TRAINING"]().check(exported)
    with pytest.raises(Exception, match="is not functional"):
        EXPORT_VERIFIERS["ATEN"]().check(exported)
    assert exported.run_decompositions({}).verifiers == [EXPORT_VERIFIERS["ATEN"]]


class _ReturnsWhatItWrites(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        return x, x[0]


def test_a_decomposed_program_returns_the_input_but_no_view_of_it() -> None:
    decomposed = torch.export.export(_ReturnsWhatItWrites(), (torch.ones(2, 3),)).run_decompositions({})
    x, run = torch.ones(2, 3), cast(Callable[..., Any], decomposed.module())
    whole, row = run(x)
    assert whole is x
    assert storage_key(row) != storage_key(x)


def test_export_gives_a_tensor_that_comes_twice_two_inputs_and_uses_the_last() -> None:
    class Adds(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.add_(1) + y

    x = torch.zeros(2)
    exported = torch.export.export(Adds(), (x, x))
    assert [len(n.users) > 0 for n in exported.graph.nodes if n.op == "placeholder"] == [False, True]


def test_export_keeps_shared_state_shared_when_it_is_saved(tmp_path: Path) -> None:
    class Holds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.zeros(4)
            self.register_buffer("whole", whole)
            self.register_buffer("part", whole[1:])

        def forward(self, x: Tensor) -> Any:
            return x + self.get_buffer("whole") + self.get_buffer("part").sum()

    torch.export.save(torch.export.export(Holds(), (torch.ones(4),)), tmp_path / "holds.pt2")
    state = torch.export.load(tmp_path / "holds.pt2").state_dict
    assert storage_key(state["whole"]) == storage_key(state["part"])
    assert state["part"].storage_offset() == 1


def test_symbols_of_an_exported_graph_have_their_range() -> None:
    class Adds(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    sizes = {"x": {0: torch.export.Dim("rows", min=2, max=16)}}
    exported = torch.export.export(Adds(), (torch.ones(3),), dynamic_shapes=sizes)
    mode = detect_fake_mode([n.meta.get("val") for n in exported.graph.nodes])
    assert mode is not None
    assert ranges_of(exported.graph, mode.shape_env) == exported.range_constraints
    assert len(exported.range_constraints) == 1


def test_bounds_of_a_symbolic_size_are_known_without_a_guard() -> None:
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    size: Any = mode.from_tensor(torch.ones(5, 3), symbolic_context=context).shape[0]
    assert isinstance(size, torch.SymInt)
    assert bound_sympy(size.node.expr * 3 + 1, environment.var_to_range).lower >= 1
    assert not environment.guards


def test_strides_change_in_place_and_lazy_bits_stay() -> None:
    """What the boundary does to an input that a program makes a view of itself."""
    lazy = torch.randn(2, 3, dtype=torch.complex64).conj()
    for tensor in (lazy, lazy.imag, torch.nn.Parameter(torch.randn(2, 3))):
        with torch.no_grad():
            wanted = tensor.t()
            again = tensor.as_strided_(wanted.size(), wanted.stride(), wanted.storage_offset())
        assert again is tensor
        assert torch.equal(tensor, wanted)
        assert (tensor.is_conj(), tensor.is_neg()) == (wanted.is_conj(), wanted.is_neg())


def test_a_traced_input_keeps_the_layout_that_it_had() -> None:
    """The value of a placeholder is a tensor of its own: a change of the input object does not reach it."""

    def turn(x: Tensor) -> Tensor:
        x.t_()
        return x

    traced = _traced(turn, torch.ones(2, 3))
    first, change = list(traced.graph.nodes)[:2]
    assert (first.meta["val"].shape, change.meta["val"].shape) == ((2, 3), (3, 2))
    assert list(traced.graph.nodes)[-1].args[0] is change


def test_a_symbolic_size_knows_what_it_was_made_for() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context: Any = StatelessSymbolicContext([DimDynamic.DYNAMIC])
    size = mode.from_tensor(torch.ones(7), symbolic_context=context).size(0)
    assert type(size) is not int
    assert (hint_of(size), hint_of(3)) == (7, 3)
    unknown: Any = ShapeEnv().create_unbacked_symint()
    assert hint_of(unknown) is unknown


def test_a_function_mode_is_told_of_data() -> None:
    heard: list[str] = []

    class Mode(TorchFunctionMode):
        """Lists what it is told of."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    x, y = torch.ones(2), torch.ones(3)
    with Mode():
        x.data = y
    assert heard == ["__set__"]


@pytest.mark.parametrize("change", [lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: x.resize_(2)])
def test_dynamo_leaves_a_view_in_place_of_an_input_to_eager(change: Callable[..., Any]) -> None:
    def program(x: Tensor) -> Tensor:
        change(x)
        return x + 1

    torch._dynamo.reset()
    x = torch.ones(2, 3)
    compile_: Any = torch.compile
    with pytest.raises(torch._dynamo.exc.Unsupported, match="inplace view on a graph input"):
        compile_(program, backend="eager", fullgraph=True)(x)


# -- the stock pipeline --------------------------------------------------------------------------------


def test_a_slice_of_stock_counts_from_the_start_of_the_storage() -> None:
    def program(x: Tensor) -> Tensor:
        ops.bump(x[1:3])
        return x.sum()

    (call,) = stock_calls(stock_graph(program, (torch.zeros(8, 4)[4:],)).graph)
    assert (call.kwargs["_t_slice_start"], call.kwargs["_t_slice_end"]) == (5, 7)
    bases: Any = call.kwargs["_all_bases"]
    assert bases[0].meta["val"].storage_offset() == 16


@pytest.mark.parametrize(("v2", "expected"), [(True, [None, (4, 4)]), (False, [None, (4,)])])
def test_a_stock_call_returns_its_results_then_new_values(v2: bool, expected: list[Any]) -> None:
    def program(x: Tensor) -> Tensor:
        ops.bump(x[1])
        return x.sum()

    (call,) = stock_calls(stock_graph(program, (torch.zeros(4, 4),), v2=v2).graph)
    assert [None if v is None else tuple(v.shape) for v in call.meta["val"]] == expected


def test_a_stock_graph_returns_the_copy_where_the_program_returns_an_input() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x

    graph = stock_graph(program, (torch.zeros(4),)).graph
    (returned,) = list(graph.nodes)[-1].args[0]
    assert returned.target is aten.copy_.default and returned.args[0].op == "placeholder"


def test_inductor_takes_lists_of_passes_and_asks_each_for_its_uuid() -> None:
    passes = inductor_pass(lambda graph: None)
    assert isinstance(passes, CustomGraphPass) and passes.uuid()
    assert get_custom_graph_passes([passes, passes]) == (passes, passes)
    for slot in ("joint_custom_pre_pass", "post_grad_custom_post_pass"):
        assert hasattr(inductor_config(), slot)


def test_a_fake_view_is_what_tracing_makes() -> None:
    with FakeTensorMode():
        base = torch.empty(8, 4)
        traced = base[2:4].t()
    made = fake_view(base, (4, 2), (1, 4), 8)
    assert made is not None and type(made) is type(traced) and made.device == traced.device
    assert (made.size(), made.stride(), made.storage_offset()) == (traced.size(), traced.stride(), 8)
    assert storage_key(made) == storage_key(base)
    assert fake_view(torch.ones(3), (1,), (1,), 0) is None


def test_a_size_that_was_a_symbol_leaves_its_mark_on_the_tensor() -> None:
    """`as_strided` without dispatch then raises, though every size is a plain number by now."""
    seen: list[Any] = []

    def program(x: Tensor) -> Tensor:
        y = x + 1
        y.fill_diagonal_(3)
        seen.append(y)
        return y

    make_fx(program, tracing_mode="symbolic")(torch.ones(3, 3))
    assert seen[0]._has_symbolic_sizes_strides
    assert fake_view(seen[0], (2,), (1,), 0) is None


# ---- Inductor ------------------------------------------------------------------------------------------------


def _inductor(fn: Callable[..., Any], *args: Tensor) -> Callable[..., Any]:
    """`fn` as traced, writes and all, by Inductor's inner compiler."""
    module = _traced(fn, *args)
    output = next(iter(reversed(module.graph.nodes)))
    output.args = ((output.args[0],) if isinstance(output.args[0], Node) else tuple(output.args[0]),)
    module.recompile()
    fakes = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
    with config.patch(pattern_matcher=False, reorder_for_locality=False, compile_threads=1):
        run = compile_fx_inner(module, fakes, is_inference=True)
    return lambda *given: run(list(given))


def test_inductor_computes_a_reader_after_the_call_that_overwrites_what_it_reads() -> None:
    """Why every call that writes goes through a lowering rule of our own."""

    def fn(x: Tensor) -> Tensor:
        old = x + 1
        ops.bump(x)
        return old * 2

    assert torch.equal(_inductor(fn, torch.zeros(8))(torch.zeros(8))[0], torch.full((8,), 4.0))


def test_inductor_computes_a_reader_before_a_copy_and_copies_in_place() -> None:
    def fn(x: Tensor) -> Tensor:
        old = x + 1
        x[2:].copy_(x[:-2] * 3)
        return old * 2

    x = torch.arange(8.0)
    assert torch.equal(_inductor(fn, x)(x)[0], (torch.arange(8.0) + 1) * 2)
    assert torch.equal(x, torch.cat([torch.arange(2.0), torch.arange(6.0) * 3]))


def test_inductor_overlooks_reads_of_a_later_version_when_it_fuses_a_write() -> None:
    """Why two kernels share a loop only if a stricter question is answered: see `_may_share_a_loop`."""
    source = inspect.getsource(Scheduler.fusable_weak_dep)
    assert "read.name == real_name" in source
    assert list(inspect.signature(Scheduler.fusable_weak_dep).parameters) == ["self", "weak_dep", "node1", "node2"]


def test_an_operator_of_ours_is_lowered_by_a_rule_of_ours() -> None:
    assert all(call in lowerings for call in CALLS)
    assert all(can_auto_functionalize(call) for call in CALLS)


def test_a_marked_node_is_realized_with_the_strides_that_it_was_traced_with() -> None:
    assert "inductor_realize_to_strides" in inspect.getsource(graph.GraphLowering.run_node)


def test_inductors_table_leaves_copies_and_scatters_alone() -> None:
    table = select_decomp_table()
    kept = [aten.copy.default, aten.clone.default, aten.select_scatter.default, aten.slice_scatter.default]
    assert not any(op in table for op in kept)


def test_a_tensor_that_went_through_dlpack_has_the_same_memory_in_another_storage() -> None:
    value = torch.arange(4.0)
    flat = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
    other = from_dlpack(flat)
    assert other.data_ptr() == value.data_ptr()
    assert storage_key(other) != storage_key(value)
    gone = StorageWeakRef(value.untyped_storage())
    del value, flat
    assert not gone.expired()  # the other storage keeps it
    del other
    assert gone.expired()


def test_an_input_of_a_dynamo_graph_knows_its_argument() -> None:
    found: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.extend(argument_of(n) for n in module.graph.find_nodes(op="placeholder"))
        return module.forward

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: Any, nested: dict[str, list[Any]]) -> Any:
            return x * self.weight + nested["k"][0]

    compile_: Any = torch.compile
    with torch.no_grad():
        compile_(Model(), backend=backend)(torch.ones(2), {"k": [torch.ones(2)]})
    assert sorted(found) == ["nested", "self", "x"]
