"""Training, control flow, function transforms and broken contracts.

Reink may leave these to stock PyTorch or refuse them with a coded error; it may not answer wrongly.
"""

from __future__ import annotations

from typing import Any

import torch
from support.operators import ops
from torch import Tensor

from corpus.registry import counting, program, tensors


def _trained(*others: Tensor) -> tuple[Tensor, ...]:
    return counting(4).requires_grad_(), *others


@program(
    "buffer_beside_a_weight",
    lambda: _trained(counting(3, 4)),
    grad_mode="grad",
    handed_over=True,
    zero_extra=False,
)
def buffer_beside_a_weight(weight: Tensor, buffer: Tensor) -> Tensor:
    ops.bump(buffer[1])
    return (weight * buffer).sum()


@program("one_tensor_twice_in_a_list", _trained, grad_mode="grad", handed_over=True, zero_extra=False)
def one_tensor_twice_in_a_list(leaf: Tensor) -> Tensor:
    y = leaf * 1
    torch._foreach_mul_([y, y], 2)
    return y


@program("gradient_through_a_write", _trained, grad_mode="grad", handed_over=True, zero_extra=False)
def gradient_through_a_write(leaf: Tensor) -> tuple[Tensor, Tensor]:
    # pytorch#128035
    y = leaf * 2
    aside = y.detach()
    y[1:].mul_(3)
    return y, aside


@program("random_numbers_beside_a_weight", lambda: _trained(counting(4)), grad_mode="grad", handed_over=True)
def random_numbers_beside_a_weight(leaf: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    noise[1:].bernoulli_()
    return (leaf * 2).sum(), noise * 1


@program("gradient_through_views", _trained, grad_mode="grad", handed_over=True, zero_extra=False)
def gradient_through_views(leaf: Tensor) -> Tensor:
    grid = torch.zeros(3, 4)
    grid[1] = leaf
    grid.t()[2].add_(leaf[0])
    return grid * grid


class Visits(torch.autograd.Function):
    """The identity; adds one to a counter in the forward pass and twenty in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counter: Tensor) -> Tensor:
        counter.add_(1)
        ctx.counter = counter
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.counter.add_(20)
        return gradients[0], None


@program(
    "counter_in_both_passes",
    lambda: _trained(torch.zeros(4)),
    grad_mode="grad",
    handed_over=True,
    may_refuse=True,
    zero_extra=False,
)
def counter_in_both_passes(x: Tensor, counter: Tensor) -> Tensor:
    # pytorch#154820
    apply: Any = Visits.apply
    visited: Tensor = apply(x, counter)
    return visited * counter


class Watched(torch.autograd.Function):
    """Doubles; its backward pass adds the size of the gradient to a saved tensor by a mutable operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, statistic: Tensor) -> Tensor:
        ctx.save_for_backward(statistic)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (statistic,) = ctx.saved_tensors
        ops.absorb(statistic, gradients[0].abs().mean())
        return gradients[0] * 2, None


@program(
    "statistic_in_backward_pass",
    lambda: _trained(torch.zeros(1)),
    grad_mode="grad",
    handed_over=True,
    may_refuse=True,
    zero_extra=False,
)
def statistic_in_backward_pass(x: Tensor, statistic: Tensor) -> Tensor:
    # pytorch#178622
    apply: Any = Watched.apply
    doubled: Tensor = apply(x, statistic)
    return doubled


@program(
    "write_that_needs_no_gradient",
    lambda: (counting(3), counting(4).requires_grad_()),
    grad_mode="grad",
    handed_over=True,
    zero_extra=False,
)
def write_that_needs_no_gradient(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        weight.mul_(0.5)
    x.add_(1)
    return x * 2, weight.sum()


@program("gradient_transform_then_write", tensors((3,), (3,)), handed_over=True, may_refuse=True, zero_extra=False)
def gradient_transform_then_write(x: Tensor, sink: Tensor) -> Tensor:
    ops.absorb(sink, torch.func.grad(lambda z: (z * z).sum())(x))
    return sink * 1


@program(
    "operator_that_swaps_storage",
    lambda: (torch.empty(0), counting(3, 2)),
    handed_over=True,
    may_refuse=True,
    zero_extra=False,
)
def operator_that_swaps_storage(x: Tensor, y: Tensor) -> Tensor:
    # pytorch#139257: not a write of data
    ops.swap_memory(x, y * 3)
    return x / 2


@program("operator_that_returns_a_view", tensors((5,)), handed_over=True, may_refuse=True, zero_extra=False)
def operator_that_returns_a_view(x: Tensor) -> Tensor:
    # pytorch#180620: the schema promises a fresh result
    head: Tensor = ops.head(x, 2)
    return head + 1


@program("graph_break_between_writes", tensors((4,)), fullgraph=False, zero_extra=False)
def graph_break_between_writes(x: Tensor) -> Tensor:
    x[1:].add_(1)
    torch._dynamo.graph_break()
    x[:2].mul_(2)
    return x + 1
