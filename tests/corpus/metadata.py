"""Programs that change what a tensor is (sizes, strides, memory), and operators that may return their operand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from corpus.registry import counting, inside, program, tensors

# Dynamo leaves a statement that makes an input a view of itself, and `resize_`, to eager.
SPLIT: dict[str, Any] = {"fullgraph": False, "zero_extra": False}


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


@program("own_tensor_made_smaller", tensors((6,)), **SPLIT)
def own_tensor_made_smaller(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    tail = y[2:]
    y.resize_(2, 2).add_(10)
    tail.mul_(3)
    return y, tail


@program("same_size_asked_again", tensors((2, 3)), **SPLIT)
def same_size_asked_again(x: Tensor) -> Tensor:
    x.resize_(2, 3)
    x.view(6).resize_as_(x.new_empty(6)).add_(1)
    return x * 2


@program("empty_result_grows", tensors((5,)), **SPLIT)
def empty_result_grows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, order = x.new_empty(0), x.new_empty(0, dtype=torch.int64)
    torch.sort(x, descending=True, out=(values, order))
    order.add_(1)
    total = x.new_empty(0)
    torch.add(x, 1, out=total)
    total[0].zero_()
    return values, order, total


@program("one_result_into_a_slice_one_into_an_empty_tensor", tensors((7,), (5,)), **SPLIT)
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


# --- what the caller holds ------------------------------------------------------------------------------


@program("input_gets_a_dim", tensors((3, 4)), **SPLIT)
def input_gets_a_dim(x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    x.add_(1)
    return x * 2


@program("input_turned_after_a_view_of_it", tensors((3, 4)), **SPLIT)
def input_turned_after_a_view_of_it(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    row = x[1]
    x.t_()
    x.add_(1)
    row.mul_(2)
    return row, x[0], x


@program("input_turned_and_not_written", lambda: (inside(2, 3),), **SPLIT)
def input_turned_and_not_written(x: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    return x, x + 1


@program("input_squeezed_in_every_way", tensors((1, 3, 1, 2, 1), (1, 1), (1, 2, 1)), **SPLIT)
def input_squeezed_in_every_way(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    x.squeeze_(0).squeeze_((1, 3))
    y.squeeze_()
    z.squeeze_(1)
    x.add_(y)
    return x + z.sum()


@program("dims_of_an_input_swapped", lambda: (counting(24).view(3, 8)[:, ::2].unsqueeze(0),), **SPLIT)
def dims_of_an_input_swapped(x: Tensor) -> tuple[Tensor, Tensor]:
    x.swapaxes_(0, 1)
    x.swapdims_(-1, -2)
    y = x.transpose_(0, 2).neg_()
    return y, x[0]


@program("chain_of_changes_returned", tensors((4, 1, 3)), **SPLIT)
def chain_of_changes_returned(x: Tensor) -> tuple[Tensor, ...]:
    first = x.squeeze_(1)
    second = first.t_()
    second[0].zero_()
    return first, second, x, x.unsqueeze_(-1)


@program("strides_of_an_input_changed", tensors((12,), (4, 4)), **SPLIT)
def strides_of_an_input_changed(x: Tensor, y: Tensor) -> Tensor:
    x.as_strided_((2, 2), (1, 2))
    x.mul_(2)
    y.as_strided_((2, 3), (1, 4), 5)
    y[0].fill_(7)
    return x.sum() + y


@program("strides_of_an_input_changed_beyond_it", lambda: (inside(3),), **SPLIT)
def strides_of_an_input_changed_beyond_it(x: Tensor) -> Tensor:
    x.as_strided_((2, 2), (3, 1), 1)
    x.add_(1)
    return x * 2


@program("input_made_smaller", tensors((3, 4)), **SPLIT)
def input_made_smaller(x: Tensor) -> tuple[Tensor, Tensor]:
    row = x[2]
    x.resize_(2, 2).neg_()
    row.add_(1)
    return x + 1, row


@program("input_emptied", lambda: (inside(2, 2), counting(3, start=40)), **SPLIT)
def input_emptied(x: Tensor, y: Tensor) -> Tensor:
    flat = x.view(-1)
    x.resize_(0)
    return flat.add_(1).sum() + y


@program("input_made_larger_in_its_storage", lambda: (inside(2), counting(9)[::3]), **SPLIT)
def input_made_larger_in_its_storage(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.resize_(2, 2)
    x[1].mul_(2)
    y.resize_as_(x)
    return x, y + 1


def _twice() -> tuple[Tensor, Tensor]:
    x = counting(3, 4)
    return x, x


def _nothing_twice() -> tuple[Tensor, Tensor]:
    x = torch.empty(0, 3)
    return x, x


@program("one_object_given_twice", _twice, **SPLIT)
def one_object_given_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    total = y.sum(0)
    y[1].add_(1)
    return total, y


@program("one_object_turned_there_and_back", _twice, **SPLIT)
def one_object_turned_there_and_back(x: Tensor, y: Tensor) -> Tensor:
    x.t_()
    total = y.sum(0)
    (row,) = y.unsqueeze_(0).unbind()
    y.squeeze_(0).t_()
    return total + row[0]


def _twice_inside_another() -> tuple[Tensor, Tensor, Tensor]:
    storage = counting(30)
    x = storage.as_strided((4, 2), (3, 1), 2)
    return storage, x, x


@program("one_object_set_to_a_view_of_itself", _twice_inside_another, **SPLIT)
def one_object_set_to_a_view_of_itself(storage: Tensor, x: Tensor, y: Tensor) -> Tensor:
    # `x` and `y` are one object, and have to be one while the program is traced
    part = x.as_strided((2, 2), (9, 1)).t()
    x.set_(part)  # type: ignore[call-overload]
    y.copy_(storage[:4].view(2, 2))
    return y * 2


@program("empty_object_given_twice", _nothing_twice, **SPLIT)
def empty_object_given_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.unsqueeze_(0)
    return y + 1, y


def _one_layout() -> tuple[Tensor, Tensor]:
    x = counting(3, 4)
    return x, x.view_as(x)


@program("two_objects_of_one_layout", _one_layout, **SPLIT)
def two_objects_of_one_layout(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    y.add_(1)
    return y.sum(0), x


def _overlapping() -> tuple[Tensor, Tensor]:
    memory = counting(16)
    return memory[:12].view(3, 4), memory[4:].view(4, 3)


@program("one_of_two_that_overlap", _overlapping, **SPLIT)
def one_of_two_that_overlap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    x[0].add_(1)
    y.unsqueeze_(1)
    return x * 2, y[1]


def _bytes_as_numbers() -> tuple[Tensor, Tensor]:
    x = counting(3, 4)
    return x, x.view(torch.int32)


@program("bytes_of_an_input_turned", _bytes_as_numbers, **SPLIT)
def bytes_of_an_input_turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    y[0].zero_()
    return x + 1, y


@program("lazy_conjugate_turned", lambda: (counting(2, 3, dtype=torch.complex64).mul(1j).conj(),), **SPLIT)
def lazy_conjugate_turned(x: Tensor) -> tuple[Tensor, Tensor]:
    x.t_().unsqueeze_(0)
    x.mul_(1j)
    return x, x + 1


class Turning(torch.nn.Module):
    """Holds a parameter that it turns, and a buffer that it flattens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(counting(3, 4))
        self.register_buffer("seen", counting(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.t_()
        seen: Tensor = self.get_buffer("seen").squeeze_(0)
        seen.add_(1)
        return x @ self.weight + seen


program("parameter_and_buffer_changed", tensors((2, 4)), **SPLIT)(Turning)


# --- other memory ---------------------------------------------------------------------------------------


@program("own_name_for_an_input", tensors((3, 4)), zero_extra=False)
def own_name_for_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    row = y[0]
    y.set_(x)  # type: ignore[call-overload]
    y.add_(1)
    return y, row


@program("own_name_for_another", tensors((3, 4)), zero_extra=False)
def own_name_for_another(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y, z = x + 1, x * 3
    row = y[0]
    y.set_(z[1])  # type: ignore[call-overload]
    y.zero_()
    row.add_(5)
    return y, z, row


@program("data_of_an_own_tensor_assigned", tensors((3, 4)), **SPLIT)
def data_of_an_own_tensor_assigned(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x + 1, x[1:] * 2
    y.data = z
    y.add_(1)
    return y, z


@program("own_tensor_made_larger", tensors((2, 3)), **SPLIT)
def own_tensor_made_larger(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.resize_(3, 3)
    y[2].fill_(9)
    y[1].add_(1)
    return y, x


@program("own_tensor_with_gaps_made_larger", tensors((2, 3)), **SPLIT)
def own_tensor_with_gaps_made_larger(x: Tensor) -> Tensor:
    y = x.new_empty_strided((3, 2), (1, 3))
    y.copy_(x.t())
    y.resize_(8)
    y[6:].zero_()
    return y
