"""Programs that the fuzzer found, made small: each as its number decides, by chance or not, shuffled or not.

What was the matter stands with each. Unless said otherwise a check refused the plan, so that the answer was right and
nothing was put back in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import reink.fuzz.operators  # noqa: F401  (it registers the operators)
from reink.fuzz.program import FuzzProgram, loop
from reink.fuzz.run import Settings, run_program

ops: Any = torch.ops.reink_fuzz


def counting(count: int, dtype: torch.dtype = torch.float32, first: int = 1) -> Tensor:
    return torch.arange(first, first + count).to(dtype)


@dataclass(frozen=True)
class Found:
    """A program in the place of a generated one."""

    number: int
    program: Callable[..., Any]
    make_inputs: Callable[[], tuple[Tensor, ...]]
    seed: int = 1
    grad_mode: str = "no_grad"
    dynamic: bool = False
    inputs: tuple[Any, ...] = ()

    def functions(self) -> tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]:
        return self.program, self.make_inputs

    def __str__(self) -> str:
        return self.program.__name__


def size_that_data_decide(x: Tensor) -> Tensor:
    """The check compared strides that only the data decide, and so did not follow the program."""
    rows = x.nonzero()
    return torch.where(rows == rows, rows, rows.remainder(997))


def size_that_an_index_asks_for(x: Tensor) -> Tensor:
    """The check took such a size for 2, with which this cannot run."""
    return x[x > 2].select(-1, 2)


def size_that_a_write_asks_for(x: Tensor) -> tuple[Tensor, Tensor]:
    """As above: here it is 12."""
    rows = x.nonzero()
    return torch.slice_scatter(rows, rows.remainder(997).sum().expand((11, 2)), 0, 1), rows


def views_of_a_closed_copy(x: Tensor) -> Tensor:
    """A copy of a tensor with gaps has none, and a view of it other strides than in the captured program."""
    total = x.remainder(997).sum()
    scattered = torch.select_scatter(x, total.expand(2), 0, 2)
    flat = scattered.flatten()
    row = flat.unflatten(0, (1, -1))
    other = torch.select_scatter(row, row.remainder(997).sum().expand(8), 0, 0)
    deep = other.unsqueeze(0)
    ops.lower_and_scale(x, other)
    ops.bump_present([other])
    ops.absorb(flat, deep.movedim(2, 1).remainder(997).sum())
    return flat


def strides_that_are_symbols(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A result that was saved and copied got the strides of the copy, where sizes are symbolic."""
    scattered = torch.slice_scatter(x, y.remainder(997).to(torch.int32).expand((2, 2)), 0, 1)
    x.mul_(2)
    return y, scattered, scattered, scattered


def copy_of_what_was_overwritten_in_part(x: Tensor, rows: Tensor, some: Tensor) -> Tensor:
    """The check took a copy of memory that was overwritten in part for one of which nothing is known."""
    ops.bump_present([some])
    left, right = rows.split([1, 2], 1)
    ops.bump(left)
    ops.bump_maybe(left[3], right.select(-1, 0))
    return x


def strides_of_dims_of_one_element(x: Tensor, start: Tensor) -> Tensor:
    """The check took strides of dims of one element for a difference, and foresaw another layout."""
    later = start.view(-1).remainder_(5)
    return torch.where(x == x, x, later.remainder(997))


def strides_of_dims_of_one_element_of_a_view(x: Tensor) -> Tensor:
    """As above, through views."""
    return x.diagonal(-1, 3, 0).clone().swapaxes(0, 2) + 2 + 1


def strides_of_dims_of_one_element_of_a_copy(x: Tensor) -> tuple[Tensor, ...]:
    """The layout of a result told from a copy of an expanded tensor, whose dim of one element had lost its stride."""
    part = x.tensor_split(2, 2)[1]
    turned = x.permute((1, 2, 0))
    chosen = torch.where(turned == turned, turned, x.remainder(997).sum().to(torch.int32))
    row = chosen.diagonal(-1, 1, 2)
    part.tril_()
    row[row > 3] = 1
    ops.first_row(part.reshape(-1, 2))
    return part.unsqueeze(0), turned, chosen, row.unfold(1, 1, 2)


def empty_scatter(x: Tensor, y: Tensor) -> Tensor:
    """Of two places where an empty value is, the check knew one."""
    part = y.permute((2, 0, 1, 3)).select(3, 0)
    same = part.copy_(part)
    x[-1:].mul_(2)
    return torch.slice_scatter(part.narrow(-3, 0, 0), same.expand((0, 3, 3)), 0, 1)


def negative_bit_of_an_argument(x: Tensor, y: Tensor) -> Tensor:
    """A view that turns the sign lost its bit as an argument of a call: a wrong number, had no check refused it."""
    y.conj().imag[..., 1:] = y.real.sum()
    return x


def branch_before_random_numbers(x: Tensor) -> Tensor:
    """The proof took the order of capture for the one that counts, where the pure graph had another."""
    twice = x.diagonal(1, 0, 1)[torch.tensor([0, 0])]
    whole = twice.clone(memory_format=torch.contiguous_format)
    torch.cond(twice.sum() > 3, lambda t: t + 1, lambda t: t - 1, (twice,))
    torch.randint_like(whole, 9)
    return x


def loop_before_random_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """As above, with a loop."""
    start = x.unflatten(-2, (2, -1))
    ops.ramp([y])

    def body(i: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, t - 1

    _, end = loop(lambda i, t: i < 3, body, torch.tensor(0), start.clone())
    torch.randint_like(y, 9)
    return end.expand([-1, 2, 0]), end.unsqueeze(2)


def expanded_result(x: Tensor) -> tuple[Tensor, Tensor]:
    """An expanded result whose memory is written later was saved with every element as often as it shows."""
    fresh = torch.empty_like(x)
    fresh.copy_(x.remainder(997))
    total = torch.randint_like(fresh, 9).remainder(997).sum()
    return torch.slice_scatter(fresh, total.expand((2, 1, 2)), 0, 1), fresh.expand([2, 3, 2, 2])


def random_numbers_that_nobody_reads(x: Tensor) -> Tensor:
    """A call that could not be taken apart was erased, although random numbers are an effect."""
    turned = x.permute((2, 1, 3, 0))
    ones = torch.full_like(turned, 2) - 1
    flat = ones.reshape(-1, 16)
    ops.store_rows(ones[0:], turned.remainder(997).sum().expand((3, 1, 2, 2)), 1)
    ones.bernoulli_()
    torch.clamp(flat.remainder(997).sum().expand((8,)), max=5, out=x.diagonal(0, 1, 3).view(-1))
    return x


def size_that_can_only_be_one(x: Tensor) -> Tensor:
    """As `size_that_an_index_asks_for`: nothing but 0 or 1 elements become none."""
    return x[x > 2].sort(stable=True, dim=0)[0].broadcast_to((0,))


def read_where_it_is_written(x: Tensor, start: Tensor) -> Tensor:
    """The proof took other strides for another way in which two operands share memory that are one tensor."""
    view = x.unfold(-4, 2, 3)
    scattered = torch.slice_scatter(view, view.remainder(997).expand((0, 2, 2, 4, 2)), 0, 1)
    halves = scattered.unflatten(-2, (-1, 2))
    ops.absorb(halves, halves)
    start.t().neg_()
    return scattered


def flags_in_numbers(x: Tensor) -> Tensor:
    """What a comparison in place casts was taken for cast or not by which of two equal calls came first."""
    scattered = torch.slice_scatter(x, x.expand((0, 1)), 0, 1)
    scattered.eq_(scattered)
    chosen = torch.where(x == x, x, x)
    sorted_, _ = scattered.sort(stable=True, dim=0)
    torch._foreach_neg_([chosen, sorted_])
    ops.spill(chosen.view(-1, 1), x)
    return x


def broadcast_of_symbols(x: Tensor) -> Tensor:
    """Refused as `pass-failed`: a kernel for symbolic sizes was not found when values were worked out again."""
    row = x[-1:].mul_(2)
    row.addcmul_(x.sum().to(x.dtype).sign(), row.remainder(997), value=2)
    return x.addcmul_(x.sign(), x[:, :1].remainder(997), value=2)


def window_of_a_shared_storage(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """An error: values worked out again, by a kernel that knows no view of a larger storage."""
    pairs = z.unfold(0, 2, 3)
    pairs.add_(y.remainder(997).sum(), alpha=2)
    ops.first_row(pairs[..., ::1])
    return x


def bytes_of_an_empty_order(x: Tensor) -> Tensor:
    """An error: memory of no elements was used again, which lies otherwise than the fake kernel of `sort` foresees."""
    order = x.sort(stable=True, dim=0)[1]
    halves: Tensor = (order + 0).view(torch.int32).unflatten(-1, (2, -1))
    return halves


def bytes_of_nothing(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The check asked for strides of an empty tensor, which have no meaning."""
    total = x + x.remainder(997)
    other = total - x.remainder(997)
    flat = total.view(torch.uint8).reshape(1, 0).view(1, 0)
    return flat, other, flat


def bytes_of_no_row(x: Tensor) -> Tensor:
    """As above, of rows as narrow as none: strides of new memory do not divide by the wider dtype either."""
    order = x.sort(stable=True, dim=0)[1]
    return order.view(torch.int16).narrow(0, 1, 0).view(torch.int64).remainder(97)


def bytes_of_a_later_version(x: Tensor) -> dict[str, Tensor]:
    """A view by bytes insists on strides, also of dims of one element, that a later version does not have: an error."""
    turned = x.T
    ops.bump_and_parts(turned.select(-1, -1))
    part = x.view(torch.uint8)[-3:, 1:1:1]
    turned.permute((0, 1)).sign_()
    return {"named": part}


def _three_of_one_storage() -> tuple[Tensor, ...]:
    memory = counting(72, torch.uint8)
    return memory[:24].view(4, 3, 2), memory[:12].view(4, 3), memory[:6].view(2, 3)


def _expanded_and_its_start() -> tuple[Tensor, ...]:
    memory = counting(10, torch.float64, 101)
    return memory.as_strided((2, 1, 2, 3), (3, 1, 0, 1)), memory[:3]


def _overlapping_and_its_start() -> tuple[Tensor, ...]:
    memory = counting(57, torch.int64, 101)
    return memory.as_strided((3, 2, 2, 4), (1, 3, 6, 12)), memory[:6].view(3, 2)


def _complex_and_its_start() -> tuple[Tensor, ...]:
    memory = counting(39, torch.complex64, 101)
    return memory[:6].view(3, 2), memory.as_strided((1, 2), (6, 0))


def _three_that_overlap() -> tuple[Tensor, ...]:
    memory = counting(46, torch.float32, 101)
    return memory[:1], memory.as_strided((4, 2, 3, 2), (0, 19, 6, 3)), memory.as_strided((2,), (3,))


FOUND = (
    Found(2574, window_of_a_shared_storage, _three_that_overlap),
    Found(588, size_that_data_decide, lambda: (counting(6).view(2, 3),)),
    Found(9617, size_that_an_index_asks_for, lambda: (counting(3, torch.int64, 101).view(1, 3),)),
    Found(9564, size_that_a_write_asks_for, lambda: (counting(12, torch.int16).view(4, 3),)),
    Found(534, views_of_a_closed_copy, lambda: (counting(22).as_strided((4, 2), (4, 2)),)),
    Found(
        23691,
        strides_that_are_symbols,
        lambda: (counting(16, torch.int32, 101).as_strided((3, 2), (3, 1)), torch.tensor(1, dtype=torch.int16)),
        dynamic=True,
    ),
    Found(573, copy_of_what_was_overwritten_in_part, _three_of_one_storage),
    Found(7454, strides_of_dims_of_one_element, _expanded_and_its_start),
    Found(
        2017,
        strides_of_dims_of_one_element_of_a_view,
        lambda: ((counting(56) % 3 == 0).as_strided((2, 1, 4, 4), (4, 4, 0, 8)),),
    ),
    Found(
        33285,
        strides_of_dims_of_one_element_of_a_copy,
        lambda: (counting(16, torch.int32, 201).as_strided((1, 2, 2), (8, 4, 0), 4),),
    ),
    Found(2238, empty_scatter, lambda: (counting(4, torch.int32), counting(9, torch.complex64).view(3, 3, 1, 1))),
    Found(4725, negative_bit_of_an_argument, _complex_and_its_start),
    Found(5379, branch_before_random_numbers, lambda: (counting(6).view(3, 2),)),
    Found(70227, loop_before_random_numbers, lambda: (counting(0, torch.int32).view(2, 0), counting(18).view(3, 3, 2))),
    Found(7292, expanded_result, lambda: (counting(6).view(3, 1, 2),)),
    Found(15431, size_that_can_only_be_one, lambda: (counting(1, torch.int16).as_strided((3,), (0,)),)),
    Found(18837, read_where_it_is_written, _overlapping_and_its_start),
    Found(23956, flags_in_numbers, lambda: (counting(1, torch.uint8).view(1, 1),)),
    Found(38761, broadcast_of_symbols, lambda: (counting(6, torch.int16).view(2, 3),), dynamic=True),
    Found(115990, bytes_of_an_empty_order, lambda: (counting(8).as_strided((0,), (3,)),)),
    Found(19262, bytes_of_nothing, lambda: (counting(0, torch.int32).view(1, 2, 4, 0),)),
    Found(49685, bytes_of_no_row, lambda: (torch.empty(2, 0, dtype=torch.int16),)),
    Found(12306, bytes_of_a_later_version, lambda: (counting(2, torch.int16).view(2, 1),)),
    Found(7446, random_numbers_that_nobody_reads, lambda: (counting(16).view(2, 1, 4, 2),)),
)


@pytest.mark.parametrize("found", FOUND, ids=str)
@pytest.mark.parametrize("more", range(6))
def test_what_was_found_is_right_and_put_back_in_place(found: Found, more: int) -> None:
    """As it was found, and with other decisions: the number says which."""
    program: Any = replace(found, number=found.number + more)
    outcome = run_program(cast(FuzzProgram, program), Settings())
    assert (outcome.kind, outcome.cause) == ("ok", ""), outcome.detail
