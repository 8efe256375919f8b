"""What everybody who functionalizes has to get right: inputs of one memory, what is returned, sizes known late."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corpus.registry import counting, inside, program, tensors

# --- inputs that share memory ---------------------------------------------------------------------------


def _tensor_and_its_transpose() -> tuple[Tensor, Tensor]:
    x = counting(3, 4)
    return x, x.t()


def _flat_and_grid() -> tuple[Tensor, Tensor]:
    x = counting(2, 6)
    return x.view(12), x


def _twice_and_a_part() -> tuple[Tensor, Tensor, Tensor]:
    x = counting(5, 2)
    return x, x[1:4], x


def _rows_and_columns() -> tuple[Tensor, ...]:
    x = counting(4, 4)
    return x[1], x[:, 2], x.diagonal()


def _one_element_of_it() -> tuple[Tensor, Tensor]:
    x = counting(6)
    return x, x[4]


def _narrow_and_wide() -> tuple[Tensor, Tensor]:
    x = counting(3, 4)
    return x[:, :2], x


def _expanded_beside_its_source() -> tuple[Tensor, Tensor]:
    x = counting(1, 3)
    return x, x.expand(4, 3)


def _list_of_neighbours() -> tuple[Any, ...]:
    x = counting(9)
    return [x[:3], x[3:6], x[6:]], x[2:7]


@program("input_beside_its_transpose", _tensor_and_its_transpose)
def input_beside_its_transpose(x: Tensor, turned: Tensor) -> Tensor:
    # a write through either name shows under the other, in other places
    turned[1].add_(100)
    x[2].neg_()
    return turned * x.t()


@program("input_beside_its_flat_view", _flat_and_grid)
def input_beside_its_flat_view(flat: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    # both are returned as the objects that came in
    flat[3:8].mul_(2)
    grid[1].add_(flat[:6])
    return grid, flat


@program("one_input_twice_and_a_part_of_it", _twice_and_a_part)
def one_input_twice_and_a_part_of_it(x: Tensor, part: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    # three names of which two are one object
    part.add_(x[:3].clone())
    same[0].zero_()
    x.mul_(2)
    return same, part - 1


@program("inputs_that_cross_in_one_element", _rows_and_columns)
def inputs_that_cross_in_one_element(row: Tensor, column: Tensor, diagonal: Tensor) -> Tensor:
    # lines that meet in single elements
    row.add_(100)
    column.mul_(2)
    diagonal.neg_()
    return row + column + diagonal


@program("input_that_is_one_element_of_another", _one_element_of_it)
def input_that_is_one_element_of_another(x: Tensor, element: Tensor) -> Tensor:
    # a tensor without dims inside of one with
    element.add_(x[0])
    x[3:].mul_(element.clone())
    return x + element


@program("columns_beside_the_whole", _narrow_and_wide)
def columns_beside_the_whole(left: Tensor, whole: Tensor) -> Tensor:
    # the narrow one has gaps that the wide one fills
    whole.add_(1)
    left.copy_(whole[:, 2:])
    return left.t() @ whole


@program("expanded_input_beside_its_source", _expanded_beside_its_source)
def expanded_input_beside_its_source(x: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
    # the expanded one is read only, and shows each write
    before = wide.sum(0)
    x.mul_(2)
    return before - wide.sum(0), wide


@program("list_of_neighbours_beside_what_spans_them", _list_of_neighbours)
def list_of_neighbours_beside_what_spans_them(parts: list[Tensor], span: Tensor) -> Tensor:
    # members of a list and a plain argument of one storage
    torch._foreach_mul_(parts, 2)
    span.add_(1)
    parts[1].sub_(parts[0])
    return torch.cat(parts)


@program(
    "aliased_in_one_call_and_not_in_the_next",
    _narrow_and_wide,
    calls=(tensors((3, 2), (3, 4)), _narrow_and_wide),
)
def aliased_in_one_call_and_not_in_the_next(left: Tensor, whole: Tensor) -> Tensor:
    # the same code for separate inputs, then again for shared ones
    whole.mul_(3)
    left.sub_(1)
    return whole.sum(1)


# --- what is returned -----------------------------------------------------------------------------------


@program("input_returned_as_it_came", tensors((3,), (3,)))
def input_returned_as_it_came(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # the object itself, before and after the write, and an input that nobody touches
    first = x
    x.add_(y)
    return first, x, y


@program("every_view_of_a_written_input", tensors((2, 3)))
def every_view_of_a_written_input(x: Tensor) -> dict[str, Tensor]:
    # each result lies in the memory of the input
    x.t()[1].neg_()
    return {
        "view": x.view(6),
        "same": x.view_as(x),
        "row": x[1],
        "nothing": x[:, 3:],
        "wide": x.unsqueeze(0).expand(4, 2, 3),
        "bits": x.view(torch.int32),
        "detached": x.detach(),
        "windows": x.view(6).unfold(0, 3, 1),
    }


@program("conjugate_of_a_written_input", lambda: (torch.complex(counting(3), counting(3)),))
def conjugate_of_a_written_input(x: Tensor) -> tuple[Tensor, Tensor]:
    # a lazy view of the input, and the part of it that is negated lazily
    x.mul_(1 + 2j)
    return x.conj(), x.conj().imag


@program("results_that_share_an_intermediate", tensors((4, 3)))
def results_that_share_an_intermediate(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # the caller may write one of them and sees it in the others
    y = x * 2
    middle = y[1:3]
    middle.add_(1)
    return y.t(), middle, middle[0], y


@program("results_through_a_reshaped_object", tensors((2, 3)))
def results_through_a_reshaped_object(x: Tensor) -> tuple[Tensor, Tensor]:
    # the object changes its shape between the two times that it is named
    y = x + 1
    first = y.view(-1)
    y.unsqueeze_(0)
    first[0] = first[1] * 2
    return first, y


@program("written_and_then_forgotten", tensors((4,), (4,)))
def written_and_then_forgotten(x: Tensor, y: Tensor) -> Tensor:
    # the caller's tensor keeps the last value, the result the one in between
    x.add_(y)
    between = x.clone()
    x.zero_()
    x[1:3].fill_(2)
    return between


@program("undone_write", tensors((4,)))
def undone_write(x: Tensor) -> Tensor:
    # what the caller finds is what was there before
    kept = x.clone()
    x.mul_(10)
    found = x.sum()
    x.copy_(kept)
    return found


@program("input_inside_of_more_memory_and_its_view", lambda: (inside(3, 4)[:, 1:],))
def input_inside_of_more_memory_and_its_view(x: Tensor) -> tuple[Tensor, Tensor]:
    # neighbours of the input in its storage stay as they are
    x.diagonal().zero_()
    return x[1:, ::2], x.unsqueeze(1)


@program("inference_mode_with_returned_views", tensors((3, 4)), grad_mode="inference")
def inference_mode_with_returned_views(x: Tensor) -> tuple[Tensor, Tensor]:
    # no version counters, the same aliases
    y = x.view(4, 3).t()
    y[0].mul_(-1)
    z = torch.zeros_like(y)
    z.copy_(y)[1:].add_(x.view(-1)[:4])
    return y, z[1:]


# --- sizes that are known late --------------------------------------------------------------------------


@program("expanded_to_a_late_size", tensors((3, 1), (3, 5)), dynamic=True, calls=(tensors((2, 1), (2, 7)),))
def expanded_to_a_late_size(x: Tensor, y: Tensor) -> Tensor:
    # the size of an expanded view comes from another input
    wide = x.expand(y.shape[0], y.shape[1])
    x.add_(y[:, -1:])
    y.mul_(wide)
    return wide.sum(0)


@program("strides_from_late_sizes", tensors((4, 6)), dynamic=True, calls=(tensors((3, 8)),), may_refuse=True)
def strides_from_late_sizes(x: Tensor) -> Tensor:
    # a view by strides that are sizes
    y = x + 1
    y.as_strided((y.shape[0],), (y.shape[1],), 1).mul_(10)
    return y


@program("parts_of_late_sizes", tensors((6, 4)), dynamic=True, calls=(tensors((8, 6)), tensors((4, 2))))
def parts_of_late_sizes(x: Tensor) -> Tensor:
    # a split, a chunk and a narrowing that depend on sizes
    head, tail = x.split([x.shape[0] // 2, x.shape[0] - x.shape[0] // 2])
    head.add_(1)
    left, right = tail.chunk(2, dim=1)
    right.sub_(left)
    x.narrow(1, x.shape[1] // 2, 1).zero_()
    product: Tensor = head * tail
    return product


@program("metadata_of_late_sizes", tensors((3, 4)), dynamic=True, calls=(tensors((5, 2)),))
def metadata_of_late_sizes(x: Tensor) -> tuple[Tensor, Tensor]:
    # in-place views of a tensor whose sizes are symbols
    y = x * 2
    z = y.view(-1, x.shape[0])
    z.t_().unsqueeze_(0)
    z[0, 1].add_(1)
    return y, z


@program("diagonal_of_late_size", tensors((4, 5)), dynamic=True, calls=(tensors((6, 6)), tensors((3, 2))))
def diagonal_of_late_size(x: Tensor) -> Tensor:
    # how long a diagonal is depends on both sizes
    x.diagonal().mul_(-1)
    x.flatten()[:: x.shape[1] + 1].add_(x.shape[0])
    return x * 1
