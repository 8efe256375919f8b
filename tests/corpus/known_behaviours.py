"""What everybody who functionalizes has to get right: views of views, parts, and copies."""

from __future__ import annotations

import torch
from torch import Tensor

from corpus.registry import counting, program, tensors

aten = torch.ops.aten

# --- views of views -------------------------------------------------------------------------------------


@program("view_written_base_read", tensors((4, 2), (2, 4)))
def view_written_base_read(x: Tensor, y: Tensor) -> Tensor:
    # the smallest case of all: a write through a view shows in the base
    x.view(2, 4).add_(y)
    return x * x


@program("base_written_view_returned", tensors((4, 2)))
def base_written_view_returned(x: Tensor) -> Tensor:
    # the other way round: the view that is returned was taken before its base was written
    flat = x.view(8)
    x.mul_(3)
    return flat


@program("middle_of_a_chain_written", tensors((2, 6)))
def middle_of_a_chain_written(x: Tensor) -> tuple[Tensor, Tensor]:
    # a write in the middle of a chain of views shows at both of its ends
    y = x + 1
    across = y.view(3, 4)
    middle = across.t()
    tip = middle[1:3].unsqueeze(0)
    middle.mul_(2)
    return y, tip


@program("leaves_of_two_branches_written", tensors((4, 6)))
def leaves_of_two_branches_written(x: Tensor) -> tuple[Tensor, Tensor]:
    # two trees of views over one tensor; each leaf is written and read through the other tree
    rows, columns = x.view(2, 2, 6)[1], x.t().view(6, 4)[2:5]
    rows[0].add_(100)
    columns[1].mul_(-1)
    return rows + 0, columns.sum(0)


@program("chain_of_six_views_written_at_its_end", tensors((2, 3, 4)))
def chain_of_six_views_written_at_its_end(x: Tensor) -> Tensor:
    # a chain longer than any that is replayed step by step
    y = x * 1
    y.permute(2, 0, 1)[1:].transpose(0, 2).select(0, 1).unsqueeze(1).squeeze(1)[1, ::2].neg_()
    return y


@program("views_that_nobody_uses", tensors((3, 4)))
def views_that_nobody_uses(x: Tensor) -> Tensor:
    # dead views are no readers: they may not keep an old version alive
    y = x + 1
    y.view(12), y.t(), y[1:], y.unsqueeze(0), y.diagonal()
    y.mul_(2)
    return y


@program("written_part_that_nobody_reads", tensors((3, 4)))
def written_part_that_nobody_reads(x: Tensor) -> Tensor:
    # the writes to a tensor of the graph's own that is never read may vanish, the read before them may not
    y = x + 1
    total = y.sum()
    y[1].zero_()
    y.t()[0].fill_(3)
    return total


@program("input_written_through_a_chain_never_read", tensors((2, 3, 4)))
def input_written_through_a_chain_never_read(x: Tensor) -> None:
    # nothing in the graph reads the write; the caller does
    x.transpose(0, 2)[1:3].select(-1, 0)[:, 1:].mul_(10)


@program("step_of_a_step", tensors((13, 2)))
def step_of_a_step(x: Tensor) -> Tensor:
    # slices of slices multiply their steps and add their starts
    x[1::2][::3].add_(50)
    x[-9:-1][1::4, 1:].mul_(2)
    return x - 1


@program("subscripts_of_every_kind", tensors((3, 4, 2)))
def subscripts_of_every_kind(x: Tensor) -> Tensor:
    # a subscript is a chain of views, whatever it is made of
    x[:, 1].add_(1)
    x[..., None, 0].mul_(2)
    x[None, 1, ..., -1].sub_(3)
    x[None][:, -1, 1:3].neg_()
    return x * 1


@program("narrowed_from_the_end", tensors((6, 3)))
def narrowed_from_the_end(x: Tensor) -> Tensor:
    # starts count from the end where they are negative
    x.narrow(0, -2, 2).narrow(-1, 1, 1).fill_(0)
    return x[-3:-1] + x[-1]


@program("diagonal_written_base_read_flat", tensors((4, 4)))
def diagonal_written_base_read_flat(x: Tensor) -> Tensor:
    # the write through a diagonal is read through a view of another shape
    y = x * 1
    y.diagonal(1).add_(100)
    return y.view(16)[1:12:5] + y.t().diagonal(-1)


@program("diagonal_of_inner_dims", tensors((3, 2, 4)))
def diagonal_of_inner_dims(x: Tensor) -> Tensor:
    # a diagonal of a batch, with dims that are not the first two, and a part of it
    x.diagonal(-1, dim1=2, dim2=0)[1].mul_(-1)
    x.diagonal(dim1=0, dim2=1)[2].zero_()
    return x + 0.5


@program("windows_of_two_dims_read_late", tensors((4, 5)), zero_extra=False)
def windows_of_two_dims_read_late(x: Tensor) -> Tensor:
    # overlapping windows show a write to what they overlap in, as often as they hold it
    windows = x.unfold(0, 2, 1).unfold(1, 3, 2)
    x[1, 1:4].mul_(10)
    return windows.sum((2, 3))


@program("expanded_and_written_below", tensors((3, 1)))
def expanded_and_written_below(x: Tensor) -> tuple[Tensor, Tensor]:
    # every repeated element shows the write; the expanded view itself is returned
    y = x * 2
    wide = y.expand(2, 3, 4)
    y[1].add_(7)
    return wide, wide.sum(0)


@program("broadcast_together_then_written", tensors((3, 1), (4,)))
def broadcast_together_then_written(x: Tensor, y: Tensor) -> Tensor:
    # tensors that are broadcast together are views of what they came from
    wide, tall = torch.broadcast_tensors(x, y)
    x.neg_()
    y[1:3].mul_(2)
    product: Tensor = wide * tall
    return product


@program("grid_of_coordinates", tensors((3,), (2,)))
def grid_of_coordinates(x: Tensor, y: Tensor) -> Tensor:
    # meshgrid returns expanded views
    across, down = torch.meshgrid(x, y, indexing="ij")
    x.add_(1)
    return across - down


@program("aliases_without_a_change", tensors((3, 4)))
def aliases_without_a_change(x: Tensor) -> tuple[Tensor, Tensor]:
    # every one of these is the tensor again under another name
    y = x + 1
    aten.alias.default(y).add_(1)
    y.view_as(x).mul_(2)
    y.expand_as(x)[0].sub_(3)
    y.reshape(3, 4)[1].neg_()
    y.float().contiguous().to(torch.float32)[2].zero_()
    y.squeeze().flatten(0, 0).real.add_(5)
    return y, y.ravel()[3:]


@program("operators_that_copy", tensors((2, 4)))
def operators_that_copy(x: Tensor) -> tuple[Tensor, ...]:
    # none of these is a view: the writes stay in the copies
    copies = (x.flip(0), x.roll(1), x.repeat(1, 1), x.index_select(0, torch.arange(2)), x.t().reshape(8))
    for k, copied in enumerate(copies):
        copied.add_(100 * k)
    x.mul_(2)
    return copies


@program("copying_forms_of_views", tensors((3, 4)))
def copying_forms_of_views(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # the `_copy` form of a view shares nothing with its operand
    turned, row, narrow = torch.transpose_copy(x, 0, 1), torch.select_copy(x, 0, 1), torch.slice_copy(x, 1, 1, 3)
    x.zero_()
    row.add_(1)
    turned[2].neg_()
    return turned, row, narrow


@program("copy_of_an_expanded_tensor", tensors((1, 4)))
def copy_of_an_expanded_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    # the copies have memory for each element, so they may be written
    cloned, packed = x.expand(3, 4).clone(memory_format=torch.contiguous_format), x.expand(3, 4).contiguous()
    cloned[1].add_(1)
    packed[:, 2].mul_(2)
    return cloned, packed


@program("prefix_sums_in_place", tensors((5, 3)))
def prefix_sums_in_place(x: Tensor) -> Tensor:
    # each row reads the one that the step before has written
    for i in range(1, 5):
        x[i].add_(x[i - 1])
    return x[-1]


@program("rows_exchanged", tensors((3, 4)))
def rows_exchanged(x: Tensor) -> Tensor:
    # the copies are taken before either row is written
    x[0], x[2] = x[2].clone(), x[0].clone()
    return x * 1


@program("strides_by_hand_on_an_intermediate", tensors((4, 6)))
def strides_by_hand_on_an_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    # an offset counts from the start of the storage, also when the operand is a view that begins later
    y = x + 1
    comb = y[1:].as_strided((2, 3), (12, 2), 3)
    same_start = y[2:].as_strided((3,), (3,))
    comb.mul_(10)
    same_start.neg_()
    return y, comb.t()


@program("windows_by_hand_read_after_a_write", tensors((7,)))
def windows_by_hand_read_after_a_write(x: Tensor) -> Tensor:
    # overlapping views by strides are read only
    y = x * 2
    windows = y.as_strided((3, 3), (2, 1))
    y[2].add_(100)
    return windows * 1


# --- parts ----------------------------------------------------------------------------------------------


@program("one_part_of_a_split_written", tensors((6, 3)))
def one_part_of_a_split_written(x: Tensor) -> tuple[Tensor, Tensor]:
    # the parts that are not written keep their values, and their place in the base
    first, second, third = x.split(2)
    second.add_(first)
    return third, first + second


@program("chunks_that_do_not_divide", tensors((7, 2)))
def chunks_that_do_not_divide(x: Tensor) -> Tensor:
    # the last chunk is smaller, and there are fewer chunks than asked for
    y = x * 1
    chunks = y.chunk(5)
    chunks[-1].neg_()
    chunks[1].add_(chunks[0])
    return y + len(chunks)


@program("split_at_positions", tensors((4, 7)))
def split_at_positions(x: Tensor) -> Tensor:
    # parts between positions, one of them empty
    a, b, c, d = torch.tensor_split(x, (2, 2, 5), dim=1)
    a.mul_(2)
    b.add_(1)
    d.copy_(c[:, 1:])
    return x - 1


@program("split_by_both_dims", tensors((4, 6)))
def split_by_both_dims(x: Tensor) -> Tensor:
    # a part of a part
    upper, lower = torch.vsplit(x, 2)
    left, right = torch.hsplit(upper, 2)
    right.add_(lower[:, :3])
    lower.hsplit(3)[1].zero_()
    return left + right


@program("unbound_along_the_last_dim", tensors((3, 2, 4)))
def unbound_along_the_last_dim(x: Tensor) -> tuple[Tensor, Tensor]:
    # parts with strides, each a view that may be written
    y = x + 1
    parts = y.unbind(-1)
    parts[1].add_(parts[3])
    parts[2].t().zero_()
    return y, parts[0]


@program("parts_of_parts_in_a_loop", tensors((8, 2)))
def parts_of_parts_in_a_loop(x: Tensor) -> Tensor:
    # halves of halves of halves, the other half written at each level
    part = x
    for k in range(3):
        part, other = part.chunk(2)
        other.add_(10 * (k + 1))
    part.neg_()
    return x.view(16)


@program("parts_that_are_called_unsafe", tensors((6, 3)))
def parts_that_are_called_unsafe(x: Tensor) -> tuple[Tensor, Tensor]:
    # views of which the schema does not say so
    y = x + 1
    torch.unsafe_chunk(y, 2)[1].add_(100)
    torch.unsafe_split(x, 4)[1].neg_()
    first, second = torch.unsafe_split_with_sizes(x, [1, 2], 1)
    second.mul_(first)
    return y, first


@program("stack_of_parts_then_write", tensors((4, 3)))
def stack_of_parts_then_write(x: Tensor) -> tuple[Tensor, Tensor]:
    # what is stacked is copied: neither side sees later writes of the other
    stacked = torch.stack([x[0], x[2], x[0]])
    x[0].add_(100)
    stacked[1:].mul_(2)
    return stacked, x + 0


@program("joined_views_of_one_tensor", tensors((3, 4)))
def joined_views_of_one_tensor(x: Tensor) -> Tensor:
    # cat reads views in the version of its own moment, of one operand too
    y = x + 1
    row = y[1]
    alone = torch.cat([row])
    row.mul_(-1)
    joined = torch.cat([row, y[:, 0], alone])
    row.zero_()
    return joined.add_(y.sum())


# --- copies ---------------------------------------------------------------------------------------------


@program("row_copied_over_all_rows", tensors((3, 4), (4,), (3, 1)))
def row_copied_over_all_rows(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    # the source of a copy is broadcast
    y = x * 2
    y.copy_(row)
    y[:, 1:3].copy_(column)
    x[1].copy_(row[2])
    return y + x


@program("copies_between_dtypes", lambda: (counting(4, dtype=torch.int32), counting(4) - 1.3, torch.zeros(4) != 0))
def copies_between_dtypes(whole: Tensor, real: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
    # a copy casts to the dtype of what it is copied into, by the rules of a cast
    flag[1:].copy_(real[:3] > 0)
    whole.copy_(real * -2)
    halves = torch.empty(4, dtype=torch.float16)
    halves.copy_(whole)
    wide = torch.zeros(4, dtype=torch.complex64)
    wide[::2].copy_(halves[2:])
    return halves, wide


@program("copied_into_a_diagonal", tensors((4, 4), (4,)))
def copied_into_a_diagonal(x: Tensor, y: Tensor) -> Tensor:
    # a source of its own, and one that lies in the same tensor beside the diagonal
    x.diagonal().copy_(y)
    x.diagonal(1).copy_(x[3, :3] * 2)
    x.diagonal(-2).copy_(y[0])
    return x.t() + 0


@program("copied_through_two_names_of_one_memory", tensors((3, 4)))
def copied_through_two_names_of_one_memory(x: Tensor) -> Tensor:
    # from and to are the same memory under two names: nothing changes
    x.view(12).copy_(x.view(4, 3).view(12))
    x.t().copy_(x.mT)
    return x + 1


@program("source_written_after_the_copy", tensors((3,), (2, 3)))
def source_written_after_the_copy(x: Tensor, log: Tensor) -> Tensor:
    # what was copied is what the source held then
    y = x * 2
    log[0].copy_(y)
    y.add_(1)
    log[1].copy_(y)
    y.zero_()
    return y


@program("fill_with_a_number_held_by_a_tensor", lambda: (counting(3, 4), torch.tensor(7), torch.tensor(2.5)))
def fill_with_a_number_held_by_a_tensor(x: Tensor, whole: Tensor, real: Tensor) -> Tensor:
    # the number is read when the fill happens, and cast
    y = x + 1
    y[0].fill_(whole)
    whole.add_(1)
    y[1, 1:].fill_(whole)
    x.t()[2].fill_(real)
    return y


@program("fill_with_one_of_its_own_elements", tensors((4, 3)), zero_extra=False)
def fill_with_one_of_its_own_elements(x: Tensor) -> Tensor:
    # eager reads the element first
    x[1:].fill_(x[2, 1])
    return x * 2


@program("every_element_by_itself", tensors((2, 3)))
def every_element_by_itself(x: Tensor) -> Tensor:
    # views without dims
    y = torch.zeros(2, 3)
    for i in range(2):
        for j in range(3):
            y[i, j].add_(x[1 - i, j])
            x[i, j].mul_(y[i, j])
    return y


@program("tensors_without_dims", lambda: (torch.tensor(3.0), torch.tensor(4)))
def tensors_without_dims(x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    # a number is a tensor like any other, and can be viewed as one element
    x.view(1).add_(1)
    x.unsqueeze(0).expand(3).sum()
    x.reshape(1, 1)[0, 0].mul_(count)
    count.add_(True)
    return x.expand(2), x.t() + count


@program("tensors_without_elements", lambda: (counting(0, 3), counting(2, 3)))
def tensors_without_elements(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # writes to nothing are writes all the same
    x.add_(1)
    y[:, 3:].copy_(x[:, 1:1].t().reshape(1, 0))
    x.view(3, 0)[1].zero_()
    y[2:].mul_(5)
    return x, torch.cat([x, y])
