"""Strides, memory formats and changes of layout: an in-place result keeps the layout of its destination."""

from __future__ import annotations

import torch
from support.operators import ops
from torch import Tensor

from corpus.registry import counting, inside, program, tensors


@program("strided_result_keeps_strides", lambda: (counting(12, dtype=torch.int64)[::3],))
def strided_result_keeps_strides(x: Tensor) -> tuple[Tensor, int]:
    # pytorch#133512: an op that looks at strides comes after the write
    x.mul_(10)
    return torch.as_strided_copy(x, (2,), (3,)), x.stride(0)


@program("transposed_input", lambda: (counting(4, 6).t(),))
def transposed_input(x: Tensor) -> Tensor:
    ops.bump(x[1:4])
    return x * 2


@program("transposed_source_contiguous_destination", lambda: (counting(4, 6), counting(6, 4).t()))
def transposed_source_contiguous_destination(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x + 1
    z.add_(y)
    w = y * 2
    w.sub_(x)
    return z, w


@program("channels_last", lambda: (counting(2, 4, 3, 3).to(memory_format=torch.channels_last),))
def channels_last(x: Tensor) -> Tensor:
    y = x + 1
    ops.bump(y[:, 1:3])
    y.relu_()
    return y * 2


@program("channels_last_input", lambda: (counting(2, 4, 3, 3).to(memory_format=torch.channels_last),))
def channels_last_input(x: Tensor) -> Tensor:
    x[:, 2].mul_(2)
    return x.contiguous() + 1


@program("gapped_intermediate", tensors((4, 6)))
def gapped_intermediate(x: Tensor) -> Tensor:
    y = torch.empty_strided((3, 2), (8, 3))
    y.copy_(x[:3, :2])
    y.neg_()
    return y


@program("in_place_broadcast", tensors((3, 4), (4,)))
def in_place_broadcast(x: Tensor, row: Tensor) -> Tensor:
    y = x.t() * 1
    y.add_(row.unsqueeze(1))
    return y


@program("comparison_into_destination", lambda: (counting(3, 4).t(), counting(4, 3)))
def comparison_into_destination(x: Tensor, y: Tensor) -> Tensor:
    x.gt_(y)
    return x


@program("stride_zero_input_read", lambda: (counting(1, 4).expand(3, 4), counting(3, 4)))
def stride_zero_input_read(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(x)
    return y + x


@program("stride_zero_input_written_by_operator", lambda: (counting(1, 4).expand(5, 4),), may_refuse=True)
def stride_zero_input_written_by_operator(x: Tensor) -> Tensor:
    # every row is the same memory, and the operator writes it once
    ops.first_row(x[0:2])
    return x * 2


@program("stride_zero_element_written", lambda: (counting(2, 3).as_strided((2, 1), (1, 0)),), may_refuse=True)
def stride_zero_element_written(x: Tensor) -> Tensor:
    # pytorch#153861
    x[0] = x[0] + 1
    return x


@program("size_one_dim_with_odd_stride", lambda: (inside(12).as_strided((3, 1, 2), (2, 17, 1), 5),))
def size_one_dim_with_odd_stride(x: Tensor) -> Tensor:
    x.squeeze(1).add_(1)
    return x


@program("unsqueeze_in_place", tensors((3, 4)), may_refuse=True)
def unsqueeze_in_place(x: Tensor) -> Tensor:
    y = x + 1
    y.unsqueeze_(1)
    y.add_(1)
    return y


@program("transpose_in_place", tensors((3, 4)), may_refuse=True)
def transpose_in_place(x: Tensor) -> Tensor:
    y = x + 1
    row = y[0]
    y.t_()
    y[1].mul_(2)
    return y + row[0]


@program("input_transposed_in_place", tensors((3, 4)), may_refuse=True, fullgraph=False, zero_extra=False)
def input_transposed_in_place(x: Tensor) -> Tensor:
    x.t_()
    x[0].add_(1)
    return x * 2


@program("fresh_tensor_resized", tensors((4,)), may_refuse=True, fullgraph=False, zero_extra=False)
def fresh_tensor_resized(x: Tensor) -> Tensor:
    y = torch.empty(0)
    y.resize_(4)
    y.copy_(x)
    return y + 1


@program("view_resized", tensors((3,)), may_refuse=True, fullgraph=False, zero_extra=False)
def view_resized(x: Tensor) -> Tensor:
    # pytorch#191449: only the view changes its size; the base grows in memory and not in shape
    base = x + 1
    base.view(-1).resize_(2)
    return base + 1


@program("fill_diagonal", tensors((4, 4)))
def fill_diagonal(x: Tensor) -> Tensor:
    x.fill_diagonal_(0)
    return x.t() @ x


@program("triangle_in_place", lambda: (counting(4, 4).t(),))
def triangle_in_place(x: Tensor) -> Tensor:
    x.tril_(-1)
    return x + 1
