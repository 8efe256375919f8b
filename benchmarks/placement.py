"""Where copies are placed, at a size: a decode step that collects its reads, and a storage that is written very often.

The step writes a row of each layer of a cache through a custom operator and stacks what it reads of the layers at the
end, so that a compiler that sees one storage and no regions has to keep every version of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from graphs import Graph, Recorder
from measure import interleaved_seconds, median_steps, print_table, still_collector
from reink_adapter import optimum_seconds, reinplace_seconds
from rich.console import Console
from stock import stock_compiled
from torch import Tensor

import reink

aten = torch.ops.aten
LAYERS, ROWS, WIDTH = 16, 4096, 256
LENGTHS = (10_000, 50_000, 200_000)
# Writes to one storage, and old values of it that are read late.
WRITES, READERS = 100_000, 200_000
# How many writes an old value lives through at most.
LATENESS = 50


@torch.library.custom_op("reink_benchmark::store", mutates_args=("layer",))
def store(layer: Tensor, row: Tensor, position: int) -> None:
    """Write a row of a layer."""
    layer[position] = row


@store.register_fake
def _(layer: Tensor, row: Tensor, position: int) -> None:
    return None


def step(cache: Tensor, rows: Tensor) -> Tensor:
    """Write a row of each layer, and return what the first rows of all layers are then."""
    reads = []
    for layer, row in zip(cache.unbind(0), rows.unbind(0), strict=True):
        store(layer, row, 7)
        reads.append(layer[:8])
    return torch.stack(reads)


@torch.no_grad()
def run(console: Console, quick: bool) -> None:
    """Print a table for each question."""
    decode(console, 256 if quick else ROWS)
    lengths(console, LENGTHS[:1] if quick else LENGTHS)
    late_readers(console, 10 if quick else 1)


def decode(console: Console, count: int) -> None:
    """The step: time relative to eager."""
    cache, rows = torch.randn(LAYERS, count, WIDTH), torch.randn(LAYERS, WIDTH)
    stock_step = stock_compiled(step, (cache, rows), "aot_eager", "v2")
    compiled = reink.compile(step, codegen="eager")
    variants: list[Callable[[], object]] = [lambda: step(cache, rows), lambda: compiled(cache, rows)]
    with console.status("step"):
        eager, ours = interleaved_seconds(variants, calls=20)
        (stock,) = interleaved_seconds([lambda: stock_step(cache, rows)], calls=1, repeats=3)
    copied = compiled.reports[0].bytes_cloned
    figures = [f"{eager * 1e6:.0f} us", f"{ours / eager:.2f}", f"{stock / eager:.0f}", f"{copied} B"]
    headings = ("cache", "eager", "reink / eager", "aot_eager v2 / eager", "reink copies")
    print_table(console, "16 layers, reads collected", headings, [[f"{cache.nbytes >> 20} MiB", *figures]], "")


def lengths(console: Console, nodes: tuple[int, ...]) -> None:
    """Microseconds of re-inplacing for each captured node; every fourth node writes the one storage."""
    first, rows = 0.0, []
    for length in nodes:
        with console.status(f"{length:,} nodes"):
            graph = one_in_four(length // 4)
            seconds = median_steps(lambda graph=graph: {"reinplace": reinplace_seconds(graph.module)}, repeats=3)
        cost = seconds["reinplace"] / graph.nodes * 1e6
        first = first or cost
        rows.append([f"{graph.nodes:,}", f"{length // 4:,}", f"{cost:.1f}", f"{cost / first:.2f}"])
    headings = ("nodes", "writes to one storage", "reinplace us/node", "growth")
    print_table(console, "many writes to one storage", headings, rows, "reinplace alone, median of three")


def one_in_four(writes: int) -> Graph:
    """Adds to rows of one input, each of what two operators make."""
    recorder = Recorder((torch.zeros(writes, 8), torch.ones(8)))
    table, value = recorder.placeholders
    for i in range(writes):
        row = recorder.call(aten.select.int, table, 0, i)
        scaled = recorder.call(aten.relu.default, recorder.call(aten.mul.Tensor, value, i))
        recorder.call(aten.add_.Tensor, row, scaled)
    return recorder.finish(recorder.call(aten.mul.Tensor, table, 2))


def late_readers(console: Console, part: int) -> None:
    """Seconds to find the fewest bytes for very many old values that are read late."""
    rng = random.Random(0)
    writes, readers = WRITES // part, READERS // part
    detaching = [rng.randrange(1, 4096) for _ in range(writes)]
    kept = []
    for _ in range(readers):
        born = rng.randrange(writes)
        kept.append((born, min(writes - 1, born + rng.randrange(LATENESS)), rng.randrange(1, 256)))
    with console.status("late readers"), still_collector():
        seconds = optimum_seconds(detaching, kept)
    headings = ("writes", "late readers", "seconds")
    print_table(console, "the optimum", headings, [[f"{writes:,}", f"{readers:,}", f"{seconds:.2f}"]], "random values")
