"""Where writes go: memory that is read for the last time, and writes that wait for readers of the old value."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from corpus.registry import counting
from support.judge import compare
from support.library import called, piped
from support.operators import ops
from test_passes import drop_clones
from torch import Tensor

from reink.api import compile_function
from reink.errors import ReinkError
from reink.options import Options

aten = torch.ops.aten


def lowered(fn: Any, *args: Any, passes: Any = ()) -> tuple[list[Any], int]:
    """The operators of the lowered program, and the bytes that its report says are cloned; it behaves like eager."""
    fast: Any = piped(fn, args, passes=passes)
    compare(fn, lambda: tuple(a.clone() for a in args), lambda _: fast)
    compiled = fast.compiled
    assert not compiled.fallback
    return called(compiled.runs.graph), compiled.report().bytes_cloned


# -- memory that is read for the last time -----------------------------------------------------------------


def _chain_of_operators(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.relu(x @ w + 1)
    return torch.sigmoid(y.view(-1) * 2).sum(), y


def test_an_operand_that_dies_gives_its_memory() -> None:
    operators, _ = lowered(_chain_of_operators, counting(3, 4), counting(4, 4))
    assert operators == [
        aten.mm.default,
        aten.add_.Tensor,
        aten.relu_.default,
        aten.view.default,
        aten.mul.Tensor,
        aten.sigmoid_.default,
        aten.sum.default,
    ]


def _keeps(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return y, y * 2


def _part(x: Tensor) -> Tensor:
    return (x + 1)[1:].mul(2)


def _cast(x: Tensor) -> Tensor:
    return (x + 1).to(torch.int64).mul(1.5)


def _transposed(x: Tensor) -> Tensor:
    return (x + 1) * x.t().contiguous().t()


def _reads_itself(x: Tensor) -> Tensor:
    y = x + 1
    return y + y.t()


def _given(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize("fn", [_keeps, _part, _cast, _reads_itself, _given], ids=lambda fn: fn.__name__.strip("_"))
def test_memory_stays_that_is_not_the_programs_own_or_of_use(fn: Any) -> None:
    operators, _ = lowered(fn, counting(4, 4))
    assert not [op for op in operators if op.__name__.split(".")[0].endswith("_")]


def _late_reader_of_a_dying_value(x: Tensor) -> Tensor:
    y = x + 1
    waves = y.sin()
    y.mul_(2)
    return waves + y


def test_a_reader_that_moves_above_a_write_leaves_it_its_operand() -> None:
    def move_last(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            node.meta.pop("reink_order", None)
        sine = next(n for n in graph.nodes if n.target is aten.sin.default)
        next(n for n in graph.nodes if n.op == "output").args[0][0].prepend(sine)

    operators, cloned = lowered(_late_reader_of_a_dying_value, counting(8), passes=(move_last,))
    assert cloned == 0
    assert operators.index(aten.sin.default) < operators.index(aten.mul_.Tensor)


# -- writes that wait --------------------------------------------------------------------------------------


def _an_operator_reads_the_old_value(x: Tensor, row: Tensor, sink: Tensor) -> Tensor:
    old = x.clone()
    x[0].copy_(row)
    ops.absorb(sink, old)
    return sink.sum() + x.sum()


def _it_reads_the_old_value_and_the_row(x: Tensor, row: Tensor, sink: Tensor) -> Tensor:
    old = x.clone()
    new = row * 2
    x[0].copy_(new)
    ops.absorb(sink[0], new)
    ops.absorb(sink, old)
    return sink.sum() + x.sum()


def _another_write_follows(x: Tensor, row: Tensor, sink: Tensor) -> Tensor:
    old = x.clone()
    x[0].copy_(row)
    x[1].copy_(row * 3)
    ops.absorb(sink, old)
    x[2].copy_(row * 5)
    return sink.sum() + x.sum()


@pytest.mark.parametrize(
    "fn",
    [_an_operator_reads_the_old_value, _it_reads_the_old_value_and_the_row, _another_write_follows],
    ids=lambda fn: fn.__name__.strip("_"),
)
def test_a_write_waits_for_a_reader_that_cannot_move(fn: Any) -> None:
    _, cloned = lowered(fn, counting(40, 4), counting(4, start=900), counting(40, 4, start=300), passes=(drop_clones,))
    assert cloned == 0


def _the_operator_reads_old_and_new(x: Tensor, row: Tensor, sink: Tensor) -> Tensor:
    old = x[1:3].clone()
    x[0:2].copy_(row.expand(2, 4))
    ops.absorb(sink, old + x[0:2])
    return sink.sum() + x.sum()


def _a_large_reader(x: Tensor) -> Tensor:
    old = x.clone()
    x.mul_(2)
    return torch.cat([old, old]) + torch.cat([x, x])


@pytest.mark.parametrize(("most", "cloned"), [(None, 0), (2 * 64, 0), (2 * 64 - 1, 64), (0, 64)])
def test_readers_move_only_as_far_as_memory_allows(most: int | None, cloned: int) -> None:
    """The reader that would move up makes 128 bytes; else what it reads is saved, which is 64."""
    options = {"max_extra_bytes": most, "passes": (drop_clones,), "prove": True}
    fast: Any = compile_function(_a_large_reader, (counting(4, 4),), options)
    compare(_a_large_reader, lambda: (counting(4, 4),), lambda _: fast)
    assert not fast.compiled.fallback
    assert fast.compiled.report().bytes_cloned == cloned


@pytest.mark.parametrize(("most", "cloned"), [(16, 0), (15, 64)])
def test_a_write_waits_only_if_its_value_may_be_kept(most: int, cloned: int) -> None:
    args = (counting(4, 4), counting(4), torch.zeros(4, 4))
    options = {"max_extra_bytes": most, "passes": (drop_clones,)}
    compiled = compile_function(_an_operator_reads_the_old_value, args, options).compiled
    assert not compiled.fallback
    assert compiled.report().bytes_cloned == cloned


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "4"])
def test_a_number_of_bytes_is_one(wrong: Any) -> None:
    with pytest.raises(ReinkError, match="max_extra_bytes cannot be"):
        Options.of({"max_extra_bytes": wrong})


def test_a_write_that_is_needed_does_not_wait() -> None:
    args = counting(40, 4), counting(4, start=900), counting(2, 4, start=300)
    _, cloned = lowered(_the_operator_reads_old_and_new, *args, passes=(drop_clones,))
    assert cloned == 4 * 4 * 2


def _expanded(x: Tensor) -> Tensor:
    y = x.expand(3, 4).clone()
    y[1].add_(1)
    return y


def test_a_scatter_that_makes_a_new_tensor_is_in_the_report() -> None:
    operators, cloned = lowered(_expanded, counting(1, 4), passes=(drop_clones,))
    assert aten.select_scatter.default in operators
    assert cloned == 3 * 4 * 4


# -- calls taken apart -------------------------------------------------------------------------------------


def _old_base_and_new_row(x: Tensor, sink: Tensor) -> Tensor:
    old = x.clone()
    ops.bump(x[1])
    ops.absorb(sink, torch.cat([old.view(-1), x[1]]))
    return sink.sum()


def _old_base_and_new_rows(x: Tensor, sink: Tensor) -> Tensor:
    old = x.clone()
    ops.absorb(x[1], x[3:].sum(0))
    ops.absorb(x[2], x[4:].sum(0))
    ops.absorb(sink, torch.cat([old.view(-1), x[1]]) + x[2].sum())
    return sink.sum() + x.sum()


@pytest.mark.parametrize("fn", [_old_base_and_new_row, _old_base_and_new_rows], ids=lambda fn: fn.__name__.strip("_"))
def test_little_is_copied_where_much_is_read_late(fn: Any) -> None:
    """One row is written out of the way, and copied back once the old base has been read; others wait."""
    _, cloned = lowered(fn, counting(40, 4), counting(164, start=900), passes=(drop_clones,))
    assert cloned == 2 * 4 * 4


def _views_that_overlap(x: Tensor, sink: Tensor) -> Tensor:
    old = x.clone()
    ops.absorb(x[1], x[:3].sum(0) + x[1])
    ops.absorb(x[:2], x[:1] + 1)
    ops.absorb(sink, old.view(-1) + x[1].sum())
    return sink.sum() + x.sum()


def test_the_second_plan_holds_only_if_it_copies_less() -> None:
    def much(x: Tensor, sink: Tensor) -> Tensor:
        old = x[2].clone()
        ops.absorb(x[1:39], x[1:39] * 2)
        ops.absorb(sink, old + x[2])
        return sink.sum()

    operators, cloned = lowered(much, counting(40, 4), counting(4, start=900), passes=(drop_clones,))
    assert cloned == 4 * 4
    assert operators.count(ops.absorb.default) == 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fn", [_old_base_and_new_rows, _views_that_overlap], ids=lambda fn: fn.__name__.strip("_"))
def test_calls_taken_apart_by_chance_compute_the_same(fn: Any, seed: int) -> None:
    args = counting(40, 4), counting(160 if fn is _views_that_overlap else 164, start=900)
    fast = compile_function(fn, args, {"passes": (drop_clones,)}, dice=random.Random(seed))
    compare(fn, lambda: tuple(a.clone() for a in args), lambda _: fast)
    assert not fast.compiled.fallback


def _bytes_and_numbers(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    # found by a program made by chance: the offset of an input was counted twice
    ops.bump(a)
    ops.bump(b)
    return a * 3, torch.relu_(a)


@pytest.mark.parametrize("seed", range(6))
def test_views_of_a_base_that_lies_inside_a_storage(seed: int) -> None:
    def make() -> tuple[Tensor, Tensor]:
        x = torch.arange(1, 29).to(torch.int16)
        return x.view(torch.uint8).as_strided((3,), (1,), 4), x.as_strided((2, 2, 2), (4, 2, 1), 2)

    def no_change(graph: torch.fx.Graph) -> None:
        """The values of all nodes are worked out again after a pass."""

    fast = compile_function(_bytes_and_numbers, make(), {"passes": (no_change,)}, dice=random.Random(seed))
    compare(_bytes_and_numbers, make, lambda _: fast)
    assert not fast.compiled.fallback


def _rows_written_in_turn(cache: Tensor, rows: Tensor) -> Tensor:
    for layer, row in zip(cache.unbind(0), rows.unbind(0), strict=True):
        layer[0] = row
    return cache.sum()


def test_rows_are_taken_by_one_call() -> None:
    """One after the other they would cost more than eager's ``unbind``."""
    args = (counting(4, 3, 2), counting(4, 2))
    fast: Any = piped(_rows_written_in_turn, args)
    operators = called(fast.compiled.lowered.graph)
    assert operators.count(aten.unbind.int) == 2
    # the first row of each layer
    assert operators.count(aten.select.int) == 4
    compare(_rows_written_in_turn, lambda: args, lambda _: fast)
    assert fast.compiled.report().bytes_cloned == 0


@pytest.mark.parametrize("count", [3, 300])
def test_few_of_many_rows_are_taken_one_by_one(count: int) -> None:
    def fn(cache: Tensor) -> Tensor:
        for k in range(3):
            cache[k].add_(k)
        return cache.sum()

    operators = called(piped(fn, (counting(count, 2),)).compiled.lowered.graph)  # type: ignore[attr-defined]
    assert aten.unbind.int not in operators
