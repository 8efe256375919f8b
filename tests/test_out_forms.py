"""Operators that are given memory for their result, where it would be copied anyway. Eager PyTorch is the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from corpus.registry import counting
from support.judge import allocated_bytes, compare
from support.library import called, piped
from torch import Tensor

from reink.check import check_ownership

aten = torch.ops.aten
Programs = tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]


def _into_a_row(cache: Tensor, x: Tensor) -> Tensor:
    cache[1] = torch.tanh(x * 2)
    return cache.sum()


def _into_rows_of_new_memory(x: Tensor, w: Tensor) -> Tensor:
    rows = torch.empty(4, 16)
    for k in range(4):
        rows[k] = torch.mv(w, x[k])
    return rows


def _into_all_of_an_input(y: Tensor, x: Tensor) -> Tensor:
    y.copy_(x * 2)
    return x


def _read_besides(cache: Tensor, x: Tensor) -> Tensor:
    row = x.relu() + 1
    cache[1] = row
    return cache[0] * row


def _stacked(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([torch.mv(w, x[k]) for k in range(4)]) * 2


def _joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([torch.tanh(x), y, x * y])


def _joined_in_a_row(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([torch.sin(x), x * y], 1)


DIRECT: dict[str, tuple[Programs, int, int]] = {
    # the program, how many results are computed in their place, and how many bytes fewer than in eager are allocated
    "into a row": ((_into_a_row, lambda: (counting(3, 4), counting(4))), 1, 16),
    "into rows of new memory": ((_into_rows_of_new_memory, lambda: (counting(4, 16), counting(16, 16))), 4, 256),
    "into all of an input": ((_into_all_of_an_input, lambda: (counting(4), counting(4))), 1, 16),
    "stacked": ((_stacked, lambda: (counting(4, 16), counting(16, 16))), 4, 512),
    "joined": ((_joined, lambda: (counting(4, 4), counting(4, 4))), 2, 128),
    "joined in a row": ((_joined_in_a_row, lambda: (counting(1, 4), counting(1, 4))), 2, 32),
}


def _direct(graph: torch.fx.Graph) -> int:
    return sum("out" in n.kwargs for n in graph.nodes)


@pytest.mark.parametrize("name", DIRECT)
def test_a_result_is_computed_where_it_would_be_copied(name: str) -> None:
    (program, make), count, fewer = DIRECT[name]
    fast: Any = piped(program, make())
    compare(program, make, lambda _: fast)
    assert not fast.compiled.fallback
    assert _direct(fast.compiled.lowered.graph) == count
    assert aten.cat.default not in called(fast.compiled.lowered.graph)
    assert fast.compiled.report().bytes_cloned == 0
    eager, ours = allocated_bytes(program, make()), allocated_bytes(fast, make())
    assert eager[0] - ours[0] == fewer
    assert ours[1] <= eager[1]


def _old_row_is_read_late(cache: Tensor, x: Tensor) -> Tensor:
    new = torch.tanh(x)
    late = cache[1] * new
    cache[1] = new
    return late


def _returned(cache: Tensor, x: Tensor) -> Tensor:
    new = torch.tanh(x)
    cache[1] = new
    return new


def _reads_where_it_would_write(cache: Tensor) -> Tensor:
    cache[1:] = torch.tanh(cache[:2])
    return cache


def _of_other_strides(cache: Tensor, x: Tensor) -> Tensor:
    cache[:, 1] = torch.tanh(x)
    return cache.sum()


def _of_another_dtype(cache: Tensor, x: Tensor) -> Tensor:
    cache[1] = torch.tanh(x.double())
    return cache.sum()


def _product_at_an_odd_place(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x[0, :1], torch.mv(w, x[1])])


def _part_that_is_a_result(x: Tensor) -> tuple[Tensor, Tensor]:
    part = torch.tanh(x)
    return torch.cat([part, x]), part


def _one_part_twice(x: Tensor) -> Tensor:
    part = torch.tanh(x)
    return torch.cat([part, part])


def _later_version_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, part = torch.zeros(10, 4, 4), torch.tanh(x)
    rows[1] = part
    total = rows.sum()
    part.add_(1)
    return total, part


def _view_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    part = torch.tanh(x)
    return torch.cat([part, y]).sum(), part.view(-1)


def _pixels() -> Tensor:
    return counting(1, 3, 6, 4).contiguous(memory_format=torch.channels_last)


def _channels_last(x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.max_pool2d(torch.cat([x.relu(), y.relu()]), 2)


def _entropy(x: Tensor) -> Tensor:
    """The form with ``out`` makes it larger for what it computes on the way."""
    return torch.stack([torch.nn.functional.binary_cross_entropy(x, x), x.sum()])


def _promoted(x: Tensor) -> Tensor:
    return torch.cat([torch.tanh(x), x.to(torch.int32) + 1])


APART: tuple[Programs, ...] = (
    (_old_row_is_read_late, lambda: (counting(3, 4), counting(4))),
    (_returned, lambda: (counting(3, 4), counting(4))),
    (_reads_where_it_would_write, lambda: (counting(3, 4),)),
    (_of_other_strides, lambda: (counting(4, 4), counting(4))),
    (_of_another_dtype, lambda: (counting(3, 4), counting(4))),
    (_product_at_an_odd_place, lambda: (counting(4, 16), counting(16, 16))),
    (_part_that_is_a_result, lambda: (counting(4),)),
    (_one_part_twice, lambda: (counting(4),)),
    (_read_besides, lambda: (counting(3, 4), counting(4))),
    (_later_version_returned, lambda: (counting(4, 4),)),
    (_view_returned, lambda: (counting(4, 4), counting(4, 4))),
    (_channels_last, lambda: (_pixels(), _pixels())),
    (_entropy, lambda: (torch.full((5,), 0.25),)),
    (_promoted, lambda: (counting(4),)),
)


@pytest.mark.parametrize(("program", "make"), APART, ids=lambda value: getattr(value, "__name__", ""))
def test_a_result_that_has_to_be_apart_is(program: Callable[..., Any], make: Callable[[], tuple[Tensor, ...]]) -> None:
    fast: Any = piped(program, make())
    compare(program, make, lambda _: fast)
    assert not fast.compiled.fallback
    assert _direct(fast.compiled.lowered.graph) == 0
    ours, eager = allocated_bytes(fast, make()), allocated_bytes(program, make())
    assert ours[1] <= eager[1]


def _of_another_operator(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    node.target = aten.sin.out


def _into_what_it_reads(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    node.kwargs = {"out": node.args[0]}


def _into_another_row(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    row: Any = node.kwargs["out"]
    row.args = (row.args[0], 0, 2)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_of_another_operator, "is not the out= form of tanh"),
        (_into_what_it_reads, "while it reads"),
        (_into_another_row, "tanh is not in the window"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_another_place_or_operator_is_refused(change: Callable[..., None], told: str) -> None:
    fast: Any = piped(_into_a_row, (counting(3, 4), counting(4)))
    compiled = fast.compiled
    order = [s.node for s in compiled.plan.steps]
    assert check_ownership(compiled.functional, order, compiled.lowered).ok
    (node,) = [n for n in compiled.lowered.graph.nodes if "out" in n.kwargs]
    change(compiled.lowered.graph, node)
    verdict = check_ownership(compiled.functional, order, compiled.lowered)
    assert not verdict.ok
    assert told in " ".join(verdict.details)
