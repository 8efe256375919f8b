"""A write through a view is seen by its base: the pure graph of it, and that no copy is needed to run it."""

from collections.abc import Callable

import torch
from torch import Tensor

import reink


def step(x: Tensor) -> Tensor:
    """Change `x` ``[4, 4]`` through a view, and return twice what it became."""
    y = x.view(2, 8)
    y.add_(1)
    y.relu_()
    return x * 2


def program() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """For ``reink explain examples/views.py:program``."""
    return step, (torch.linspace(-4, 4, 16).view(4, 4),)


def main() -> None:
    """Print the pure graph and the report."""
    fn, args = program()
    print(reink.functionalize(fn, args).graph_module.graph)
    print(reink.explain(fn, args))


if __name__ == "__main__":
    main()
