"""How the benchmarks measure: medians, a still garbage collector, allocated bytes, tables of figures."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

REPEATS = 5


@contextlib.contextmanager
def still_collector() -> Iterator[None]:
    """No garbage collection inside, and nothing older than it is ever looked at.

    A graph of 20,000 nodes is millions of objects: a full collection in the middle of a pass costs
    more than the pass.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def median_steps(measure: Callable[[], Mapping[str, float]], repeats: int = REPEATS) -> dict[str, float]:
    """Median seconds of each step over some runs of `measure`, each with the collector still."""
    runs = []
    for _ in range(repeats):
        with still_collector():
            runs.append(measure())
    return {step: statistics.median(run[step] for run in runs) for step in runs[0]}


def interleaved_seconds(actions: Sequence[Callable[[], object]], calls: int, repeats: int = REPEATS) -> list[float]:
    """Median seconds of one call of each action; they take turns, so that a busy machine slows all alike."""
    samples: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    for _ in range(repeats):
        for action, sample in zip(actions, samples, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                action()
            sample.append((time.perf_counter() - start) / calls)
    return [statistics.median(sample) for sample in samples]


def allocated_bytes(action: Callable[[], object]) -> int:
    """Bytes that one call of `action` asks of the CPU allocator, results included, whether freed again or not."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        action()
    recorder: Any = recorded.profiler
    events = recorder.kineto_results.events()
    return sum(max(0, event.nbytes()) for event in events if event.name() == "[memory]")


def print_table(console: Console, title: str, headings: Sequence[str], rows: list[list[str]], note: str) -> None:
    """A table whose first column is text and the others figures."""
    table = Table(title=title, caption=note)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
