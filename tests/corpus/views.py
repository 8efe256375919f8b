"""Writes through every kind of view, of inputs and of intermediates."""

from __future__ import annotations

import torch
from support.operators import ops
from torch import Tensor

from corpus.registry import counting, inside, program, tensors


@program("select_row", tensors((5, 3)))
def select_row(x: Tensor) -> Tensor:
    ops.bump(x[3])
    return x.neg()


@program("select_negative_of_last_dim", tensors((4, 5)))
def select_negative_of_last_dim(x: Tensor) -> Tensor:
    x.select(-1, -2).mul_(10)
    return x + x[0, 3]


@program("every_other_row", tensors((7, 2)))
def every_other_row(x: Tensor) -> Tensor:
    ops.bump(x[1::2])
    return x * 3


@program("inner_block", tensors((8, 9)))
def inner_block(x: Tensor) -> Tensor:
    ops.bump(x[2:5, 3:8:2])
    return x - 1


@program("empty_slice", tensors((6, 4)))
def empty_slice(x: Tensor) -> Tensor:
    ops.bump(x[4:4])
    return x * 2


@program("slice_past_the_end", tensors((6, 4)))
def slice_past_the_end(x: Tensor) -> Tensor:
    x[4:100].zero_()
    return x * 2


@program("transposed", tensors((3, 4), (4,)))
def transposed(x: Tensor, row: Tensor) -> Tensor:
    y = x * 2
    y.t().add_(1)
    y.mT[1:3, 0].copy_(row[:2])
    return y


@program("permuted_and_sliced", tensors((2, 3, 4)))
def permuted_and_sliced(x: Tensor) -> Tensor:
    x.permute(2, 0, 1)[1:3, 1].sub_(100)
    return x * 1


@program("moved_and_swapped_dims", tensors((2, 3, 4)))
def moved_and_swapped_dims(x: Tensor) -> Tensor:
    y = x + 1
    ops.bump(y.movedim(0, 2)[0])
    y.swapaxes(0, 1)[2].mul_(5)
    return y


@program("squeeze_unsqueeze_flatten", tensors((1, 3, 4)))
def squeeze_unsqueeze_flatten(x: Tensor) -> Tensor:
    ops.bump(x.squeeze(0).unsqueeze(1).flatten(1, 2)[1])
    return x / 2


@program("flat_view_and_reshape", tensors((4, 6)))
def flat_view_and_reshape(x: Tensor) -> Tensor:
    y = x - 1
    y.view(-1)[5:11].fill_(0)
    ops.bump(y.reshape(3, 8)[2])
    return y


@program("reshape_that_copies", tensors((4, 6)))
def reshape_that_copies(x: Tensor) -> tuple[Tensor, Tensor]:
    copied = x.t().reshape(-1)
    copied.add_(1000)
    return copied, x * 1


@program("contiguous_that_aliases", tensors((4, 6)))
def contiguous_that_aliases(x: Tensor) -> Tensor:
    x.contiguous().add_(9)
    x.t().contiguous().add_(9)
    x.to(torch.float32).mul_(2)
    return x.clone()


@program("expand_of_size_one", tensors((1, 5)))
def expand_of_size_one(x: Tensor) -> Tensor:
    y = x + 1
    ops.bump(y.expand(1, 5))
    return y * 2


@program("read_through_expand", tensors((3, 1), (3, 4)))
def read_through_expand(x: Tensor, y: Tensor) -> Tensor:
    wide = x.expand(3, 4)
    x.mul_(2)
    y.add_(wide)
    return wide + 0


@program("diagonals", tensors((5, 5)))
def diagonals(x: Tensor) -> Tensor:
    x.diagonal().fill_(-1)
    ops.bump(x.diagonal(offset=2))
    x.diagonal(-1)[1:3].mul_(7)
    return x * 1


@program("tiling_unfold", tensors((12,)))
def tiling_unfold(x: Tensor) -> Tensor:
    y = x + 1
    ops.bump(y.unfold(0, 3, 3)[1:])
    return y


@program("unfold_with_gaps", tensors((3, 11)))
def unfold_with_gaps(x: Tensor) -> Tensor:
    # pytorch#198102: elements that no window covers stay as they were
    x.unfold(1, 2, 4).mul_(-1)
    return x + 0


@program("unfold_with_overlap", lambda: (-counting(2, 9),), zero_extra=False, may_refuse=True)
def unfold_with_overlap(x: Tensor) -> Tensor:
    # pytorch#165409: eager lets abs_ pass here, since doing it twice changes nothing
    y = x * 1
    return y.unfold(1, 4, 2).abs_()


@program("as_strided_comb", tensors((6, 6)))
def as_strided_comb(x: Tensor) -> Tensor:
    y = x + 1
    ops.bump(y.as_strided((3, 2), (12, 2), 4))
    return y * 2


@program("as_strided_of_offset_input", lambda: (inside(4, 4),), zero_extra=False, may_refuse=True)
def as_strided_of_offset_input(x: Tensor) -> Tensor:
    # an offset left out is the tensor's own; one given counts from the start of the storage
    x.as_strided((2, 2), (5, 1)).mul_(2)
    x.as_strided((3,), (2,), 7).add_(1)
    return x * 1


@program("as_strided_outside_the_input", lambda: (counting(14)[2:8],), zero_extra=False, may_refuse=True)
def as_strided_outside_the_input(x: Tensor) -> Tensor:
    # pytorch#140171
    beyond = x.as_strided((5,), (1,), 6)
    beyond.mul_(-1)
    return beyond + 0


@program("both_chunks", tensors((4, 6)))
def both_chunks(x: Tensor) -> Tensor:
    y = x + 1
    left, right = y.chunk(2, dim=1)
    ops.bump(left)
    right.mul_(2)
    ops.absorb(left, right)
    return y


@program("uneven_split", tensors((7, 2)))
def uneven_split(x: Tensor) -> Tensor:
    a, b, c = x.split([1, 4, 2])
    b.add_(a)
    c.copy_(b[1:3])
    a.zero_()
    return x.sum(0)


@program("unbind_and_write_some", tensors((3, 4)))
def unbind_and_write_some(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b, c = x.unbind(0)
    ops.bump(a)
    c.add_(b).add_(a)
    return c, x * 2


@program("packed_projection", tensors((6, 5), (12, 5)))
def packed_projection(x: Tensor, weight: Tensor) -> Tensor:
    query, key, value = torch.split(torch.nn.functional.linear(x, weight), 4, dim=-1)
    ops.lower_and_scale(query, key)
    return query @ key.t() @ value


@program("unbind_of_reshaped_slice", tensors((5, 13)))
def unbind_of_reshaped_slice(x: Tensor) -> Tensor:
    y = x + 1
    a, b, c = y[:, :12].reshape(5, 3, 4).unbind(1)
    ops.bump(a)
    ops.bump(b)
    return y.sum() + c.sum() + a.sum()


@program("unflatten_and_narrow", tensors((3, 8)))
def unflatten_and_narrow(x: Tensor) -> Tensor:
    ops.bump(x.unflatten(1, (2, 4)).narrow(2, 1, 2))
    return x + 0.5


@program("detached", tensors((4, 3)))
def detached(x: Tensor) -> Tensor:
    ops.bump(x.detach()[1:])
    x.data.mul_(2)
    return x + 1


@program("disjoint_view_read_later", tensors((8, 3)))
def disjoint_view_read_later(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    late = y[5:]
    ops.bump(y[:4])
    return late * 2, y.sum()


@program("overlapping_view_read_later", tensors((8, 3)))
def overlapping_view_read_later(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    late = y[2:6]
    ops.bump(y[:4])
    return late * 2, y.sum()


@program("row_and_column_cross", tensors((6, 6)))
def row_and_column_cross(x: Tensor) -> Tensor:
    # a row and a band of columns share some elements, whatever a hasty test of extents says
    y = x + 1
    row = y[4:5].clone()
    y[:, :3].mul_(2)
    return row + y[4:5]


@program("interleaved_halves", tensors((10,)))
def interleaved_halves(x: Tensor) -> Tensor:
    even, odd = x[::2], x[1::2]
    even.add_(odd)
    odd.sub_(even)
    return even * odd


@program("view_taken_before_write_of_base", tensors((4, 4)))
def view_taken_before_write_of_base(x: Tensor) -> Tensor:
    row = x[2]
    x.add_(1)
    column = x[:, 1]
    row.mul_(2)
    return column + row


@program("three_names_of_one_tensor", tensors((2, 8)))
def three_names_of_one_tensor(x: Tensor) -> Tensor:
    y = x * 1
    a, b, c = y.view(16), y.view(4, 4), y.t()
    a.add_(1)
    b[1].mul_(2)
    c[3].sub_(4)
    return a + b.flatten() + c.t().flatten()


@program("result_of_in_place_op_goes_on", tensors((3, 4)))
def result_of_in_place_op_goes_on(x: Tensor) -> Tensor:
    y = x[1].add_(1).view(2, 2).t().mul_(2)
    y[0].clamp_(max=5)
    return x * y.sum()


@program("relay_of_views_in_a_loop", tensors((4,)))
def relay_of_views_in_a_loop(x: Tensor) -> Tensor:
    grid = torch.zeros(12, 4)
    v = grid
    for i in range(12):
        v = v.view(-1).view(12, 4)
        v[i] = x - i
    return grid


@program("many_rows_of_one_buffer", tensors((3,)))
def many_rows_of_one_buffer(x: Tensor) -> Tensor:
    rows = torch.zeros(40, 3)
    for i in range(40):
        rows[i] = x * (i + 1)
    return rows


@program("alternating_halves", tensors((6, 6)))
def alternating_halves(x: Tensor) -> Tensor:
    y = x @ x
    for _ in range(3):
        ops.bump(y[:3])
        ops.bump(y[3:])
    return y


@program("view_between_matrix_products", tensors((4, 4)))
def view_between_matrix_products(x: Tensor) -> Tensor:
    y = x @ x
    y[0].sub_(1)
    z = y @ x
    y[1].mul_(2)
    return z @ y


@program("window_sums", tensors((9,)), zero_extra=False)
def window_sums(x: Tensor) -> Tensor:
    windows = x.unfold(0, 3, 1)
    x[4] = 100
    return windows.sum(1)


@program("scatter_results_stay_apart", tensors((8,), (3,)), zero_extra=False)
def scatter_results_stay_apart(state: Tensor, patch: Tensor) -> Tensor:
    # pytorch#198096: the functional scatter is the user's own, and outlives the overwrite of its base
    before = torch.slice_scatter(state, patch, 0, 1, 4)
    state.fill_(-7)
    return before


@program("scatter_into_an_expanded_tensor", tensors((3,)))
def scatter_into_an_expanded_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x[:1].expand(3, 3)
    scattered = torch.diagonal_scatter(wide, x)
    ops.bump(scattered[1])
    return scattered, wide


@program("scatter_into_elements_that_share_memory", tensors((5,)), zero_extra=False)
def scatter_into_elements_that_share_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    # the result has the strides of the base: a row that is written shows in the next one
    windows = x.unfold(0, 2, 1)
    z = torch.slice_scatter(windows, windows.sum().expand(3, 2), 0, 1)
    x.add_(1)
    return z * 1, z
