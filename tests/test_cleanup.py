"""Cleanup, a rule at a time: what must go, what must stay and why; values and copies are as before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
import torch.fx
from hypothesis import given, note, reject
from hypothesis import strategies as st
from support.operators import ops
from torch import Tensor

from reink.core.printing import program_text, short_name
from reink.core.program import Form, InputMutation, MutationSignature, OutputKind, OutputSpec, Program
from reink.core.torch_internals import FakeTensorMode, ShapeEnv, pytree, trace
from reink.errors import ReinkError
from reink.fuzz.draft import REFUSALS
from reink.fuzz.generate import generate
from reink.passes.cleanup import cleanup
from reink.passes.functionalize import functionalize
from reink.passes.lower import lower
from reink.passes.reinplace import reinplace

Function = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]
aten: Any = torch.ops.aten


def _layout(value: Tensor) -> tuple[Any, ...]:
    return tuple(value.size()), value.stride(), value.storage_offset()


def capture(fn: Function, inputs: list[Tensor], *, dynamic: bool = False, strategy: str = "v2") -> Program:
    """`fn` traced on fake copies of `inputs` and made pure."""
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    fakes = [mode.from_tensor(t) for t in inputs]
    module = trace(fn, fakes)
    if not dynamic and [_layout(f) for f in fakes] != [_layout(t) for t in inputs]:
        raise ReinkError("metadata-mutation", "an input became another tensor, which the capture of reink would see")
    return functionalize(Program(module, Form.MUTABLE), strategy=strategy)


def example(shapes: Shapes) -> list[Tensor]:
    """Inputs that count up, each from another number."""
    return [(torch.arange(torch.Size(s).numel()) + 1 + 100 * k).float().view(s) for k, s in enumerate(shapes)]


def operators(program: Program) -> list[str]:
    """The operators of the graph, in order."""
    return [short_name(n.target) for n in program.graph.nodes if n.op == "call_function"]


def cleaned(fn: Function, shapes: Shapes, **options: Any) -> list[str]:
    """The operators left after cleanup; on the way, that the pure graph still gives the same results."""
    program = capture(fn, example(shapes), **options)
    torch.manual_seed(0)
    before = program.module(*example(shapes))
    count = len(program.graph.nodes)
    gone = cleanup(program)
    assert gone == count - len(program.graph.nodes)
    program.graph.lint()
    program.module.recompile()
    torch.manual_seed(0)
    for old, new in zip(before, program.module(*example(shapes)), strict=True):
        assert type(old) is type(new)
        if isinstance(old, Tensor):
            assert torch.equal(old, new) and old.stride() == new.stride()
        else:
            assert old == new
    return operators(program)


# -- the rules, a table of what goes and a table of what stays -------------------------------------


def running(x: Tensor) -> Tensor:
    y = x.view(2, 8)
    y.add_(1)
    y.relu_()
    return x * 2


def unused_chain(x: Tensor) -> Tensor:
    x.exp().view(-1).sum()
    return x * 2


def unused_write(x: Tensor) -> Tensor:
    y = x * 3
    y[0].add_(1)
    return x * 2


def unused_v2_call(x: Tensor) -> Tensor:
    ops.bump(x.clone())
    return x * 2


def back_and_forth(x: Tensor) -> Tensor:
    return x.view(16).view(2, 8).view(4, 4) * 2


def transposed_twice(x: Tensor) -> Tensor:
    return x.t().t() + x.permute(1, 0)


def conjugated_twice(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.complex(x, x).conj().conj())


def whole_slice_and_alias(x: Tensor) -> Tensor:
    return x[:].detach() * 2


def equal_views_by_two_ways(x: Tensor) -> Tensor:
    return x.view(16)[4:8] * x[1]


def equal_calls(x: Tensor, y: Tensor) -> Tensor:
    return torch.add(x, y, alpha=2).exp() * torch.add(x, y, alpha=2).exp()


def equal_calls_then_equal_views(x: Tensor) -> Tensor:
    return x.exp().view(16) * x.exp().view(16)


def equal_calls_with_parts(x: Tensor) -> Tensor:
    return x.max(0)[0] * x.max(0)[0] + x.max(0)[1]


def one_of_them_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp(), x.exp() * 2


def equal_after_a_write(x: Tensor) -> Tensor:
    x.add_(1)
    return x.exp() * x.exp()


def idle_clone(x: Tensor) -> Tensor:
    return x.clone() * 2


def clone_that_is_copied_from(x: Tensor, y: Tensor) -> None:
    y[0] = x.exp().clone()


def row_twice(x: Tensor) -> None:
    x[0].add_(1)
    x[0].relu_()


def slices_twice(x: Tensor) -> None:
    x[1:3].mul_(2)
    x[1:3].add_(1)


def read_what_was_put(x: Tensor, row: Tensor) -> Tensor:
    y = x * 2
    y[1] = row
    return y[1] * 3


def random_unused(x: Tensor) -> Tensor:
    torch.rand_like(x)
    return x * 2


def asserted(x: Tensor) -> Tensor:
    aten._assert_async.msg((x.sum() > 0), "positive")
    return x * 2


def one_way(x: Tensor) -> Tensor:
    return x.view(16).view(2, 8) * 2


def same_size_other_strides(x: Tensor) -> Tensor:
    return x.t() * x


def same_size_other_offset(x: Tensor) -> Tensor:
    return x[0] * x[1]


def same_bytes_other_type(x: Tensor) -> Tensor:
    return x.view(torch.int32) * x


def conjugated_once(x: Tensor) -> Tensor:
    z = torch.complex(x, x)
    return torch.view_as_real(z.conj() * z)


def same_view_of_two_versions(x: Tensor) -> Tensor:
    old = x.view(16) * 2
    x.add_(1)
    return old * x.view(16)


def zeros_of_both_signs(x: Tensor) -> Tensor:
    return torch.copysign(x, 0.0) + torch.copysign(x, -0.0)


def true_and_one(x: Tensor) -> Tensor:
    return x.sum(0, keepdim=True) + x.sum(0, keepdim=False)


def whole_number_and_float(x: Tensor) -> Tensor:
    k = x.to(torch.int64)
    return (k + 1).float() + (k + 1.0)


def two_draws(x: Tensor) -> Tensor:
    return torch.rand_like(x) - torch.rand_like(x)


def two_results(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp(), x.exp()


def views_of_both_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp().view(16), x.exp()[0]


def first_is_written(x: Tensor) -> Tensor:
    a, b = x.exp(), x.exp()
    a.add_(1)
    return a * b


def second_is_written_through_a_view(x: Tensor) -> Tensor:
    a, b = x.exp(), x.exp()
    b[0].add_(1)
    return a * b


def second_is_written_by_an_operator(x: Tensor) -> Tensor:
    a, b = x.exp(), x.exp()
    ops.bump(b[1])
    return a * b


def both_are_written(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.exp(), x.exp()
    a.add_(1)
    b.mul_(2)
    return a.sum(), b.sum()


def two_empty_tensors(x: Tensor) -> Tensor:
    return torch.zeros(4, 4) + torch.zeros(4, 4) + x


def two_custom_calls(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x * 2, x * 2
    ops.bump(a)
    ops.bump(b)
    return a.sum(), b.sum()


def source_is_written_later(x: Tensor) -> Tensor:
    old = x.clone()
    x.add_(1)
    return old * x


def source_view_is_written_later(x: Tensor) -> Tensor:
    old = x.clone()
    x[0].add_(1)
    return old * x


def clone_is_written(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1)
    return y * x


def clone_is_returned(x: Tensor) -> Tensor:
    return x.clone()


def source_is_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y, y.clone() * 2


def view_of_clone_is_returned(x: Tensor) -> Tensor:
    return x.clone()[0]


def clone_has_other_strides(x: Tensor) -> Tensor:
    return x.t().clone(memory_format=torch.contiguous_format).view(16) * 2


def copy_stays(x: Tensor, y: Tensor) -> None:
    x.copy_(y)


def arithmetic_that_changes_nothing(x: Tensor) -> Tensor:
    return (x + 0) * 1


def another_row(x: Tensor) -> Tensor:
    x[0].add_(1)
    return x[1] * 2


def column_twice(x: Tensor) -> None:
    x[:, 0].add_(1)
    x[:, 0].relu_()


def put_then_write(x: Tensor, row: Tensor) -> None:
    x[0] = row
    x[0].relu_()


def put_then_write_the_source(x: Tensor, row: Tensor) -> Tensor:
    x[0] = row
    row.add_(1)
    return x[0] * row


def put_a_row_that_is_broadcast(x: Tensor, row: Tensor) -> Tensor:
    y = x * 2
    y[1] = row[:1]
    return y[1] * 3


X: Shapes = ((4, 4),)
ROW: Shapes = ((4, 4), (4,))

GOES: list[tuple[Function, Shapes, str]] = [
    (running, X, "view add relu view mul"),
    (unused_chain, X, "mul"),
    (unused_write, X, "mul"),
    (unused_v2_call, X, "mul"),
    (back_and_forth, X, "mul"),
    (transposed_twice, X, "t add"),
    (conjugated_twice, X, "complex view_as_real"),
    (whole_slice_and_alias, X, "mul"),
    (equal_views_by_two_ways, X, "view slice mul"),
    (equal_calls, ((4, 4), (4, 4)), "add exp mul"),
    (equal_calls_then_equal_views, X, "exp view mul"),
    (equal_calls_with_parts, X, "max.dim getitem mul getitem add"),
    (one_of_them_returned, X, "exp mul"),
    (equal_after_a_write, X, "add exp mul"),
    (idle_clone, X, "mul"),
    (clone_that_is_copied_from, ((4,), (4, 4)), "exp select_scatter"),
    (row_twice, X, "select add select_scatter relu select_scatter"),
    (slices_twice, X, "slice mul slice_scatter add slice_scatter"),
    (read_what_was_put, ROW, "mul"),
]

STAYS: list[tuple[Function, Shapes, str]] = [
    (random_unused, X, "a draw moves the generator: later draws would differ"),
    (asserted, X, "an assertion is there for its effect"),
    (one_way, X, "the chain ends in a shape of its own; a shorter one is functionalize's to make"),
    (same_size_other_strides, X, "the strides differ: other elements"),
    (same_size_other_offset, X, "the offsets differ: other elements"),
    (same_bytes_other_type, X, "the same bytes mean other numbers"),
    (conjugated_once, X, "the conjugate bit is part of the value"),
    (same_view_of_two_versions, X, "a view of the old version holds the old content"),
    (zeros_of_both_signs, X, "0.0 == -0.0, but their signs differ"),
    (true_and_one, X, "another argument"),
    (whole_number_and_float, X, "1 == 1.0, but the type of the sum differs"),
    (two_draws, X, "two draws are two numbers"),
    (two_results, X, "eager returns two memories, and the caller may write one"),
    (views_of_both_returned, X, "eager returns two memories, seen through views"),
    (first_is_written, X, "one buffer for both would have to be copied for the write"),
    (second_is_written_through_a_view, X, "one buffer for both would have to be copied for the write"),
    (second_is_written_by_an_operator, X, "one buffer for both would have to be copied for the write"),
    (both_are_written, X, "each write goes in place only in memory of its own"),
    (two_empty_tensors, X, "each is memory of its own, and costs no read"),
    (two_custom_calls, X, "a call writes: each needs memory of its own"),
    (source_is_written_later, X, "the clone keeps what the write would destroy"),
    (source_view_is_written_later, X, "the clone keeps what the write would destroy"),
    (clone_is_written, X, "without the clone the write would reach the source"),
    (clone_is_returned, X, "the caller may write the result, not the input"),
    (source_is_returned, X, "results are the caller's: no rule reasons about them"),
    (view_of_clone_is_returned, X, "the caller may write the result, not the input"),
    (clone_has_other_strides, X, "views of the clone depend on its strides"),
    (copy_stays, ((4, 4), (4, 4)), "the destination's layout and type are those of the result"),
    (arithmetic_that_changes_nothing, X, "-0.0 + 0 is 0.0, and the result is new memory"),
    (another_row, X, "the window read is not the one written"),
    (column_twice, X, "with gaps in the window, the pure twin has other strides than those noted"),
    (put_then_write, ROW, "relu of the source would run in new memory, then be copied in"),
    (
        put_then_write_the_source,
        ROW,
        "the row outlives the write to its source",
    ),
    (put_a_row_that_is_broadcast, ROW, "the source has another size than the window"),
]


def _name(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("fn", "shapes", "left"), GOES, ids=_name)
def test_goes(fn: Function, shapes: Shapes, left: str) -> None:
    assert " ".join(cleaned(fn, shapes)) == left


@pytest.mark.parametrize(("fn", "shapes", "reason"), STAYS, ids=_name)
def test_stays(fn: Function, shapes: Shapes, reason: str) -> None:
    before = operators(capture(fn, example(shapes)))
    assert cleaned(fn, shapes) == before, reason


SYMBOLIC: list[tuple[Function, Shapes, dict[str, int]]] = [
    (lambda x: x.view(-1).view(x.shape) * 2, ((4, 6),), {"view": 0}),
    (lambda x: x.t().t() * x.size(0) + x.size(0), ((4, 6),), {"t": 0, "sym_size": 1}),
    (lambda x: x.exp().view(-1) * x.exp().view(-1), ((4, 6),), {"exp": 1, "view": 1}),
    (lambda x: (x[: x.size(0) // 2] + 1) * x[: x.size(0) // 2], ((4, 6),), {"slice": 1}),
    (lambda x: x[1 : x.size(0)] * x[: x.size(0) - 1], ((4, 6),), {"slice": 2}),
    (lambda x: x.clone() * 2, ((4, 6),), {"clone": 0}),
]


@pytest.mark.parametrize(("fn", "shapes", "counts"), SYMBOLIC)
def test_symbolic_sizes(fn: Function, shapes: Shapes, counts: dict[str, int]) -> None:
    found = Counter(cleaned(fn, shapes, dynamic=True))
    assert {name: found[name] for name in counts} == counts


# -- graphs that functionalize does not make -------------------------------------------------------


def _pure(results: Callable[[torch.fx.Graph, torch.fx.Node], Any], signature: MutationSignature) -> Program:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(results(graph, x))
    with FakeTensorMode() as mode:
        values = [mode.from_tensor(torch.ones(4, 4))]
    for node in graph.nodes:
        if node.op == "placeholder":
            node.meta["val"] = values[0]
        elif node.op == "call_function":
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with mode:
                node.meta["val"] = node.target(*args, **kwargs)
    return Program(torch.fx.GraphModule({}, graph), Form.FUNCTIONAL, signature)


FRESH = OutputSpec(OutputKind.FRESH)


def test_two_numbers_drawn_from_data_stay_two_symbols() -> None:
    def fn(x: Tensor) -> Any:
        return torch.nonzero(x).sum() + torch.nonzero(x).sum()

    program = capture(fn, example(X), dynamic=True)
    cleanup(program)
    assert operators(program).count("nonzero") == 2


def test_not_a_number_equals_itself_as_an_argument() -> None:
    def results(graph: torch.fx.Graph, x: torch.fx.Node) -> Any:
        first, second = (graph.call_function(aten.add.Tensor, (x, float("nan"))) for _ in range(2))
        return (graph.call_function(aten.mul.Tensor, (first, second)),)

    program = _pure(results, MutationSignature(("x",), (FRESH,)))
    assert cleanup(program) == 1


def test_true_and_one_are_two_arguments() -> None:
    def results(graph: torch.fx.Graph, x: torch.fx.Node) -> Any:
        first = graph.call_function(aten.add.Tensor, (x, 1))
        second = graph.call_function(aten.add.Tensor, (x, True))
        return (graph.call_function(aten.mul.Tensor, (first, second)),)

    assert cleanup(_pure(results, MutationSignature(("x",), (FRESH,)))) == 0


def test_an_unmarked_new_value_of_an_input_is_not_shared() -> None:
    """`a` will be computed in the input's memory: a pass of the user need not mark it as a write."""

    def results(graph: torch.fx.Graph, x: torch.fx.Node) -> Any:
        first, second = (graph.call_function(aten.add.Tensor, (x, 1)) for _ in range(2))
        return (graph.call_function(aten.sum.default, (second,)), first)

    signature = MutationSignature(("x",), (FRESH,), (InputMutation(0, 1),))
    assert cleanup(_pure(results, signature)) == 0


def test_nodes_named_by_the_signature_stay() -> None:
    def fn(x: Tensor) -> Any:
        x.add_(1)
        return x[: x.size(0) // 2]

    inputs = example(((4, 6),))
    program = capture(fn, inputs, dynamic=True)
    cleanup(program)
    inside = set(program.graph.nodes)
    steps = [a for spec in program.signature.outputs for step in spec.steps for a in step.args]
    named = [a for a in steps if isinstance(a, torch.fx.Node)]
    assert named and set(named) <= inside
    _check_lowered(program, fn, inputs)


def test_the_earliest_node_survives_with_its_metadata() -> None:
    program = capture(equal_calls, example(((4, 4), (4, 4))))
    first = next(n for n in program.graph.nodes if n.op == "call_function")
    meta = dict(first.meta)
    cleanup(program)
    assert first in set(program.graph.nodes)
    assert first.meta == meta


def test_output_slots_stay_filled() -> None:
    """What the boundary makes anew from an input still stands in the result tuple, for passes to see."""

    def fn(x: Tensor) -> Any:
        return x.t(), x.view(16).view(4, 4)

    program = capture(fn, example(X))
    cleanup(program)
    assert [getattr(r, "name", r) for r in program.results()] == ["t", program.placeholders()[0].name]
    _check_lowered(program, fn, example(X))


# -- the whole way ---------------------------------------------------------------------------------


def _run_lowered(program: Program, inputs: list[Tensor]) -> list[Tensor]:
    """What the lowered program returns, then the inputs as it leaves them."""
    return _left_behind(program, [t.clone() for t in inputs])


def _left_behind(program: Program, inputs: list[Tensor]) -> list[Tensor]:
    """What the lowered program returns, then the inputs, which it may write."""
    torch.manual_seed(0)
    return [*lower(reinplace(program)).module(*inputs), *inputs]


def _check_lowered(program: Program, fn: Function, inputs: list[Tensor]) -> None:
    """Lowered, the program leaves results and inputs as eager does."""
    theirs = [t.clone() for t in inputs]
    want = fn(*theirs)
    results = list(want) if isinstance(want, (tuple, list)) else [want]
    for got, value in zip(_run_lowered(program, inputs), [*results, *theirs], strict=True):
        assert type(got) is type(value)
        if isinstance(value, Tensor):
            assert torch.equal(got, value) and got.stride() == value.stride()


def _copies(program: Program) -> list[str]:
    """The choices that cost a copy, or might."""
    return [f"{c.operator} {c.outcome} {c.bytes}" for c in reinplace(program).choices if c.bytes != 0]


ALL = [(fn, shapes) for fn, shapes, _ in (*GOES, *STAYS) if fn not in (random_unused, two_draws)]


@pytest.mark.parametrize("strategy", ["v1", "v2"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("fn", "shapes"), ALL, ids=_name)
def test_lowered_equals_eager_and_copies_no_more(fn: Function, shapes: Shapes, dynamic: bool, strategy: str) -> None:
    inputs = example(shapes)
    plain = capture(fn, inputs, dynamic=dynamic, strategy=strategy)
    clean = capture(fn, inputs, dynamic=dynamic, strategy=strategy)
    cleanup(clean)
    assert len(_copies(clean)) <= len(_copies(plain))
    _check_lowered(clean, fn, inputs)


@given(number=st.integers(0, 1_000_000))
@hypothesis.example(number=594295)
def test_random_programs_copy_no_more(number: int) -> None:
    """Each input gets memory of its own: here only values inside the program share."""
    made = generate(0, number).apart()
    if not {"branch", "loop"}.isdisjoint(made.rules):  # their graphs are taken apart by more than this test does
        reject()
    nested, make_inputs = made.functions()
    note(made.text())

    def function(*inputs: Tensor) -> tuple[Any, ...]:
        return tuple(pytree.tree_leaves(nested(*inputs)))

    try:
        plain, clean = capture(function, list(make_inputs())), capture(function, list(make_inputs()))
    except (ReinkError, *REFUSALS):  # what PyTorch cannot trace, or eager refuses where inputs are apart
        reject()
    cleanup(clean)
    clean.graph.lint()
    assert len(_copies(clean)) <= len(_copies(plain))
    ways = [_left_behind(program, list(make_inputs())) for program in (clean, plain)]
    for got, want in zip(*ways, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, check_stride=True)


# -- how it reads ----------------------------------------------------------------------------------


SHOWN = [running, row_twice, equal_calls_then_equal_views, second_is_written_through_a_view]


@pytest.mark.parametrize("fn", SHOWN)
def test_golden(fn: Function, golden: Callable[[str, str], None]) -> None:
    program = capture(fn, example(X))
    before = program_text(program, types=False)
    cleanup(program)
    golden(f"cleanup_{fn.__name__}", f"functional\n{before}\ncleaned\n{program_text(program, types=False)}")
