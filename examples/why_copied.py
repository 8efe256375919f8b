"""An optimiser pass drops a clone; the one row of it that is still needed is saved, and not the whole cache."""

from collections.abc import Callable

import torch
from torch import Tensor, fx

import reink


@torch.library.custom_op("why_copied::refill", mutates_args=("cache",))
def refill(cache: Tensor, rows: Tensor) -> None:
    """Overwrite `cache` ``[length, width]`` with `rows`, again and again."""
    cache.copy_(rows.repeat(len(cache) // len(rows), 1))


def step(cache: Tensor, rows: Tensor) -> Tensor:
    """How far row 5 moved."""
    before = cache.clone()
    refill(cache, rows)
    return cache[5] - before[5]


def drop_clones(graph: fx.Graph) -> None:
    """In a pure graph a clone is its source."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def program() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """For ``reink explain examples/why_copied.py:program``: the author's clone of all of `cache` stays."""
    return step, (torch.zeros(1024, 64), torch.ones(4, 64))


if __name__ == "__main__":
    print(reink.explain(*program(), passes=(drop_clones,)))
