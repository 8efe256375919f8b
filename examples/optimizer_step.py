"""Two optimizers as foreach in-place ops: every state is written where it lies."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import reink


def sgd(weights: list[Tensor], gradients: list[Tensor], momenta: list[Tensor]) -> None:
    """Stochastic gradient descent with momentum 0.9."""
    torch._foreach_mul_(momenta, 0.9)
    torch._foreach_add_(momenta, gradients)
    torch._foreach_add_(weights, momenta, alpha=-0.01)


def adam(weights: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor]) -> None:
    """The first step of Adam; both bias corrections are in the step size."""
    torch._foreach_lerp_(means, gradients, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
    scales = torch._foreach_add(torch._foreach_sqrt(squares), 1e-8)
    torch._foreach_addcdiv_(weights, means, scales, -0.001 * 0.001**0.5 / 0.1)


def program(step: Callable[..., None] = adam, states: int = 2) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """For ``reink explain examples/optimizer_step.py:program``."""
    return step, tuple([torch.ones(8, 8), torch.ones(8)] for _ in range(2 + states))


def main() -> None:
    """Print both reports."""
    print(reink.explain(*program(sgd, states=1)), reink.explain(*program(adam)), sep="\n")


if __name__ == "__main__":
    main()
