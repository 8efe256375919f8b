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

HEADINGS = ("step", "eager", "reink, eager kernels", "aot_eager", "reink, generated", "inductor", "inductor / reink")
SEQUENCES = 4


@torch.no_grad()
def run(console: Console, quick: bool) -> None:
    """Print one table, a row for each way to write the step."""
    torch.manual_seed(0)
    sizes = Sizes(layers=4, blocks=256) if quick else Sizes(layers=8)
    model = Decoder(sizes)
    cache = model.new_cache()
    lengths = torch.tensor([7, 19, 33, 60])
    batch = Pages(sizes, SEQUENCES).next_tokens(torch.arange(SEQUENCES), lengths)
    ways = {"usual": model.decode, "unlucky": model.decode_and_collect}
    rows = [row(console, name, step, batch, cache) for name, step in ways.items()]
    title = f"decode step, cache {cache.nbytes >> 20} MiB, time relative to eager"
    print_table(console, title, HEADINGS, rows, "eager copies no cache; inductor / reink: both generate code")


def row(console: Console, name: str, step: Callable[[Batch, Tensor], object], batch: Batch, cache: Tensor) -> list[str]:
    """The figures of one way to write the step."""
    ways: list[Callable[..., object]] = [
        step,
        reink.compile(step, codegen="eager"),
        torch.compile(step, backend="aot_eager"),
        reink.compile(step),
        torch.compile(step),
    ]
    with console.status(name):
        seconds = interleaved_seconds([lambda way=way: way(batch, cache) for way in ways], calls=1, repeats=7)
    eager, *others = seconds
    ratios = [*(other / eager for other in others), seconds[-1] / seconds[-2]]
    return [name, f"{eager * 1e3:.1f} ms", *(f"{ratio:.2f}" for ratio in ratios)]
