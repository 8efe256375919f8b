"""What a call of a compiled function costs when its tensors are tiny, against stock aot_eager."""

from __future__ import annotations

from collections.abc import Callable

import torch
from measure import interleaved_seconds, print_table
from rich.console import Console
from torch import Tensor

import reink

HEADINGS = ("program", "eager / aot_eager", "reink / aot_eager", "reink", "aot_eager")

Program = tuple[Callable[..., object], int]


def one_written(x: Tensor) -> Tensor:
    """One written input."""
    x.add_(1)
    return x * 2


def four_written(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """Four written inputs."""
    for tensor in (x, y, z, w):
        tensor.add_(1)
    return x * 2


def aliased(x: Tensor) -> Tensor:
    """An output that is a view of an input."""
    return x.view(-1)


PROGRAMS: dict[str, Program] = {
    "one written input": (one_written, 1),
    "four written inputs": (four_written, 4),
    "output aliases input": (aliased, 1),
}


def run(console: Console, quick: bool) -> None:
    """Print one table, a row for each program."""
    calls = 500 if quick else 5_000
    rows = [row(console, name, *PROGRAMS[name], calls) for name in PROGRAMS]
    print_table(console, "time of a call on tiny tensors", HEADINGS, rows, "below 1: cheaper than aot_eager")


@torch.no_grad()
def row(console: Console, name: str, program: Callable[..., object], inputs: int, calls: int) -> list[str]:
    """The figures of one program, its three variants taking turns."""
    torch._dynamo.reset()
    args = [torch.zeros(2, 4) for _ in range(inputs)]
    compiled = reink.compile(program, codegen="eager")
    stock = torch.compile(program, backend="aot_eager")
    with console.status(name):
        variants = [lambda: program(*args), lambda: stock(*args), lambda: compiled(*args)]
        eager, aot_eager, ours = interleaved_seconds(variants, calls)
    ratios = [f"{eager / aot_eager:.2f}", f"{ours / aot_eager:.2f}"]
    return [name, *ratios, f"{ours * 1e6:.1f} us", f"{aot_eager * 1e6:.1f} us"]
