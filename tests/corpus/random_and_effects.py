"""Random numbers, operators with effects, and running statistics: what must keep its order."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from support.operators import JOURNAL, ops
from torch import Tensor
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from corpus.registry import counting, program, tensors


def join_fake_group() -> None:
    """Make this process believe that it is one of two."""
    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())


def _in_a_fake_group() -> tuple[Any, ...]:
    join_fake_group()
    return counting(3, 4), counting(4, 2)


def _journal() -> list[float]:
    return list(JOURNAL)


@program("random_fill_of_a_band", tensors((5, 3)))
def random_fill_of_a_band(x: Tensor) -> tuple[Tensor, Tensor]:
    x[1:4].uniform_(4, 5)
    return x[1:4].clone(), x[0] * 1


@program("several_generators_in_a_row", tensors((6,)))
def several_generators_in_a_row(x: Tensor) -> Tensor:
    y = torch.rand(6)
    x.normal_()
    z = torch.randn_like(x)
    y.bernoulli_(0.5)
    x[::2].exponential_()
    return x + y + z + torch.randint(0, 9, (6,))


def _laid_out() -> tuple[Tensor, ...]:
    x = counting(400)
    return x[:36].view(6, 6).t(), x.as_strided((6, 6), (3, 54), 40), torch.zeros(6, 6)


@program("random_fills_in_the_order_of_strides", _laid_out)
def random_fills_in_the_order_of_strides(x: Tensor, gaps: Tensor, sink: Tensor) -> Tensor:
    # the pure twin of bernoulli_ draws in another order where its operand is not contiguous
    x.bernoulli_()
    old = gaps.clone()
    gaps.normal_()
    sink.add_(old).add_(gaps)
    y = (sink * 1).t()
    y[:, 1:4].bernoulli_(0.3)
    y[:, 4:].geometric_(0.5)
    return y + x


@program("dropout_in_place", tensors((4, 6)))
def dropout_in_place(x: Tensor) -> Tensor:
    y = x * 1
    functional.dropout(y[1:3], 0.5, training=True, inplace=True)
    return y + torch.rand(6)


@program("random_custom_operator", tensors((5,)))
def random_custom_operator(x: Tensor) -> Tensor:
    ops.jitter(x[1:])
    y = torch.rand(5)
    ops.jitter(y)
    return x + y


@program("journal_between_writes", tensors((4,)), state=_journal, reset=JOURNAL.clear)
def journal_between_writes(x: Tensor) -> Tensor:
    ops.note(x)
    x.add_(1)
    ops.note(x[1:])
    ops.bump(x)
    ops.note(x)
    return x * 2


@program("journal_of_views_and_temporaries", tensors((3, 3)), state=_journal, reset=JOURNAL.clear)
def journal_of_views_and_temporaries(x: Tensor) -> None:
    y = x * 2
    ops.note(y)
    y[0].zero_()
    ops.note(y)
    ops.note(x)
    x.copy_(y)


@program("operator_that_admits_nothing", tensors((4,), (4,)))
def operator_that_admits_nothing(x: Tensor, y: Tensor) -> Tensor:
    # pytorch#187319: no return, no declared write; it may write all that it is given
    ops.quiet_write(x * 2, y)
    return y + 1


@program("batch_norm_statistics", lambda: (counting(4, 3), torch.zeros(3), torch.ones(3)))
def batch_norm_statistics(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, variance, training=True, momentum=0.5)


@program("batch_norm_without_training", lambda: (counting(4, 3), torch.zeros(3), torch.ones(3)))
def batch_norm_without_training(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    mean.add_(1)
    return functional.batch_norm(x, mean, variance, training=False)


@program("batch_norm_module", tensors((5, 3)))
class Normalised(torch.nn.Module):
    """Batch norm that counts its batches, between two in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.act(x - 3)))  # type: ignore[no-any-return]


@program("instance_norm_statistics", lambda: (counting(2, 3, 4), torch.zeros(3), torch.ones(3)), zero_extra=False)
def instance_norm_statistics(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return functional.instance_norm(x, mean, variance, use_input_stats=True, momentum=0.25)


@program("step_counter", lambda: (torch.tensor(0), counting(3)), calls=(lambda: (torch.tensor(7), counting(3)),))
def step_counter(step: Tensor, x: Tensor) -> Tensor:
    step += 1
    x /= step
    return x.exp2_().clamp_(0, 50)


@program("activations_in_place", tensors((4, 4)))
def activations_in_place(x: Tensor) -> Tensor:
    y = x @ x
    functional.relu_(y[0])
    functional.leaky_relu_(y[1:], 0.1)
    functional.elu_(y[:, 2])
    functional.hardtanh_(y[3], 0, 20)
    y.sigmoid_().neg_()
    return functional.silu(y, inplace=True)


@program("fixed_weight_embedding", lambda: (torch.tensor([1, 3, 1]), counting(5, 4)), zero_extra=False)
def fixed_weight_embedding(index: Tensor, table: Tensor) -> Tensor:
    # max_norm rescales the rows it looks up, in place
    return functional.embedding(index, table, max_norm=2.0) * 2


@program("reduction_over_a_group", _in_a_fake_group, zero_extra=False)
def reduction_over_a_group(x: Tensor, weight: Tensor) -> Tensor:
    # pytorch#134388
    y = x @ weight
    dist.all_reduce(y)
    return y.relu_()
