"""What surrounds a step in an engine: which blocks belong to which sequence, and what a step costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from decoder.model import Batch, Sizes

AnyStep = Callable[[Batch, Tensor], object]


class Pages:
    """The blocks of each sequence: scattered over the cache on purpose, as after hours of serving."""

    def __init__(self, sizes: Sizes, sequences: int) -> None:
        most = sizes.positions // sizes.block_size
        self.block_size = sizes.block_size
        self.table = torch.randperm(sizes.blocks)[: sequences * most].view(sequences, most)

    def prompt(self, tokens: Tensor, sequence: int) -> Batch:
        """All tokens of one new sequence."""
        positions = torch.arange(len(tokens))
        blocks = self.table[sequence : sequence + 1]
        slots = self._slots(blocks[0, positions // self.block_size], positions)
        return Batch(tokens, positions, slots, blocks, torch.tensor([len(tokens)]))

    def next_tokens(self, tokens: Tensor, lengths: Tensor) -> Batch:
        """One more token of every sequence; `lengths` counts the tokens before it."""
        block = self.table[torch.arange(len(lengths)), lengths // self.block_size]
        return Batch(tokens, lengths, self._slots(block, lengths), self.table, lengths + 1)

    def _slots(self, block: Tensor, positions: Tensor) -> Tensor:
        return block * self.block_size + positions % self.block_size


def median_seconds(step: AnyStep, batch: Batch, cache: Tensor, repeats: int = 5) -> float:
    """Seconds of a step that has run before; every repetition writes the same bytes again."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        step(batch, cache)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def allocated(step: AnyStep, batch: Batch, cache: Tensor) -> int:
    """Bytes that one step asks of the allocator, whether freed again or not."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step(batch, cache)
    events = recorded.profiler.kineto_results.events()
    return sum(max(0, event.nbytes()) for event in events if event.name() == "[memory]")
