"""Programs that change what a tensor is (sizes, strides, memory), and operators that may return their operand."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from corpus.registry import counting, program, tensors


@program("view_reshaped_in_place", tensors((16,)))
def view_reshaped_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    grid = x.view(2, 8)
    across = grid.t()
    grid.unsqueeze_(0).add_(1)
    grid.squeeze_(0).t_()
    grid[3].mul_(2)
    return grid, across


@program("own_tensor_reshaped_in_place", tensors((3, 4)))
def own_tensor_reshaped_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[1]
    y.transpose_(0, 1).unsqueeze_(-1)
    y[2].fill_(-1)
    row.add_(x[0])
    return y, row


@program("strides_changed_in_place", tensors((16,)))
def strides_changed_in_place(x: Tensor) -> Tensor:
    part = x[2:8]
    part.as_strided_((3, 2), (2, 1))
    part[1].neg_()
    return part


@program("part_of_a_split_squeezed", tensors((4, 1, 3)))
def part_of_a_split_squeezed(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.split(2)
    first.squeeze_(1)
    first[1].zero_()
    best, where = torch.topk(second, 2)
    best.squeeze_()
    return first, best + where.squeeze(1)


@program("own_tensor_made_smaller", tensors((6,)), fullgraph=False, zero_extra=False)
def own_tensor_made_smaller(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    tail = y[2:]
    y.resize_(2, 2).add_(10)
    tail.mul_(3)
    return y, tail


@program("same_size_asked_again", tensors((2, 3)), fullgraph=False, zero_extra=False)
def same_size_asked_again(x: Tensor) -> Tensor:
    x.resize_(2, 3)
    x.view(6).resize_as_(x.new_empty(6)).add_(1)
    return x * 2


@program("empty_result_grows", tensors((5,)), fullgraph=False, zero_extra=False)
def empty_result_grows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, order = x.new_empty(0), x.new_empty(0, dtype=torch.int64)
    torch.sort(x, descending=True, out=(values, order))
    order.add_(1)
    total = x.new_empty(0)
    torch.add(x, 1, out=total)
    total[0].zero_()
    return values, order, total


@program("one_result_into_a_slice_one_into_an_empty_tensor", tensors((7,), (5,)), fullgraph=False, zero_extra=False)
def one_result_into_a_slice_one_into_an_empty_tensor(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    order = x.new_empty(0, dtype=torch.int64)
    returned, _ = torch.sort(y.neg(), out=(x[1:6], order))
    return returned, order


@program("dropout_that_keeps_everything", tensors((6,)))
def dropout_that_keeps_everything(x: Tensor) -> tuple[Tensor, Tensor]:
    same = functional.dropout(x, 0.5, training=False)
    same.add_(1)
    again = functional.dropout(x, 0.0)
    again[2:].mul_(2)
    return same, x * 2


class Evaluated(torch.nn.Module):
    """A dropout layer that is off."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.4)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.dropout(x[1:])
        return result.add_(1)


program("dropout_layer_that_is_off", tensors((4, 2)))(Evaluated)


@program("scatter_into_all_of_it", tensors((4, 4), (4, 4)))
def scatter_into_all_of_it(x: Tensor, y: Tensor) -> Tensor:
    z = torch.slice_scatter(x, y)
    return z.add_(1)


@program("scatter_by_strides_from_the_start", lambda: (counting(10)[1:], counting(2, start=90)), zero_extra=False)
def scatter_by_strides_from_the_start(x: Tensor, y: Tensor) -> Tensor:
    z = torch.as_strided_scatter(x, y, (2,), (3,), 2)
    x.add_(1)
    return z.mul_(2)
