"""One run: the same calls of a program in eager and compiled, and everything that the compiled side said."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from reink.backends.dynamo import compile_graph
from reink.backends.runtime import Variants
from reink.errors import refusal_in
from reink.judge import GradMode, Observed, differences, observe
from reink.options import Options
from reink.pipeline import Compiled
from reink.report import Verdict
from reink.verification.answer import Outcome, Run
from reink.verification.copies import Case, Surroundings
from reink.verification.difference import first_difference, lines_that_write
from reink.verification.variants import Edit, Variant

ORDER_DECIDES = "the inputs overlap in part: the order inside an operator may decide what is right\n"
NO_GRAPH = "no graph was compiled: the program ran as plain Python"

log = logging.getLogger("reink")


class EagerFailed(Exception):
    """Eager raised `error` on these inputs: there is nothing to compare with."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(said(error))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What all runs of one verification have in common."""

    case: Case
    options: Options
    grad_mode: GradMode
    tolerance: float
    surroundings: Surroundings
    names: tuple[str, ...]

    def eager(self, calls: Sequence[Edit]) -> list[Observed]:
        """What eager leaves behind after each of `calls`. Raises EagerFailed."""
        fn, _ = self.case.copies()
        self.surroundings.restore()
        try:
            return [self._observe(fn, edit, fn) for edit in calls]
        except Exception as error:
            raise EagerFailed(error) from error

    def run(self, variant: Variant) -> Run:
        """Compare the calls of `variant`."""
        if variant.skipped:
            return Run(variant.name, "skipped", variant.skipped)
        try:
            want, again = self.eager(variant.calls), self.eager(variant.calls)
        except EagerFailed as refused:
            return Run(variant.name, "skipped", f"eager raises {refused}")
        if any(differences(a, b, self.tolerance) for a, b in zip(want, again, strict=True)):
            return Run(variant.name, "skipped", "eager gives another answer each time")
        return self._compiled(variant, want)

    def _compiled(self, variant: Variant, want: Sequence[Observed]) -> Run:
        watch = _Watch(self.options)
        torch.compiler.reset()  # or the recompile limit of Dynamo would soon let everything run in eager
        fn, _ = self.case.copies()
        self.surroundings.restore()
        torch_compile: Any = torch.compile
        subject = torch_compile(fn, backend=watch.backend)
        try:
            with watch.listening():
                for k, edit in enumerate(variant.calls):
                    watch.begin()
                    first = first_difference(want[k], self._observe(subject, edit, fn), self.names, self.tolerance)
                    watch.end()
                    if first is not None:
                        call = f"call {k + 1}: " if len(variant.calls) > 1 else ""
                        care = ORDER_DECIDES if variant.overlaps_in_part else ""
                        lines = lines_that_write(watch.compiled, first.input) if first.input else ()
                        return watch.run(variant.name, "differs", f"{care}{call}{first.text}", lines)
        except Exception as error:
            refusal = refusal_in(error)
            why = str(refusal) if refusal else f"the compiled program raises {said(error)}"
            return watch.run(variant.name, "refused" if refusal else "failed", why)
        return watch.run(variant.name, "ok")

    def _observe(self, fn: Callable[..., Any], edit: Edit, original: Callable[..., Any]) -> Observed:
        args, kwargs = self.case.arguments(edit(self.case.copies()[1]))
        return observe(fn, args, self.grad_mode, lambda: self.surroundings.tensors, original, kwargs)


@dataclass(slots=True)
class _Watch:
    """The back end of `torch.compile` for one run: compiles as ``reink`` does, and notes what was compiled and ran.

    Filled while the run goes on, hence not frozen.
    """

    options: Options
    variants: list[Variants] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    calls: int = 0

    def backend(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        run = compile_graph(module, inputs, self.options, self.variants.append)

        def counted(*args: Any) -> Any:
            self.calls += 1
            return run(*args)

        return counted

    @property
    def compiled(self) -> list[Compiled]:
        return [c for v in self.variants for c in v.compiled]

    def begin(self) -> None:
        self.calls = 0

    def end(self) -> None:
        if not self.calls:
            self.unchecked.append(NO_GRAPH)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what reink says of graphs that it does not run re-inplaced; nothing more is printed than before."""
        level, printed = log.level, log.getEffectiveLevel()

        def hear(record: logging.LogRecord) -> bool:
            text = record.getMessage()
            if text.startswith("handed to the stock pipeline"):
                self.unchecked.append(f"a graph was {text}: not verified by reink")
            elif text.endswith("the captured program runs as it stands"):
                self.unchecked.append(text)
            return record.levelno >= printed

        log.addFilter(hear)
        log.setLevel(min(logging.INFO, printed))
        try:
            yield
        finally:
            log.setLevel(level)
            log.removeFilter(hear)

    def run(self, name: str, outcome: Outcome, why: str = "", lines: tuple[Any, ...] = ()) -> Run:
        compiled = self.compiled
        checks: list[Verdict] = [v for c in compiled for v in c.verdicts]
        fallbacks = [f"{c.name} runs without re-inplacing: {c.fallback}" for c in compiled if c.fallback]
        unchecked = tuple(dict.fromkeys([*fallbacks, *self.unchecked]))
        return Run(name, outcome, why, lines, len(compiled), tuple(checks), unchecked)


def said(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
