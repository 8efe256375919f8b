"""A custom operator writes one layer of a cache after another, and every layer is read: no copy."""

from collections.abc import Callable

import torch
from torch import Tensor

import reink


@torch.library.custom_op("kv_cache::append", mutates_args=("cache",))
def append(cache: Tensor, rows: Tensor, position: int) -> None:
    """Write `rows` ``[n, width]`` into `cache` ``[length, width]`` from `position` on."""
    cache[position : position + len(rows)] = rows


def step(cache: Tensor, x: Tensor) -> Tensor:
    """One step over all layers of `cache` ``[layers, length, width]`` with `x` ``[n, width]``."""
    for layer in cache:
        append(layer, x, 3)
        x = torch.softmax(x @ layer.t(), dim=-1) @ layer
    return x


def program() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """For ``reink explain examples/kv_cache.py:program``."""
    return step, (torch.zeros(4, 64, 32), torch.ones(2, 32))


def main() -> None:
    """Print the report."""
    print(reink.explain(*program()))


if __name__ == "__main__":
    main()
