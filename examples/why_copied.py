"""One old row is read after the cache was overwritten: that row has to be saved, and not the whole cache."""

from collections.abc import Callable

import torch
from torch import Tensor

import reink


@torch.library.custom_op("why_copied::refill", mutates_args=("cache",))
def refill(cache: Tensor, rows: Tensor) -> None:
    """Overwrite `cache` ``[length, width]`` with `rows`, again and again."""
    cache.copy_(rows.repeat(len(cache) // len(rows), 1))


def step(cache: Tensor, rows: Tensor) -> Tensor:
    """How far row 5 moved. The copy of all of `cache` is the author's; one row of it is needed."""
    before = cache.clone()
    refill(cache, rows)
    return cache[5] - before[5]


def program() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """For ``reink explain examples/why_copied.py:program``."""
    return step, (torch.zeros(1024, 64), torch.ones(4, 64))


def main() -> None:
    """Print the report: what is copied, for which read, and what to change."""
    print(reink.explain(*program()))


if __name__ == "__main__":
    main()
