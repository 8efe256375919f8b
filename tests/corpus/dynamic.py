"""Sizes and offsets that are known only at run time."""

from __future__ import annotations

import torch
from support.operators import ops
from torch import Tensor

from corpus.registry import counting, program, tensors


@program("row_of_dynamic_input", tensors((5, 4)), dynamic_dims=((0, 0), (0, 1)), calls=(tensors((7, 6)),))
def row_of_dynamic_input(x: Tensor) -> Tensor:
    y = x + 1
    ops.bump(y[2])
    ops.bump(y[:, 1:3])
    return y * 2


@program("dynamic_halves", tensors((6, 3)), dynamic=True, calls=(tensors((8, 5)), tensors((3, 2))))
def dynamic_halves(x: Tensor) -> Tensor:
    half = x.shape[0] // 2
    x[:half].add_(1)
    ops.bump(x[half:])
    return x[1:] - x[:-1]


@program("middle_third_of_fresh_buffer", tensors((4, 2)), dynamic=True, calls=(tensors((5, 2)),))
def middle_third_of_fresh_buffer(x: Tensor) -> Tensor:
    # pytorch#198068: the offset of the written view is symbolic
    count = x.shape[0]
    buffer = torch.zeros(3 * count, 2)
    ops.absorb(buffer[count : 2 * count], x)
    return buffer


@program("diagonal_of_a_dynamic_square", tensors((3, 3)), dynamic=True, calls=(tensors((3, 3)),))
def diagonal_of_a_dynamic_square(x: Tensor) -> Tensor:
    # the sizes were symbols until the operator asked for a square
    y = x + 1
    y.fill_diagonal_(3)
    return y


@program("buffer_of_summed_size", tensors((4, 2), (3, 2)), dynamic=True, calls=(tensors((2, 2), (5, 2)),))
def buffer_of_summed_size(x: Tensor, y: Tensor) -> Tensor:
    buffer = x.new_zeros(x.shape[0] + y.shape[0], 2)
    ops.absorb(buffer[: x.shape[0]], x)
    ops.absorb(buffer[x.shape[0] :], y)
    return buffer * 1


@program("dynamic_layers", tensors((2, 6, 3)), dynamic_dims=((0, 1),), calls=(tensors((2, 9, 3)),))
def dynamic_layers(cache: Tensor) -> Tensor:
    ops.lower_and_scale(cache[0], cache[1])
    return cache[0] + cache[1]


@program(
    "dynamic_offset_input",
    lambda: (counting(9, 3)[2:7],),
    dynamic=True,
    calls=(lambda: (counting(9, 3)[4:8],),),
)
def dynamic_offset_input(x: Tensor) -> Tensor:
    ops.bump(x[1:3])
    return x.t() * 2


@program("length_from_a_tensor", lambda: (counting(6, 3), torch.tensor(4)), scalars=True, zero_extra=False)
def length_from_a_tensor(x: Tensor, length: Tensor) -> Tensor:
    count = length.item()
    torch._check(count >= 0)
    torch._check(count <= 6)
    ops.bump(x.narrow(0, 0, int(count)))
    return x * 2


@program("index_from_a_tensor", lambda: (counting(6, 3), torch.tensor(4)), scalars=True, zero_extra=False)
def index_from_a_tensor(x: Tensor, at: Tensor) -> Tensor:
    row = at.item()
    torch._check(row >= 0)
    torch._check(row < 6)
    y = x + 1
    ops.bump(y.select(0, int(row)))
    return y


@program("number_argument", lambda: (counting(5), 3), calls=(lambda: (counting(5), 4), lambda: (counting(5), 2)))
def number_argument(x: Tensor, at: int) -> Tensor:
    x[at] = at * 10
    x[:at].mul_(2)
    return x


@program("float_argument", lambda: (counting(5), 0.5), calls=(lambda: (counting(5), 0.25),), zero_extra=False)
def float_argument(x: Tensor, rate: float) -> Tensor:
    x.mul_(rate).add_(1, alpha=rate)
    return x


@program("number_result", tensors((4, 3)), dynamic=True)
def number_result(x: Tensor) -> tuple[int, Tensor]:
    x.t().add_(1)
    return x.shape[0] * 2, x.flatten()[x.shape[0] :]


@program("dynamic_flat_view", tensors((4, 6)), dynamic=True, calls=(tensors((3, 8)),))
def dynamic_flat_view(x: Tensor) -> Tensor:
    x.view(-1)[x.shape[1] : 2 * x.shape[1]].zero_()
    x.view(x.shape[0], 2, -1)[:, 1].add_(5)
    return x.sum(0)


@program("dynamic_comb", tensors((9,)), dynamic=True, calls=(tensors((12,)),))
def dynamic_comb(x: Tensor) -> Tensor:
    ops.bump(x[::3])
    x[1::3].copy_(x[::3])
    return x * 1


@program("dynamic_last_element", tensors((5, 2)), dynamic=True, calls=(tensors((8, 2)),))
def dynamic_last_element(x: Tensor) -> Tensor:
    y = x * 2
    y[-1].sub_(y[0])
    return y


@program("flat_view_of_symbolic_size", tensors((3, 2)), dynamic=True, calls=(tensors((4, 3)),))
def flat_view_of_symbolic_size(x: Tensor) -> Tensor:
    flat = x.flatten(0, 1)
    ops.absorb(flat[1], flat[1])
    return flat.select(-1, 0) + 1


@program(
    "twin_that_cannot_be_traced",
    tensors((4, 3), (4, 1)),
    dynamic=True,
    calls=(tensors((5, 3), (5, 1)),),
    zero_extra=False,  # 96 bytes that Dynamo's own back end "eager" allocates as well
)
def twin_that_cannot_be_traced(x: Tensor, y: Tensor) -> Tensor:
    # the fake kernel of addcmul refuses to broadcast symbolic sizes, that of addcmul_ does not
    y.addcmul_(x.sum().sign(), x.sum(), value=2)
    return x
