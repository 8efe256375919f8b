"""PyTorch's own functional calls: read as reink's, written as PyTorch's, put back in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.fx
from support.operators import ops
from support.stock import stock_calls, stock_graph
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import reink
from reink.core.calls import CALLS
from reink.core.program import Form, MutationSignature, Program
from reink.core.stock_calls import from_stock
from reink.core.to_stock import to_stock
from reink.errors import ReinkError

Run = Callable[..., Any]


def _rows(x: Tensor) -> Tensor:
    ops.bump(x[2])
    ops.bump(x[:, 1:3])
    return x * 2


def _two_of_one_base(x: Tensor) -> Tensor:
    ops.lower_and_scale(x[:4], x[4:])
    return x.sum()


def _optional(x: Tensor, y: Tensor) -> Tensor:
    ops.bump_maybe(x[0], None)
    ops.bump_maybe(x[1], y[3])
    return x + y


def _lists(x: Tensor, y: Tensor) -> Tensor:
    ops.ramp([x[1], y, x[5]])
    return x.sum() + y.sum()


def _results(x: Tensor) -> tuple[Tensor, ...]:
    first = ops.bump_and_square(x[1:3])
    low, high = ops.bump_and_stats(x)
    return first + low, high


def _strided(x: Tensor) -> Tensor:
    y = x + 1
    ops.bump(y.as_strided((3, 2), (9, 1), 4))
    ops.bump(y.t()[1:3])
    return y * 2


def _columns(x: Tensor) -> Tensor:
    ops.bump(x.t()[1:3])
    ops.bump(x[2:4, 1:3])
    return x * 2


def _overwritten(x: Tensor, y: Tensor) -> Tensor:
    total: Tensor = ops.bump_and_square(x[1:3])
    x.copy_(y)
    return total


def _late_reader(x: Tensor) -> Tensor:
    old = x.sin()
    ops.store_rows(x, old[:2], 3)
    return old + x


def _matrix() -> tuple[Tensor]:
    return (torch.arange(64.0).reshape(8, 8),)


def _offset() -> tuple[Tensor]:
    return (torch.arange(128.0).reshape(16, 8)[5:13],)


def _matrices() -> tuple[Tensor, Tensor]:
    return torch.arange(64.0).reshape(8, 8), torch.ones(8, 8)


def _halves() -> tuple[Tensor]:
    return (torch.arange(64.0).reshape(8, 8).to(torch.bfloat16),)


class Case(NamedTuple):
    """A program that copies nothing in eager, and the arguments that it is called with."""

    fn: Run
    make: Callable[[], tuple[Any, ...]]


CASES = {
    "rows": Case(_rows, _matrix),
    "rows of bfloat16": Case(_rows, _halves),
    "rows of an input inside a larger storage": Case(_rows, _offset),
    "two views of one base": Case(_two_of_one_base, _matrix),
    "optional": Case(_optional, _matrices),
    "lists": Case(_lists, _matrices),
    "results": Case(_results, _matrix),
    "strided": Case(_strided, _matrix),
    "columns of an input inside a larger storage": Case(_columns, _offset),
    "overwritten": Case(_overwritten, _matrices),
    "late reader": Case(_late_reader, _matrix),
}
FORMS = pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def captured(module: torch.fx.GraphModule) -> Program:
    """A graph with an epilogue, as the first step of the pipeline takes it."""
    return Program(module, Form.MUTABLE, MutationSignature(known=False, epilogue_in_graph=True))


def outcome(run: Run, make: Callable[[], tuple[Any, ...]]) -> list[Tensor]:
    """What a run returns, then its arguments and their storages afterwards."""
    args = make()
    results = run(*args)
    flat = list(results) if isinstance(results, (list, tuple)) else [results]
    whole = [a.as_strided((a.untyped_storage().nbytes() // a.element_size(),), (1,), 0) for a in args]
    return [t.clone() for t in (*flat, *args, *whole)]


def agree(run: Run, case: Case) -> None:
    """Fail unless `run` does what the program of `case` does."""
    for want, got in zip(outcome(case.fn, case.make), outcome(run, case.make), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@FORMS
@EACH
def test_calls_of_torch_are_read(case: Case, v2: bool) -> None:
    module = stock_graph(case.fn, case.make(), v2=v2)
    found = stock_calls(module.graph)
    assert from_stock(module.graph) == len(found) > 0
    module.graph.lint()
    module.recompile()
    assert not stock_calls(module.graph)
    assert len([n for n in module.graph.nodes if n.target in CALLS]) == len(found)
    agree(module.forward, case)


@FORMS
@EACH
def test_calls_are_written_as_torch_has_them(case: Case, v2: bool) -> None:
    module = stock_graph(case.fn, case.make(), v2=v2)
    from_stock(module.graph)
    program = Program(module, Form.FUNCTIONAL)
    written = to_stock(program)
    written.graph.lint()
    assert stock_calls(written.graph)
    assert not [n for n in written.graph.nodes if n.target in CALLS]
    agree(written.module.forward, case)


def test_symbolic_sizes_are_read() -> None:
    def program(x: Tensor) -> Tensor:
        y = x + 1
        ops.bump(y[2])
        ops.bump(y[1:3])
        ops.bump(y.t()[:, 1:3])
        return y * 2

    module = stock_graph(program, _matrix(), dynamic=True)
    from_stock(module.graph)
    module.recompile()
    given = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    numbers = [8 for v in given if not isinstance(v, Tensor)]
    assert numbers
    agree(lambda x: module.forward(*numbers, x), Case(program, _matrix))


def test_a_call_that_torch_did_not_write_is_refused() -> None:
    module = stock_graph(_rows, _matrix())
    call = stock_calls(module.graph)[0]
    call.kwargs = {k: v for k, v in call.kwargs.items() if not k.endswith("_base_index")}
    with pytest.raises(ReinkError, match="_t_base_index") as error:
        from_stock(module.graph)
    assert error.value.code == "unknown-call"


def test_what_torch_cannot_say_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        ops.halve_then_add_total(x[0], x[1])
        return x.sum()

    functional = reink.functionalize(program, _matrix())
    with pytest.raises(ReinkError, match="only read") as error:
        to_stock(functional.program)
    assert error.value.code == "unknown-call"


@FORMS
@EACH
def test_a_graph_of_torch_is_put_back_in_place(case: Case, v2: bool) -> None:
    module = stock_graph(case.fn, case.make(), v2=v2)
    before = str(module.graph)
    lowered, report = reink.reinplace(module, prove=True)
    assert str(module.graph) == before
    assert not report.fallback
    assert report.bytes_cloned == 0
    assert not [n for n in lowered.graph.nodes if n.target in CALLS] and not stock_calls(lowered.graph)
    agree(lowered, case)


def test_a_result_is_memory_of_an_input_where_the_graph_says_so() -> None:
    def written(x: Tensor) -> Tensor:
        ops.bump(x[2])
        return x

    def copied(x: Tensor) -> Tensor:
        ops.bump(x[2])
        return x.clone()

    for program, is_input in ((written, True), (copied, False)):
        x = torch.zeros(8, 8)
        lowered, report = reink.reinplace(stock_graph(program, _matrix()))
        (result,) = lowered(x)
        assert torch.equal(result, x) and x[2, 0] == 1
        assert (result.data_ptr() == x.data_ptr()) is is_input
        assert report.bytes_cloned == 0


def test_a_graph_may_return_anything_nested() -> None:
    def program(x: Tensor) -> dict[str, Any]:
        y = torch.ops.aten.add.Tensor(x, 1)
        torch.ops.aten.copy_.default(x, y)
        return {"a": [y, None], "b": (3, torch.ops.aten.mul.Tensor(y, 2))}

    traced = make_fx(program, tracing_mode="fake")(torch.ones(4))
    x, again = torch.ones(4), torch.ones(4)
    lowered, _ = reink.reinplace(traced)
    want, got = traced(x), lowered(again)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(again, x)


def test_a_graph_that_writes_is_refused() -> None:
    traced = make_fx(lambda x: x.add_(1) * 2, tracing_mode="fake")(torch.ones(4))
    with pytest.raises(ReinkError) as error:
        reink.reinplace(traced)
    assert error.value.code == "not-pure"


def test_a_graph_without_fake_values_is_refused() -> None:
    traced = torch.fx.symbolic_trace(lambda x: torch.ops.aten.add.Tensor(x, 1))
    with pytest.raises(ReinkError) as error:
        reink.reinplace(traced)
    assert error.value.code == "no-values"


def test_inputs_that_share_memory_are_refused_where_one_is_written() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        torch.ops.aten.copy_.default(x, torch.ops.aten.add.Tensor(x, 1))
        return y * 2

    base = torch.ones(8)
    traced = make_fx(program, tracing_mode="fake")(base[:4], base[2:6])
    with pytest.raises(ReinkError, match="y_1") as error:
        reink.reinplace(traced)
    assert error.value.code == "aliased-inputs"
    apart = make_fx(program, tracing_mode="fake")(base[:4], base[4:])
    reink.reinplace(apart)


def test_symbolic_graphs_are_put_back_in_place() -> None:
    def program(x: Tensor) -> Tensor:
        ops.bump(x[2])
        ops.bump(x[4:])
        ops.bump(x.t()[:, 1:3])
        return x.sum()

    module = stock_graph(program, _matrix(), dynamic=True)
    lowered, report = reink.reinplace(module)
    numbers = [8 for n in module.graph.nodes if n.op == "placeholder" and not isinstance(n.meta["val"], Tensor)]
    agree(lambda x: lowered(*numbers, x), Case(program, _matrix))
    assert all(d.outcome == "in place" for d in report.decisions)
