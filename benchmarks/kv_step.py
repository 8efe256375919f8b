"""A decode step of the example decoder, as usual and the unlucky way: time relative to eager.

Unlucky means that rows of each layer are read in turn and stacked at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import torch
from decoder.model import Batch, Decoder, Sizes
from decoder.serving import Pages
from measure import interleaved_seconds, print_table
from rich.console import Console
from torch import Tensor

import reink

HEADINGS = ("step", "reink / eager", "aot_eager / eager", "aot_eager / reink", "eager")
SEQUENCES = 4


@torch.no_grad()
def run(console: Console, quick: bool) -> None:
    """Print one table, a row for each way to write the step."""
    torch.manual_seed(0)
    sizes = Sizes(layers=4, blocks=256) if quick else Sizes()
    model = Decoder(sizes)
    cache = model.new_cache()
    lengths = torch.tensor([7, 19, 33, 60])
    batch = Pages(sizes, SEQUENCES).next_tokens(torch.arange(SEQUENCES), lengths)
    ways = {"usual": model.decode, "unlucky": model.decode_and_collect}
    rows = [row(console, name, step, batch, cache) for name, step in ways.items()]
    print_table(console, f"decode step, cache {cache.nbytes >> 20} MiB", HEADINGS, rows, "eager copies no cache")


def row(console: Console, name: str, step: Callable[[Batch, Tensor], object], batch: Batch, cache: Tensor) -> list[str]:
    """The figures of one way to write the step."""
    stock = torch.compile(step, backend="aot_eager")
    compiled = reink.compile(step, codegen="eager")
    with console.status(name):
        variants = [lambda: step(batch, cache), lambda: stock(batch, cache), lambda: compiled(batch, cache)]
        eager, aot_eager, ours = interleaved_seconds(variants, calls=1, repeats=7)
    ratios = [ours / eager, aot_eager / eager, aot_eager / ours]
    return [name, *(f"{ratio:.2f}" for ratio in ratios), f"{eager * 1e3:.1f} ms"]
