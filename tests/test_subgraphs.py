"""Calls that run graphs of their own: what passes see of them, how they are lowered, what the check refuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from corpus.control_flow import loop_body_writes_a_row
from corpus.registry import counting
from support.judge import compare
from support.library import called, compiled
from support.operators import ops
from torch import Tensor

from reink.api import CompiledFunction, compile_function
from reink.check import check_form, check_ownership
from reink.core.program import Program, copied
from reink.core.subgraphs import functional_call, subgraph_call
from reink.fuzz.program import branch, loop
from reink.fuzz.shuffle import assert_pure, shuffle_pass
from reink.options import Options
from reink.passes.capture import capture_graph
from reink.pipeline import compile_program

Node = torch.fx.Node
aten = torch.ops.aten


def maybe_store(flag: Tensor, cache: Tensor, row: Tensor) -> Tensor:
    def store(row: Tensor) -> Tensor:
        cache[1].copy_(row)
        return row * 2

    return branch(flag, store, lambda row: row + 1, row)


def flagged() -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(True), counting(3, 4), counting(4, start=30)


def of_a_branch(**options: Any) -> CompiledFunction:
    """`maybe_store`, compiled."""
    return compile_function(maybe_store, flagged(), options)


def the_call(program: Program) -> Node:
    """The one call of a program that runs graphs of its own."""
    found: list[Node] = [n for n in program.graph.nodes if subgraph_call(n) is not None]
    assert len(found) == 1
    return found[0]


def test_what_a_branch_writes_is_a_result_of_each_branch() -> None:
    functional = of_a_branch().compiled.functional
    known = functional_call(functional, the_call(functional))
    assert known is not None
    assert [b.name for b in known.bases] == ["cache"]
    assert known.count == 1
    for inner in functional.subgraphs.values():
        assert [m.result for m in inner.signature.mutations] == [1]
        assert check_form(inner).ok


def test_graphs_inside_are_pure_and_passes_see_them() -> None:
    seen: list[int] = []
    shuffle = shuffle_pass(1)
    fast = of_a_branch(passes=(shuffle, lambda graph: seen.append(len(graph.nodes))))
    assert_pure(fast.compiled.functional.graph)
    assert len(seen) == len(shuffle.sizes) == 3


def test_the_branch_that_is_taken_writes_the_callers_memory() -> None:
    lowered = of_a_branch().compiled.lowered
    assert lowered is not None
    assert called(lowered.graph).count(aten.clone.default) == 0
    assert aten.copy_.default in called(lowered.subgraphs["true_graph_0"].graph)
    assert aten.copy_.default not in called(lowered.subgraphs["false_graph_0"].graph)


def test_a_loop_writes_one_buffer_in_every_round() -> None:
    fast = compile_function(loop_body_writes_a_row, (counting(3), torch.zeros(4, 3)))
    lowered, report = fast.compiled.lowered, fast.compiled.report()
    assert lowered is not None
    body = called(lowered.subgraphs["while_loop_body_graph_0"].graph)
    assert aten.index_copy_.default in body
    assert not {aten.clone.default, aten.copy_.default, aten.index_copy.default} & set(body)
    assert report.bytes_cloned == 0
    assert [d.operator for d in report.decisions if d.operator.startswith("aten")] == ["aten.index_copy_.default"]


def _seen_before_it_is_written(x: Tensor) -> Tensor:
    apart = x[::2]
    seen = torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (apart,))
    ops.shift_reals(apart)
    return torch.mul(seen, 2)


def test_what_is_saved_for_a_graph_keeps_its_strides() -> None:
    """The graph was traced for them; the call is moved behind the write, or not, by chance."""
    saved = 0
    for seed in range(12):
        options = {"passes": (shuffle_pass(seed),), "prove": True}
        x, dice = counting(6, 2), random.Random(seed)
        fast = compile_function(_seen_before_it_is_written, (x,), options, dice=dice)
        assert not fast.compiled.fallback
        saved += any(d.outcome == "saved" for d in fast.compiled.decisions())
        assert torch.equal(fast(counting(6, 2)), _seen_before_it_is_written(counting(6, 2)))
    assert saved


# -- what a loop carries -------------------------------------------------------------------------------------


def _rows_one_by_one(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    def body(i: Tensor, filled: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        filled = filled.index_copy(0, i.view(1), x[:1] * (i + 1))
        return i + 1, filled, total + filled.sum(0)

    start = torch.tensor(0), torch.zeros(3, 4), torch.zeros(4)
    return loop(lambda i, filled, total: i < rounds, body, *start)


def _old_value_first(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    def body(i: Tensor, b: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        return i + 1, b.index_fill(0, i.view(1), 7.0), total + b.sum()

    return loop(lambda i, b, total: i < rounds, body, torch.tensor(0), x.clone(), torch.zeros(()))


def _condition_reads(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    return loop(lambda i, b: (b.sum() < 100) & (i < rounds), lambda i, b: (i + 1, b * 2), torch.tensor(0), x.clone())


def _written_afterwards(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    _, b = loop(lambda i, b: i < rounds, lambda i, b: (i + 1, (b.t() * 2).t()), torch.tensor(0), x.clone())
    row = b[0]
    row.add_(1)
    return b, row


def _beside_a_written_one(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    log = torch.zeros(3, 4)

    def body(i: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        log[0].add_(b[1])
        return i + 1, b * 2 + log.sum()

    _, b = loop(lambda i, b: i < rounds, body, torch.tensor(0), x.clone())
    return b, log


def _exchanged(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    return loop(lambda i, a, b: i < rounds, lambda i, a, b: (i + 1, b * 2, a + 1), torch.tensor(0), x.clone(), x + 1)


def _read_afterwards(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    start = x.clone()
    _, b = loop(lambda i, b: i < rounds, lambda i, b: (i + 1, b * 2), torch.tensor(0), start)
    return b, start + 1


def _given_twice(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    start = x.clone()
    return loop(lambda i, a, b: i < rounds, lambda i, a, b: (i + 1, a * 2, b + 1), torch.tensor(0), start, start)


def _nothing_else(x: Tensor, rounds: Tensor) -> tuple[Tensor, ...]:
    return loop(lambda b: b.sum() < rounds * 40, lambda b: (b * 2,), x.clone())


CARRIED = {
    _rows_one_by_one: 2,
    _old_value_first: 1,
    _condition_reads: 1,
    _written_afterwards: 1,
    _beside_a_written_one: 1,
    _exchanged: 0,
    _read_afterwards: 0,
    _given_twice: 0,
    _nothing_else: 0,
}


@pytest.mark.parametrize("program", CARRIED, ids=lambda p: p.__name__)
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_what_a_loop_carries_is_written_in_place_where_nobody_else_has_it(
    program: Callable[..., Any], rounds: int
) -> None:
    if program is _given_twice and not rounds:
        return  # the loop of Python then returns one tensor twice

    def given() -> tuple[Tensor, Tensor]:
        return counting(3, 4), torch.tensor(rounds)

    for seed in range(3):
        options = {"prove": True, "passes": (shuffle_pass(seed),) if seed else ()}
        dice = random.Random(seed) if seed == 2 else None
        fast = compile_function(program, given(), options, dice=dice)
        assert not fast.compiled.fallback
        compare(program, given, lambda fn, fast=fast: fast)  # type: ignore[misc]
        if dice is None:
            bases = functional_call(fast.compiled.functional, the_call(fast.compiled.functional))
            assert bases is not None
            assert len(bases.bases) - (program is _beside_a_written_one) == CARRIED[program]
            assert fast.compiled.report().bytes_cloned == 0


def test_a_pass_may_leave_results_that_nobody_needs() -> None:
    def forget_the_sum(graph: torch.fx.Graph) -> None:
        output = graph.output_node()
        with graph.inserting_before(output):
            zero = graph.call_function(aten.zeros_like.default, (output.args[0][0],))  # type: ignore[index]
        output.args = ((zero, *output.args[0][1:]),)  # type: ignore[index, misc]

    def step(flag: Tensor, x: Tensor) -> Tensor:
        return branch(flag, lambda x: x + 1, lambda x: x - 1, x)

    fast = compile_function(step, (torch.tensor(True), counting(3)), {"passes": (forget_the_sum,)})
    assert not fast.compiled.fallback
    assert torch.equal(fast(torch.tensor(True), counting(3)), torch.zeros(3))


@pytest.mark.parametrize("capture", ["dynamo", "reink"])
def test_a_pass_may_meet_a_constant_of_a_branch(capture: str) -> None:
    """Values of a graph that a pass left are worked out again, those of its constants beside all others."""

    def step(flag: Tensor, x: Tensor) -> Tensor:
        def first_doubled(x: Tensor) -> Tensor:
            return x.index_put((torch.tensor([0]),), 2 * x[0])

        return branch(flag, first_doubled, lambda x: x - 1, x)

    seen: list[int] = []
    passes = (lambda graph: seen.append(len(graph.nodes)),)
    args = (torch.tensor(True), counting(3))
    fast = compiled(step, passes=passes) if capture == "dynamo" else compile_function(step, args, {"passes": passes})
    assert torch.equal(fast(*args), torch.tensor([2.0, 1.25, 1.5]))
    assert len(seen) == 3


def _adds_into(x: Tensor, y: Tensor) -> Tensor:
    y.add_(x)
    return x * 2


def test_a_region_of_a_given_graph_that_writes_becomes_part_of_it() -> None:
    """Dynamo's graphs have none: PyTorch takes such a region apart when it traces."""
    graph, root = torch.fx.Graph(), torch.nn.Module()
    root.region = torch.fx.symbolic_trace(_adds_into)
    x, y = graph.placeholder("x"), graph.placeholder("y")
    results = []
    for _ in range(2):
        region = graph.get_attr("region")
        results.append(graph.call_function(torch.ops.higher_order.invoke_subgraph, (region, "region", x, y)))
    graph.output((*results, y))
    module = torch.fx.GraphModule(root, graph)
    with torch.no_grad():
        compiled = compile_program(capture_graph(module, [counting(3), counting(3, start=9)]), Options(codegen="eager"))
        assert [n.target for n in compiled.captured.graph.nodes].count(torch.ops.higher_order.invoke_subgraph) == 2
        assert called(compiled.runs.graph).count(aten.add_.Tensor) == 2
        given = counting(3), counting(3, start=9)
        first, second, same = compiled.runs.module(*given)
    assert not compiled.fallback
    assert torch.equal(first, counting(3) * 2)
    assert torch.equal(second, counting(3) * 2)
    assert same is given[1]
    assert torch.equal(same, counting(3, start=9) + 2 * counting(3))


def edited(change: Callable[[torch.fx.Graph, Node], None]) -> tuple[bool, str]:
    """What the check says of the lowered `maybe_store` after `change`."""
    compiled = of_a_branch().compiled
    assert compiled.plan is not None and compiled.lowered is not None
    mutant = copied(compiled.lowered)
    change(mutant.graph, the_call(mutant))
    verdict = check_ownership(compiled.functional, [s.node for s in compiled.plan.steps], mutant)
    return verdict.ok, " ".join(verdict.details)


def _parts(call: Node) -> tuple[Any, ...]:
    return call.args


def _exchange_graphs(graph: torch.fx.Graph, call: Node) -> None:
    flag, yes, no, operands = _parts(call)
    call.args = (flag, no, yes, operands)


def _write_a_copy(graph: torch.fx.Graph, call: Node) -> None:
    flag, yes, no, (cache, row) = _parts(call)
    with graph.inserting_before(call):
        other = graph.call_function(aten.clone.default, (cache,))
    other.meta.update(call.meta, reink_role="copy")
    call.args = (flag, yes, no, (other, row))


def _give_the_base_twice(graph: torch.fx.Graph, call: Node) -> None:
    flag, yes, no, (cache, _) = _parts(call)
    call.args = (flag, yes, no, (cache, cache))


def _leave_the_call_out(graph: torch.fx.Graph, call: Node) -> None:
    for user in list(call.users):
        user.replace_all_uses_with(_parts(call)[3][1])
        graph.erase_node(user)
    graph.erase_node(call)


def test_the_call_as_it_is_is_accepted() -> None:
    assert edited(lambda graph, call: None) == (True, "")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_exchange_graphs, "other graphs"),
        (_write_a_copy, "input cache does not end with its new value"),
        (_give_the_base_twice, "reads row in cache"),
    ],
)
def test_a_call_that_does_something_else_is_refused(change: Callable[..., None], told: str) -> None:
    accepted, why = edited(change)
    assert not accepted
    assert told in why


def test_a_call_that_is_left_out_is_refused() -> None:
    compiled = of_a_branch().compiled
    assert compiled.plan is not None and compiled.lowered is not None
    mutant = copied(compiled.lowered)
    _leave_the_call_out(mutant.graph, the_call(mutant))
    assert not check_ownership(compiled.functional, [s.node for s in compiled.plan.steps], mutant).ok
