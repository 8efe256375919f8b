"""Lists of tensors written by one call, and the steps of optimisers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corpus.registry import counting, inside, program


def _lists(count: int, length: int = 3) -> tuple[Any, ...]:
    return tuple([counting(4, 2, start=1 + 20 * i + 5 * k) for k in range(length)] for i in range(count))


def _rows_of_one_storage() -> tuple[Any, ...]:
    return list(counting(4, 3).unbind(0)), [counting(3) for _ in range(4)]


def _with_a_duplicate() -> tuple[Any, ...]:
    a, b = counting(3), counting(3, start=30)
    return ([a, b, a],)


@program("momentum_step", lambda: _lists(3))
def momentum_step(parameters: list[Tensor], gradients: list[Tensor], moments: list[Tensor]) -> None:
    torch._foreach_mul_(moments, 0.9)
    torch._foreach_add_(moments, gradients, alpha=0.1)
    torch._foreach_add_(parameters, moments, alpha=-0.01)


@program("adam_step_by_lists", lambda: _lists(4), zero_extra=False)
def adam_step_by_lists(ps: list[Tensor], gs: list[Tensor], ms: list[Tensor], vs: list[Tensor]) -> None:
    torch._foreach_lerp_(ms, gs, 0.1)
    torch._foreach_mul_(vs, 0.99)
    torch._foreach_addcmul_(vs, gs, gs, 0.01)
    roots = torch._foreach_sqrt(vs)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(ps, ms, roots, -0.001)


@program("adam_step_one_by_one", lambda: _lists(4, 1), zero_extra=False)
def adam_step_one_by_one(ps: list[Tensor], gs: list[Tensor], ms: list[Tensor], vs: list[Tensor]) -> None:
    # Dynamo itself takes addcmul_ apart, at the cost of a product
    for p, g, m, v in zip(ps, gs, ms, vs, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.99).addcmul_(g, g.conj(), value=0.01)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.001)


@program("rows_of_one_storage", _rows_of_one_storage)
def rows_of_one_storage(rows: list[Tensor], others: list[Tensor]) -> Tensor:
    torch._foreach_add_(rows, others)
    torch._foreach_neg_(rows[1:])
    return rows[0] + rows[3]


@program("one_tensor_twice_in_a_list", _with_a_duplicate)
def one_tensor_twice_in_a_list(xs: list[Tensor]) -> Tensor:
    torch._foreach_mul_(xs, 2)
    return xs[0] + xs[2]


@program("list_copied_onto_list", lambda: _lists(2))
def list_copied_onto_list(xs: list[Tensor], ys: list[Tensor]) -> None:
    torch._foreach_copy_(xs, ys)
    torch._foreach_zero_(ys[:2])


@program("views_in_a_list", lambda: (inside(6, 4),))
def views_in_a_list(x: Tensor) -> Tensor:
    torch._foreach_add_([x[0], x[2:4], x[5, 1:3]], 10)
    torch._foreach_mul_(list(x.split(2)), [1.0, 2.0, 3.0])
    return x.sum(1)


@program("clipped_by_norm", lambda: _lists(1))
def clipped_by_norm(gradients: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(gradients)
    total: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    torch._foreach_mul_(gradients, (5 / (total + 1e-6)).clamp(max=1.0))
    return total


@program("averaged_weights", lambda: _lists(2), zero_extra=False)
def averaged_weights(average: list[Tensor], current: list[Tensor]) -> list[Tensor]:
    # Dynamo itself takes _foreach_lerp_ apart, at the cost of a difference
    torch._foreach_lerp_(average, current, 0.25)
    return [a[1:] for a in average]


@program("lists_of_scalars_and_maxima", lambda: _lists(2))
def lists_of_scalars_and_maxima(xs: list[Tensor], ys: list[Tensor]) -> Tensor:
    torch._foreach_maximum_(xs, ys)
    torch._foreach_sub_(ys, [1.0, 2.0, 3.0])
    torch._foreach_clamp_max_(xs, 25)
    return xs[0] + ys[2]
