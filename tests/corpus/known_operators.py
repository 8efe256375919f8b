"""What everybody who functionalizes has to get right: operands, lists, indices, dtypes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from corpus.registry import counting, inside, program, tensors

aten = torch.ops.aten


def _complex(*shape: int) -> Tensor:
    return torch.complex(counting(*shape), counting(*shape, start=-9))


# --- operators with many operands -----------------------------------------------------------------------


@program("products_added_in_place", tensors((4, 3), (3, 2), (4, 2)))
def products_added_in_place(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    # the product reads other rows of the tensor that it is added to
    y = torch.cat([a @ b, c])
    y[:2].addmm_(y[4:6], y[6:], beta=0.5)
    y[2].addmv_(b.t(), a[0], alpha=2)
    y[5:].addr_(a[0], c[1])
    y.view(2, 4, 2).baddbmm_(y.view(2, 4, 2), c.view(2, 2, 2), beta=2)
    return y


@program("running_sums_in_place", tensors((3, 5)))
def running_sums_in_place(x: Tensor) -> Tensor:
    # in-place operators that are not pointwise, through views
    x.t().cumsum_(0)
    x[1].cumprod_(0)
    y = x[:, 1:4] * 1
    y.renorm_(2, 0, 5.0)
    y.triu_(1)
    x[:, :3].tril_()
    return y


@program("bounds_given_as_tensors", tensors((3, 4), (4,)))
def bounds_given_as_tensors(x: Tensor, bound: Tensor) -> Tensor:
    # optional operands, given and left out
    x[0].clamp_(min=bound)
    x[1:].clamp_(max=bound - 45)
    x.clamp_(None, 50).clamp_min_(bound - 50)
    x.t()[1].nan_to_num_(posinf=1.0).lerp_(bound[:3], 0.5)
    return x * 2


@program("statistics_in_rows_of_one_tensor", lambda: (counting(4, 3, 2), torch.zeros(2, 3), counting(2, 3)))
def statistics_in_rows_of_one_tensor(x: Tensor, running: Tensor, affine: Tensor) -> tuple[Tensor, Tensor]:
    # batch norm writes its statistics, which here are views of one buffer
    y = functional.batch_norm(x, running[0], running[1], affine[0], affine[1], training=True, momentum=0.25)
    y[0].zero_()
    return y, running.sum(0)


@program("batch_norm_operator_without_statistics", tensors((4, 3)))
def batch_norm_operator_without_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    # the statistics are optional: nothing is written without them
    y, mean, _ = torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
    x.sub_(mean)
    y.mul_(2)
    return y, mean


@program("dropout_operator_that_is_off", tensors((4, 3)))
def dropout_operator_that_is_off(x: Tensor) -> tuple[Tensor, Tensor]:
    # a result that looks like the operand and is a tensor of its own
    y, mask = torch.native_dropout(x, 0.5, False)
    x.add_(1)
    y[1:].mul_(2)
    return y, mask


@program("dropout_operator_that_keeps_everything", tensors((4, 3)))
def dropout_operator_that_keeps_everything(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # it draws its random numbers all the same
    y, mask = torch.native_dropout(x, 0.0, True)
    x.add_(1)
    y[1:].mul_(2)
    return y, mask, torch.rand(3)


@program("noise_kept_for_later", tensors((3, 4)))
def noise_kept_for_later(x: Tensor) -> Tensor:
    # a random slope for each negative element, drawn in place
    y = x - 2
    torch.rrelu_(y[1:].neg_(), training=True)
    functional.rrelu(y[0], training=True, inplace=True)
    return y + torch.rand(4)


@program("distributions_in_place", tensors((4, 6)))
def distributions_in_place(x: Tensor) -> Tensor:
    # one stream of random numbers, whatever is drawn and wherever it goes
    x[0].normal_(1, 9)
    x[1, ::2].geometric_(0.3)
    x[:, 5].cauchy_()
    x[2].log_normal_().add_(torch.rand(6))
    flags = torch.empty(4).bernoulli_(torch.full((4,), 0.5))
    return x.t()[2] * flags


@program("ranges_seen_by_an_observer", lambda: (counting(3, 4), *(torch.full((1,), float(k)) for k in (1, 2, 1))))
def ranges_seen_by_an_observer(x: Tensor, low: Tensor, high: Tensor, scale: Tensor) -> Tensor:
    # four operands written by one call, and a result
    on, zero = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    y, _ = aten._fused_moving_avg_obs_fq_helper(x, on, on, low, high, scale, zero, 0.1, 0, 255, 0)
    x.sub_(low)
    return y.mul_(zero)  # type: ignore[no-any-return]


@program("pairs_turned_in_place", tensors((2, 3, 4), (3, 2)), zero_extra=False)
def pairs_turned_in_place(x: Tensor, angle: Tensor) -> Tensor:
    # each half of the pairs is read for the new value of the other
    even, odd = x[..., ::2], x[..., 1::2]
    turned = even * angle.cos() - odd * angle.sin()
    odd.copy_(even * angle.sin() + odd * angle.cos())
    even.copy_(turned)
    return x


# --- lists ----------------------------------------------------------------------------------------------


@program("list_of_parts_written_together", tensors((6, 4)))
def list_of_parts_written_together(x: Tensor) -> Tensor:
    # parts of one tensor in a list, with a write to the whole in between
    y = x + 1
    parts = list(y.split([1, 2, 3]))
    torch._foreach_mul_(parts, 2)
    y.t()[1].zero_()
    torch._foreach_add_(parts[1:], [x[:2], x[2:5]])
    total: Tensor = y + parts[0]
    return total


@program("list_read_beside_a_list_written", tensors((4, 3)))
def list_read_beside_a_list_written(x: Tensor) -> Tensor:
    # the second list holds other rows of the same tensor
    rows = list(x.unbind())
    torch._foreach_add_(rows[:2], rows[2:], alpha=2)
    torch._foreach_copy_(rows[2:], [row * 3 for row in rows[:2]])
    return x.sum(0)


@program("list_scaled_by_a_tensor", tensors((2, 3), (4,)))
def list_scaled_by_a_tensor(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    # a pure list operator makes new tensors, written one by one
    scaled = torch._foreach_mul([x[0], y], x[1, 2])
    scaled[1][1:].add_(1)
    torch._foreach_sqrt_(scaled)
    torch._foreach_zero_([y[:2], x[1]])
    return scaled


def _lists_of_one(count: int) -> tuple[list[Tensor], ...]:
    return tuple([counting(2, 3, start=1 + 20 * k)[k % 2], counting(4, start=7 + k)] for k in range(count))


@program("fused_step_of_an_optimiser", lambda: _lists_of_one(3), zero_extra=False, may_refuse=True)
def fused_step_of_an_optimiser(weights: list[Tensor], gradients: list[Tensor], moments: list[Tensor]) -> Tensor:
    # one call that writes two lists and reads a third; PyTorch has no fake kernel for it, and only Dynamo does without
    options = {"momentum": 0.9, "lr": 0.1, "weight_decay": 0.0, "dampening": 0.0}
    aten._fused_sgd_(weights, gradients, moments, **options, nesterov=True, maximize=False, is_first_step=False)
    weights[0].mul_(2)
    return moments[1] + 1


@program("rows_returned_as_a_list", tensors((3, 4)))
def rows_returned_as_a_list(x: Tensor) -> tuple[object, ...]:
    # lists of views of an input, written before and after they were taken
    x[1].neg_()
    rows, columns = x.unbind(), x.t().chunk(2)
    rows[0].add_(1)
    return rows, columns, list(x.split(2))


# --- indices --------------------------------------------------------------------------------------------


@program("index_read_is_a_copy", lambda: (counting(4, 3), torch.tensor([2, 0])))
def index_read_is_a_copy(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    # what an index picks is new: a write to it is lost, an assignment through the subscript is not
    x[index].add_(1000)
    picked = x[index]
    picked.mul_(2)
    x[index] += 1
    return picked, x[:, index] * 1


@program("index_with_gaps", lambda: (counting(3, 4, 2), torch.tensor([3, 1]), counting(3, 2, 2)))
def index_with_gaps(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    # dims without an index, before and between
    x[:, index] = source
    aten.index_put_(x.transpose(1, 2), [None, None, index], source + 50)
    x[index[1:], :, index[1:] - 1] = source[0, 0, 1]
    return x[1]


@program("index_accumulates_in_a_view", lambda: (counting(4, 4), torch.tensor([1, 1, 0, 1]), counting(4, 2)))
def index_accumulates_in_a_view(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    # a place that is named three times receives three times
    y = x + 1
    y[1:, ::2].index_put_((index,), source, accumulate=True)
    y.t().index_add_(0, index, x)
    return y


@program("index_from_what_is_written", lambda: (counting(5, dtype=torch.int64) - 1,))
def index_from_what_is_written(x: Tensor) -> Tensor:
    # the index is read before the write, as are the values
    x[x.flip(0)] = x * 10
    y = x.clone()
    y[x[:2] // 20] += 1
    return y


@program("flags_choose_what_is_written", lambda: (counting(3, 4), counting(3, 4) > 2, counting(12)))
def flags_choose_what_is_written(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    # masks on views: a number held by a tensor, elements in order
    x.t().masked_fill_(mask.t(), source[3])
    x[1:].masked_scatter_(~mask[1:], source)
    mask[0].logical_or_(x[0] > 1)
    x[0].masked_fill_(mask[0], -1)
    return x * mask


@program("elements_put_by_position", lambda: (counting(4, 3).t(), torch.tensor([0, 5, 5, 11]), counting(4)))
def elements_put_by_position(x: Tensor, where: Tensor, source: Tensor) -> Tensor:
    # positions count over the elements of the view, in its own order
    taken = x.take(where)
    x.put_(where, source, accumulate=True)
    x[1:].put_(where[:2], taken[2:])
    return taken.add_(x.take(where))


@program("reduced_into_rows", lambda: (counting(4, 3), torch.tensor([1, 1, 2]), counting(3, 3)))
def reduced_into_rows(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    # reductions by index, through views of either side
    x[:3].index_reduce_(0, index, source.t(), "amax")
    x.t().scatter_add_(1, index.expand(3, 3), source)
    x[0].scatter_reduce_(0, index, source[1], "prod", include_self=False)
    return x + 1


@program("gathered_and_scattered_back", lambda: (counting(3, 4), torch.tensor([[3, 0], [1, 2], [0, 3]])))
def gathered_and_scattered_back(x: Tensor, where: Tensor) -> Tensor:
    # what was read by index goes back elsewhere
    found = x.gather(1, where)
    found[:, 0].neg_()
    x.scatter_(1, where.flip(1), found)
    found.zero_()
    return x.sum(1)


# --- functional writes beside real ones -----------------------------------------------------------------


@program("functional_and_real_writes", tensors((4, 4), (4,)))
def functional_and_real_writes(x: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    # the functional forms make new tensors, which are then written for real
    y = torch.select_scatter(x, row, 0, 1)
    x[1].zero_()
    y[1].add_(1)
    z = torch.diagonal_scatter(y, x[0])
    y.mul_(2)
    z.diagonal().sub_(5)
    return z, y


@program("functional_write_of_a_written_part", tensors((5, 3)))
def functional_write_of_a_written_part(x: Tensor) -> Tensor:
    # the part that goes back was written through its own name first
    part = x[1:4].clone()
    part[0].neg_()
    y = torch.slice_scatter(x, part, 0, 1, 4)
    part.zero_()
    return torch.select_scatter(y, x[:, 0], 1, 2).add_(part.sum())


@program("functional_write_by_strides", tensors((3, 4), (2, 2)))
def functional_write_by_strides(x: Tensor, y: Tensor) -> Tensor:
    # a scatter by strides into an intermediate that is written before and after
    z = x * 1
    z[0].neg_()
    w = torch.as_strided_scatter(z, y, (2, 2), (4, 1))
    z.zero_()
    w[2].add_(z[0])
    return w


# --- dtypes ---------------------------------------------------------------------------------------------


@program("whole_numbers_in_place", lambda: (counting(6, dtype=torch.int32), counting(6, dtype=torch.int64, start=2)))
def whole_numbers_in_place(x: Tensor, y: Tensor) -> Tensor:
    # operators on whole numbers, with operands of other dtypes
    x.add_(True).mul_(y)
    x[1:4] //= 2
    x[::2].pow_(2).remainder_(y[::2])
    x.div_(y, rounding_mode="floor").bitwise_left_shift_(1)
    x[5:].eq_(y[5:])
    return x - y


@program("flags_in_place", lambda: (counting(6) > 2, counting(6), counting(6, dtype=torch.uint8) - 1))
def flags_in_place(mask: Tensor, x: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    # flags are numbers of one bit, and everything that is written to them becomes one
    mask |= x > 2.1
    mask[1:3] ^= mask[3:5]
    mask[0:1].fill_(3)
    mask[4:].copy_(x[4:] - 2)
    x.logical_and_(mask)
    small.sub_(3).masked_fill_(mask, 9)
    return mask, small


@program("flags_as_bytes", lambda: (torch.tensor([True, False, True, False]),))
def flags_as_bytes(mask: Tensor) -> Tensor:
    # the same memory under another dtype
    y = mask & True
    y.view(torch.uint8)[1:3].bitwise_xor_(1)
    mask.view(torch.uint8).sub_(mask.view(torch.uint8))
    return y


@program("bits_filled", tensors((2, 4)))
def bits_filled(x: Tensor) -> tuple[Tensor, Tensor]:
    # a fill of an intermediate and of an input under another dtype
    y = x * 2
    y.view(torch.int32)[1].fill_(1065353216)
    x.view(torch.int16)[:, 1::2].fill_(16256)
    return y, x + 0


@program("halves_and_doubles", lambda: (counting(4, dtype=torch.float16), torch.tensor(0.1, dtype=torch.float64)))
def halves_and_doubles(x: Tensor, factor: Tensor) -> Tensor:
    # a number held by a tensor does not widen what it is written to
    x.mul_(factor)
    x[1:].add_(x[:3] * 1, alpha=0.5)
    factor.add_(x[0])
    return x.double().sub_(factor)


@program("parts_of_complex_numbers", lambda: (_complex(2, 3), counting(2, 3)))
def parts_of_complex_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # pairs of reals under complex numbers, written on both levels
    z = x * 1
    torch.view_as_real(z)[..., 1].neg_()
    z[0].mul_(1j)
    z.real.copy_(y)
    x.t().imag[1:].zero_()
    return z, torch.view_as_real(x)


@program("reals_seen_as_complex", lambda: (inside(3, 2, before=4),))
def reals_seen_as_complex(x: Tensor) -> Tensor:
    # complex numbers over an input of reals, which are written as well
    number = torch.view_as_complex(x)
    x[1].add_(1)
    number.mul_(1j)
    number.imag[2:].sub_(5)
    return x * 2


@program("conjugates_in_place", lambda: (_complex(3, 2),))
def conjugates_in_place(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # lazy conjugates are views, resolved ones copies, physical ones writes
    y = x + 1
    turned = y.mH
    turned[0].mul_(2j)
    resolved = turned.resolve_conj()
    resolved.add_(1)
    y[1].conj_physical_()
    x.conj().copy_(y)
    return y, turned, resolved
