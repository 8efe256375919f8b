"""What everybody who functionalizes has to get right: tensors that the program makes, and what it makes of them."""

from __future__ import annotations

import torch
from torch import Tensor

from corpus.registry import counting, program, tensors

aten = torch.ops.aten

# --- tensors made inside --------------------------------------------------------------------------------


@program("constant_made_inside_and_written", tensors((3,)), calls=(tensors((3,)),))
def constant_made_inside_and_written(x: Tensor) -> Tensor:
    # a literal is new on each call: the second call may not see the writes of the first
    table = torch.tensor([1.0, 2.0, 3.0])
    table.add_(x)
    table[1:].mul_(2)
    return table


@program("number_made_inside_and_written", tensors((2, 3)))
def number_made_inside_and_written(x: Tensor) -> tuple[Tensor, Tensor]:
    # a running total that begins as a literal
    total = torch.tensor(0.0)
    for row in x:
        total += row.sum()
        row.sub_(total)
    return total, x * 1


@program("memory_filled_piece_by_piece", tensors((2, 3)))
def memory_filled_piece_by_piece(x: Tensor) -> Tensor:
    # uninitialised memory, of which every piece is written before it is read
    y = x.new_empty(4, 3)
    y[2:].zero_()
    y[0] = x[1]
    y[1].copy_(x[0]).add_(1)
    torch.add(y[0], y[1], out=y[3])
    return y


@program("like_another_and_written", lambda: (counting(4, 3).t(),))
def like_another_and_written(x: Tensor) -> Tensor:
    # the new tensor has the strides of its model
    y = torch.empty_like(x)
    y.fill_(2)[1].mul_(x[0])
    z = torch.zeros_like(x, memory_format=torch.contiguous_format)
    z.copy_(x)
    return y.add_(z)


class Recorder(torch.nn.Module):
    """Keeps the last rows that it saw, and their mean, in buffers that are views of one another's rows."""

    rows: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, 4))
        self.register_buffer("mean", self.rows[2])

    def forward(self, x: Tensor) -> Tensor:
        self.rows[0].copy_(self.rows[1])
        self.rows[1].copy_(x)
        self.mean.lerp_(x, 0.5)
        return self.rows.sum(0)


# buffers that share memory, written on every call
program("buffers_that_share_memory", tensors((4,)), calls=(tensors((4,)), tensors((4,))))(Recorder)


# --- metadata -------------------------------------------------------------------------------------------


@program("metadata_changed_step_by_step", tensors((2, 1, 3)))
def metadata_changed_step_by_step(x: Tensor) -> tuple[Tensor, Tensor]:
    # each in-place view replaces what the name stands for, and the base stays as it was
    y = x + 1
    z = y.view(2, 3, 1)
    z.transpose_(0, 1)
    z.squeeze_(-1)
    z.unsqueeze_(0)
    z.narrow(1, 1, 2).mul_(10)
    z.swapaxes_(1, 2).swapdims_(0, 1)
    z[1].add_(1)
    return y, z


@program("squeezes_that_change_nothing", tensors((3, 1, 2)))
def squeezes_that_change_nothing(x: Tensor) -> Tensor:
    # a dim of more than one element stays
    y = x * 2
    y.squeeze_(0)
    y.squeeze_(2)
    y[1].add_(1)
    y.squeeze_((0, 1))
    return y.add_(x[:, 0])


@program("strides_changed_in_place_at_an_offset", tensors((12,)))
def strides_changed_in_place_at_an_offset(x: Tensor) -> tuple[Tensor, Tensor]:
    # the view that was taken before lies where it lay
    y = x + 1
    early = y[6:]
    y.as_strided_((3, 2), (3, 1), 2)
    y[1].fill_(0)
    return y, early


@program("other_names_before_and_after_a_transpose", tensors((3, 4)))
def other_names_before_and_after_a_transpose(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # names of one object change together, names of one memory do not
    y = x * 1
    same, other = y, y.view(3, 4)
    y.t_()
    same[0].add_(100)
    other[2].neg_()
    return same, other, y.t()


@program("detached_in_place", tensors((3,)))
def detached_in_place(x: Tensor) -> Tensor:
    # nothing but the history of a tensor changes
    y = x + 1
    y.detach_().mul_(2)
    y.detach()[1:].add_(1)
    return y


@program("resized_within_its_memory", tensors((6,)), fullgraph=False, zero_extra=False)
def resized_within_its_memory(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # smaller, another shape, and back: the memory is the same all along
    y = x * 2
    view = y.view(2, 3)
    y.resize_(2)
    y.add_(100)
    y.resize_(3, 2)
    y[2].neg_()
    return y, view, view[1] * 1


@program("resized_out_of_nothing", tensors((2, 3)), fullgraph=False, zero_extra=False)
def resized_out_of_nothing(x: Tensor) -> Tensor:
    # new memory, every element of which is written before it is read
    y = x.new_empty(0)
    y.resize_(3, 2)
    y.copy_(x.t())
    z = x.new_empty(0, 4).resize_as_(x)
    z.zero_()[1].add_(x[0])
    return y @ z


@program("own_tensor_made_larger", tensors((4,)), fullgraph=False, zero_extra=False, may_refuse=True)
def own_tensor_made_larger(x: Tensor) -> Tensor:
    # the old elements stay, the new ones are written before they are read
    y = x * 2
    y.resize_(6)
    y[4:].fill_(1)
    return y.add_(1)


@program("view_made_smaller", tensors((3, 4)), fullgraph=False, zero_extra=False)
def view_made_smaller(x: Tensor) -> tuple[Tensor, Tensor]:
    # a view is resized from where it begins, and its base is not
    y = x + 1
    part = y[1:]
    part.resize_(2, 2)
    part.mul_(10)
    return y, part


@program("other_memory_for_an_object", tensors((4,), (2, 2)), fullgraph=False, zero_extra=False, may_refuse=True)
def other_memory_for_an_object(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # set_ ties one tensor to the memory of another
    z = x + 1
    old = z.view(2, 2)
    z.set_(y)  # type: ignore[call-overload]
    z.add_(1)
    return z, old


@program("data_replaced", tensors((4,), (4,)), fullgraph=False, zero_extra=False, may_refuse=True)
def data_replaced(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # an assignment to .data is a set_ in other clothes
    z = x * 2
    z.data = y
    z.mul_(3)
    return z, x + 1


# --- results in given memory ----------------------------------------------------------------------------


@program("result_in_a_given_tensor", tensors((3,), (3,)))
def result_in_a_given_tensor(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # the call returns the very tensor that it was given
    sink = torch.empty(3)
    returned = torch.add(x, y, out=sink)
    returned.mul_(2)
    torch.sub(sink, 1, out=sink)
    return sink, returned


@program(
    "results_in_parts_of_one_tensor", lambda: (counting(3, 4), torch.empty(2, 3), torch.zeros(3, 3, dtype=torch.int64))
)
def results_in_parts_of_one_tensor(x: Tensor, values: Tensor, where: Tensor) -> Tensor:
    # two results, each into a view of an input
    torch.max(x, dim=1, out=(values[0], where[1]))
    torch.min(x, dim=1, out=(values[1], where[2]))
    return values.sum() + where.sum(0)


@program("results_with_strides", lambda: (counting(3, 4), torch.zeros(3, 3, dtype=torch.int64)), fullgraph=False)
def results_with_strides(x: Tensor, where: Tensor) -> Tensor:
    # results into views whose elements do not lie side by side
    torch.argmin(x, dim=1, out=where[:, 1])
    torch.max(x, dim=1, out=(x[:, 0], where.diagonal()))
    return where.sum(0)


@program("result_with_a_cast", lambda: (counting(4, dtype=torch.int32), torch.empty(2, 4)))
def result_with_a_cast(x: Tensor, sink: Tensor) -> Tensor:
    # a result is cast to the dtype of where it goes
    torch.mul(x, 3, out=sink[1])
    torch.add(x, x, out=sink[0])
    flags = torch.zeros(4)
    torch.gt(sink[1], 6, out=flags)
    return flags


@program("results_that_grow_together", tensors((3, 5)), fullgraph=False, zero_extra=False)
def results_that_grow_together(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # empty operands become as large as their results, in shapes of their own
    values, where = x.new_empty(0), x.new_empty(0, dtype=torch.int64)
    torch.topk(x, 2, dim=1, out=(values, where))
    joined = x.new_empty(0)
    torch.cat([values, x], dim=1, out=joined)
    values.zero_()
    return values, where, joined


@program("decomposition_into_given_memory", tensors((3, 3)), zero_extra=False)
def decomposition_into_given_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    # operators without an in-place form; both results are written again
    q, r = torch.empty(3, 3), torch.empty(3, 3)
    torch.linalg.qr(x, out=(q, r))
    r.diagonal().add_(1)
    q[0].zero_()
    return q, r @ x


@program("out_operand_is_optional", lambda: (counting(5), counting(3) + 0.1))
def out_operand_is_optional(x: Tensor, found: Tensor) -> Tensor:
    # where the result goes is an operand that may be left out
    places = torch.searchsorted(x, found)
    again = torch.empty(3, dtype=torch.int64)
    torch.searchsorted(x, found, right=True, out=again)
    torch.bucketize(found, x, out=again[:0].new_empty(3))
    return places.add_(again)


@program("numbers_counted_into_memory", tensors((6,)))
def numbers_counted_into_memory(x: Tensor) -> Tensor:
    # operators that make a tensor from numbers alone
    count = torch.empty(6)
    torch.arange(6, out=count)
    x.add_(count)
    torch.linspace(0, 1, 6, out=count)
    x[1:].mul_(count[1:])
    return x + count


@program("joined_into_a_given_tensor", tensors((2, 3), (4, 3)))
def joined_into_a_given_tensor(x: Tensor, sink: Tensor) -> Tensor:
    # a list is read, one tensor is written
    torch.cat([x, x.neg()], out=sink)
    torch.stack([x[0], x[1]], out=sink[1:3])
    return sink.mul_(2)


@program("running_minimum_with_positions", tensors((3, 4)))
def running_minimum_with_positions(x: Tensor) -> tuple[Tensor, Tensor]:
    # the two results of one operator, one of them written and the other returned
    values, where = torch.cummin(x, dim=1)
    values[1].add_(x[0])
    x.zero_()
    return values, where
