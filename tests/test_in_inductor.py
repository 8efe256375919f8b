"""The stock pipeline with its re-inplacing done by reink: graphs alone first, then few compiles by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config as stock_config
import torch.fx
from support.judge import compare
from support.operators import ops
from support.stock import stock_calls, stock_graph
from test_stock import CASES, Case, agree
from torch import Tensor

import reink
from reink.backends.in_inductor import Repairs
from reink.core.stock_calls import mark_shared_operands
from reink.core.torch_internals import inductor_pass

inductor_config: Any = stock_config
SLOTS = ("joint_custom_pre_pass", "post_grad_custom_pre_pass", "post_grad_custom_post_pass")


@pytest.fixture(autouse=True)
def _no_caches(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with inductor_config.patch(compile_threads=1, fx_graph_cache=False):
        yield


def repaired(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, Repairs]:
    """A graph as it is after both passes; it still runs in plain PyTorch."""
    repairs = Repairs()
    mark_shared_operands(module.graph)
    repairs.repair(module.graph)
    module.graph.lint()
    module.recompile()
    return module, repairs


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_graph_is_replaced_by_one_that_copies_nothing(case: Case, v2: bool) -> None:
    module, repairs = repaired(stock_graph(case.fn, case.make(), v2=v2))
    assert not repairs.left and not stock_calls(module.graph)
    assert [r.bytes_cloned for r in repairs.reports] == [0]
    agree(module.forward, case)


def _reads_what_it_writes(x: Tensor) -> Tensor:
    y = x + 1
    ops.halve_then_add_total(y, y)
    ops.halve_then_add_total(y[0:4], y[2:6])
    return y * 2


def _reads_a_copy(x: Tensor) -> Tensor:
    y = x + 1
    ops.halve_then_add_total(y, y.clone())
    return y * 2


def _two_that_overlap(x: Tensor) -> Tensor:
    y = x + 1
    ops.lower_and_scale(y[0:4], y[2:6])
    ops.lower_and_scale(y, y)
    return y * 2


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
@pytest.mark.parametrize("fn", [_reads_what_it_writes, _reads_a_copy, _two_that_overlap])
def test_arguments_of_one_call_share_memory_as_in_eager(fn: Callable[..., Any], v2: bool) -> None:
    def make() -> tuple[Tensor]:
        return (torch.arange(64.0).reshape(8, 8),)

    module, repairs = repaired(stock_graph(fn, make(), v2=v2))
    assert not repairs.left
    agree(module.forward, Case(fn, make))


def test_an_input_is_copied_into_another_before_it_is_written() -> None:
    def program(log: Tensor, live: Tensor) -> Tensor:
        log.copy_(live)
        live.mul_(2).add_(1)
        return live

    def make() -> tuple[Tensor, Tensor]:
        return torch.zeros(3, 4), torch.arange(12.0).view(3, 4)

    module = stock_graph(program, make())
    for node in module.graph.nodes:  # what Inductor does to copies that seem to do nothing
        if node.target is torch.ops.aten.copy.default:
            node.replace_all_uses_with(node.args[1])
    agree(repaired(module)[0].forward, Case(program, make))


def test_a_graph_without_writes_is_left_alone() -> None:
    module = stock_graph(lambda x: torch.relu(x) + 1, (torch.ones(4),))
    before = list(module.graph.nodes)
    module, repairs = repaired(module)
    assert list(module.graph.nodes) == before and not repairs.reports


def test_what_cannot_be_repaired_is_left_to_stock_and_said() -> None:
    def program(x: Tensor) -> Tensor:
        ops.bump(x[0])
        return x.sum()

    module = stock_graph(program, (torch.ones(4, 4),))
    stock_calls(module.graph)[0].meta.pop("val")
    repairs = Repairs()
    repairs.repair(module.graph)
    assert "no-values" in repairs.left[0] and stock_calls(module.graph)


def test_the_passes_stand_around_those_of_the_user_and_go_away() -> None:
    def slot(name: str) -> Any:
        return getattr(inductor_config, name)

    before = {name: slot(name) for name in SLOTS}

    def mine(graph: torch.fx.Graph) -> None:
        """The user's."""

    with inductor_config.patch(post_grad_custom_post_pass=mine, joint_custom_pre_pass=[mine]):
        with reink.in_inductor():
            first, last = slot("joint_custom_pre_pass"), slot("post_grad_custom_post_pass")
            assert first[1:] == [mine] and last[:-1] == [mine]
        assert inductor_config.post_grad_custom_post_pass is mine
    assert {name: slot(name) for name in SLOTS} == before
    assert last[-1].uuid() == inductor_pass(Repairs().repair).uuid()
    reink.enable_in_inductor()
    reink.enable_in_inductor()
    assert len(slot("post_grad_custom_post_pass")) == 1
    reink.disable_in_inductor()
    assert {name: slot(name) for name in SLOTS} == before


# -- compiled ------------------------------------------------------------------------------------------


def _step(cache: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    old = cache[0, 1].clone()
    for k in range(3):
        ops.store_rows(cache[k], row, k)
    cache[3].copy_(cache[0] * 2)
    ops.bump_maybe(cache[1, 2], None)
    y = row @ row.t()
    ops.halve_then_add_total(y, y)
    return old + cache[0, 1], torch.cat([y.flatten(), cache[1].flatten()])


def _step_arguments() -> tuple[Tensor, Tensor]:
    return torch.arange(128.0).reshape(4, 4, 8), torch.ones(2, 8)


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
def test_inductor_is_right_and_clones_nothing(v2: bool) -> None:
    seen: list[int] = []

    def mine(graph: torch.fx.Graph) -> None:
        seen.append(len(stock_calls(graph)))

    compile_: Any = torch.compile
    settings = {"enable_auto_functionalized_v2": v2, "post_grad_custom_pre_pass": mine}
    with inductor_config.patch(settings), reink.in_inductor() as repaired:
        compare(_step, _step_arguments, lambda f: compile_(f, fullgraph=True), tolerance=1e-5)
    assert seen == [5]
    assert not repaired.left
    (report,) = repaired.reports
    assert report.name == "_step" and not report.fallback
    assert report.bytes_cloned == 32  # the row that the user copies


def test_a_call_is_given_an_input_with_gaps_that_an_index_wrote() -> None:
    """The functional operator on it was traced with other strides than the input has."""

    def indexed(x: Tensor) -> Tensor:
        x.index_put_((torch.tensor([0, 1, 1]),), x.remainder(997), accumulate=True)
        ops.first_row(x)
        return x

    def gaps() -> tuple[Tensor]:
        return (torch.arange(201, 227).as_strided((3, 3), (6, 2)),)

    compile_: Any = torch.compile
    with reink.in_inductor() as repaired:
        compare(indexed, gaps, lambda f: compile_(f, fullgraph=True))
    assert not repaired.left


def test_of_an_expanded_result_each_element_is_copied_once() -> None:
    """It was copied into memory whose elements share memory, which the ownership check refuses."""

    def shown(x: Tensor) -> Tensor:
        x.scatter_add_(0, torch.zeros((1, 1, 2), dtype=torch.int64), x.sum().to(torch.int32).expand((1, 1, 2)))
        return x.expand([3, 3, 2]).as_strided_((1, 3, 2), (2, 0, 1), 2)

    def rows() -> tuple[Tensor]:
        return (torch.arange(1, 7, dtype=torch.int32).view(3, 1, 2),)

    compile_: Any = torch.compile
    with reink.in_inductor() as repaired, torch.no_grad():
        found = compile_(shown, fullgraph=True)(*rows())
    assert torch.equal(found, shown(*rows())) and found.stride() == (2, 0, 1)
    assert not repaired.left
    assert repaired.reports[0].bytes_cloned == 8


def test_training_graphs_are_repaired() -> None:
    def program(w: Tensor, x: Tensor, memory: Tensor) -> Tensor:
        ops.bump(memory[1])
        y = torch.sin(x * w)
        return (y * memory[1]).sum() + memory[0].sum()

    def make() -> tuple[Tensor, ...]:
        return torch.ones(8, requires_grad=True), torch.arange(8.0), torch.zeros(2, 8)

    compile_: Any = torch.compile
    with reink.in_inductor() as repaired:
        compare(program, make, lambda f: compile_(f, fullgraph=True), grad_mode="grad", tolerance=1e-5)
    assert not repaired.left
    assert sum(len(r.decisions) for r in repaired.reports) >= 1
    assert sum(r.bytes_cloned for r in repaired.reports) == 0
