"""A decoder with a paged cache in eager, stock torch.compile and reink: same tokens, fewer copies.

    python examples/decoder/demo.py                    # about a minute on two cores
    python examples/decoder/demo.py --with-inductor    # one more contender; needs a C++ compiler

Exit status 1 when the tokens differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

os.environ["KINETO_LOG_LEVEL"] = "6"  # below this level the profiler announces each of its runs
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

import reink
from decoder.model import Batch, Decoder, Sizes
from decoder.serving import AnyStep, Pages, allocated, median_seconds
from reink.report import Report, amount
from reink.show.terminal import print_report

PROMPTS = (5, 12, 23, 40)
NEW_TOKENS = 32

Step = Callable[[Batch, Tensor], Tensor]
Taken = ParamSpec("Taken")
Given = TypeVar("Given")


class Compile(Protocol):
    """Anything that turns a step into a step that does the same."""

    def __call__(self, step: Callable[Taken, Given], /) -> Callable[Taken, Given]: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """One step: its median seconds, the bytes that it allocates, and reink's report of it."""

    seconds: float
    allocated: int
    report: Report | None

    def cloned(self, eager: Cost) -> int:
        """Bytes cloned: as reported, or else what was allocated beyond eager."""
        return self.report.bytes_cloned if self.report else max(0, self.allocated - eager.allocated)


@dataclass(frozen=True, slots=True)
class Result:
    """A contender's answers, and the cost of the step written as usual and written the unlucky way.

    `tokens` is ``[sequences, new tokens]``, `norms` the key norms of the last step ``[layers, sequences]``.
    """

    name: str
    tokens: Tensor
    norms: Tensor
    usual: Cost
    unlucky: Cost


class Generation:
    """Model, prompts and pages: the same for every contender."""

    def __init__(self, progress: Progress) -> None:
        torch.manual_seed(0)
        self.progress = progress
        self.model = Decoder(Sizes())
        self.prompts = [torch.randint(self.model.sizes.vocabulary, (length,)) for length in PROMPTS]
        self.pages = Pages(self.model.sizes, len(PROMPTS))

    def run(self, name: str, compile_step: Compile) -> Result:
        """Prefill, decode and measure, in a fresh cache."""
        task = self.progress.add_task(name, total=len(PROMPTS) + NEW_TOKENS + 1, doing="prefill")
        cache = self.model.new_cache()
        first = self._prefill(compile_step(self.model.prefill), cache, task)
        decode, collect = compile_step(self.model.decode), compile_step(self.model.decode_and_collect)
        tokens, seconds, last = self._decode(decode, first, cache, task)
        usual = Cost(seconds, allocated(decode, last, cache), newest_report(decode))
        self.progress.update(task, doing="the unlucky step")
        _, norms = collect(last, cache)
        seconds = median_seconds(collect, last, cache)
        unlucky = Cost(seconds, allocated(collect, last, cache), newest_report(collect))
        self.progress.update(task, advance=1, doing="done")
        return Result(name, tokens, norms, usual, unlucky)

    def _prefill(self, prefill: Step, cache: Tensor, task: TaskID) -> Tensor:
        """The first new token of each sequence, ``[sequences]``."""
        chosen = []
        for sequence, tokens in enumerate(self.prompts):
            batch = self.pages.prompt(tokens, sequence)
            for varying in (batch.tokens, batch.positions, batch.slots):
                torch._dynamo.maybe_mark_dynamic(varying, 0)
            chosen.append(prefill(batch, cache))
            self.progress.advance(task)
        return torch.cat(chosen)

    def _decode(self, decode: Step, first: Tensor, cache: Tensor, task: TaskID) -> tuple[Tensor, float, Batch]:
        """The new tokens, the median seconds of a step, and the last batch. The first step may compile."""
        lengths, chosen, seconds = torch.tensor(PROMPTS), [first], []
        for count in range(NEW_TOKENS):
            batch = self.pages.next_tokens(chosen[-1], lengths + count)
            start = time.perf_counter()
            chosen.append(decode(batch, cache))
            seconds.append(time.perf_counter() - start)
            self.progress.update(task, advance=1, doing=f"token {count + 1}")
        return torch.stack(chosen[1:], dim=1), statistics.median(seconds[1:]), batch


def newest_report(step: AnyStep) -> Report | None:
    """The report of the last graph, for a step that reink compiled."""
    reports: list[Report] = getattr(step, "reports", [])
    return reports[-1] if reports else None


def comparison(results: Sequence[Result], cache_bytes: int) -> Table:
    """A row for each contender and way to write the step, relative to eager."""
    table = Table(
        title=f"one decode step, batch {len(PROMPTS)}, a cache of {amount(cache_bytes)}",
        caption="cloned: by reink's report; else allocated beyond eager",
    )
    for heading in ("step", "run by"):
        table.add_column(heading)
    for heading in ("cloned", "allocated", "/ eager", "time / eager"):
        table.add_column(heading, justify="right")
    for way, costs in (("usual", [r.usual for r in results]), ("unlucky", [r.unlucky for r in results])):
        for result, cost in zip(results, costs, strict=True):
            table.add_row(way, result.name, *relative(cost, costs[0]))
        table.add_section()
    return table


def relative(cost: Cost, eager: Cost) -> list[str]:
    """The figures of one row."""
    times = (cost.allocated / eager.allocated, cost.seconds / eager.seconds)
    return [amount(cost.cloned(eager)), amount(cost.allocated), *(f"{ratio:.2f}" for ratio in times)]


def disagreements(results: Sequence[Result]) -> list[str]:
    """Who differs from eager, in a sentence each."""
    eager, found = results[0], []
    for result in results[1:]:
        if not torch.equal(result.tokens, eager.tokens):
            sequence, token = (result.tokens != eager.tokens).nonzero()[0].tolist()
            found.append(f"{result.name}: sequence {sequence} differs from eager at new token {token}")
        elif not torch.allclose(result.norms, eager.norms):
            found.append(f"{result.name}: same tokens, but other key norms than eager")
    return found


def unchanged(step: Callable[Taken, Given], /) -> Callable[Taken, Given]:
    """Eager."""
    return step


def with_aot_eager(step: Callable[Taken, Given], /) -> Callable[Taken, Given]:
    """Stock functionalization, eager kernels."""
    return torch.compile(step, backend="aot_eager")


def with_inductor(step: Callable[Taken, Given], /) -> Callable[Taken, Given]:
    """Stock functionalization, stock re-inplacing, generated kernels."""
    return torch.compile(step)


def with_eager_kernels(step: Callable[Taken, Given], /) -> Callable[Taken, Given]:
    """reink, eager kernels."""
    compiled: Callable[Taken, Given] = reink.compile(step, codegen="eager")
    return compiled


def with_reink(step: Callable[Taken, Given], /) -> Callable[Taken, Given]:
    """reink, generated kernels."""
    compiled: Callable[Taken, Given] = reink.compile(step)
    return compiled


def play(console: Console, inductor: bool) -> list[Result]:
    """Every contender's result, eager's first and reink's last."""
    contenders: list[tuple[str, Compile]] = [("eager", unchanged), ("aot_eager", with_aot_eager)]
    contenders += [("inductor", with_inductor)] if inductor else []
    contenders += [("reink eager", with_eager_kernels), ("reink", with_reink)]
    columns = (SpinnerColumn(), TextColumn("{task.description:11}"), BarColumn())
    state = (TextColumn("{task.fields[doing]:16}"), TimeElapsedColumn())
    with Progress(*columns, *state, console=console) as progress:
        generation = Generation(progress)
        return [generation.run(name, compile_step) for name, compile_step in contenders]


@torch.no_grad()
def main() -> int:
    """Play, then print who differs (exit status 1), or else what the steps cost and why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with-inductor", action="store_true", help="also run torch.compile's default back end")
    # On shared cores two threads spend longer waiting for each other than such small products take.
    torch.set_num_threads(1)
    console = Console()
    results = play(console, parser.parse_args().with_inductor)
    different = disagreements(results)
    if different:
        console.print("\n".join(different))
        return 1
    first = " ".join(str(token) for token in results[0].tokens[0, :8].tolist())
    console.print(f"same {NEW_TOKENS} tokens for all {len(PROMPTS)} sequences; the first begins {first}")
    console.print(comparison(results, Decoder(Sizes()).new_cache().nbytes))
    for title, cost in (("the usual step", results[-1].usual), ("the unlucky step", results[-1].unlucky)):
        if cost.report:
            console.rule(title)
            print_report(cost.report, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
