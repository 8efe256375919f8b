"""Running a program plainly and compiled, and failing with what differs; and what one call allocates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from reink.judge import Arguments, GradMode, Observed, differences, grad_context, observe

MakeArguments = Callable[[], Arguments]
Factory = Callable[[Callable[..., Any]], Callable[..., Any]]


def compare(
    fn: Callable[..., Any],
    make_args: MakeArguments,
    compiled_factory: Factory,
    *,
    calls: int | Sequence[MakeArguments] = 1,
    grad_mode: GradMode = "no_grad",
    state: Callable[[], object] | None = None,
    reset: Callable[[], None] | None = None,
    tolerance: float = 0.0,
) -> None:
    """Fail with a readable difference unless ``compiled_factory(fn)`` behaves as `fn` does.

    `calls` is how often to call with fresh arguments, or the makers of the arguments of further calls of
    the same compiled function. `state` shows what the program keeps outside its arguments; `reset` restores
    it before each of the two sequences. A module is copied, so that both runs start from its present state.
    """
    makers = [make_args] * calls if isinstance(calls, int) else [make_args, *calls]
    expected = list(_sequence(copy.deepcopy(fn) if _is_module(fn) else fn, makers, grad_mode, state, reset))
    subject = copy.deepcopy(fn) if _is_module(fn) else fn
    actual = _sequence(compiled_factory(subject), makers, grad_mode, state, reset, original=subject)
    for k, (want, got) in enumerate(zip(expected, actual, strict=True)):
        problems = differences(want, got, tolerance)
        assert not problems, "\n".join([f"call {k + 1} differs from eager:", *map(str, problems)])


class Allocated(NamedTuple):
    """Bytes that one call asks of the allocator, results included: in all, and the most of them held at a time."""

    total: int
    peak: int


def allocated_bytes(fn: Callable[..., Any], args: Arguments, grad_mode: GradMode = "no_grad") -> Allocated:
    """What one call of `fn` allocates."""
    torch.manual_seed(0)
    with grad_context(grad_mode), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        fn(*args)
    recorder: Any = recorded.profiler
    events = [e for e in recorder.kineto_results.events() if e.name() == "[memory]"]
    counts = [int(e.nbytes()) for e in sorted(events, key=lambda e: e.start_ns())]  # below 0: given back
    return Allocated(sum(max(0, n) for n in counts), max(accumulate(counts, initial=0)))


def _sequence(
    fn: Callable[..., Any],
    makers: Sequence[MakeArguments],
    grad_mode: GradMode,
    state: Callable[[], object] | None,
    reset: Callable[[], None] | None,
    original: Callable[..., Any] | None = None,
) -> Iterator[Observed]:
    if reset is not None:
        reset()
    for make in makers:
        torch.manual_seed(0)
        yield observe(fn, make(), grad_mode, state, original)


def _is_module(fn: object) -> bool:
    return isinstance(fn, torch.nn.Module)
