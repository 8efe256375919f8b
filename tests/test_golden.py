"""The story of a program as text: captured, functional before and after cleanup, lowered with its copies.

One case a file under tests/golden/story_*; ``make golden`` writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support import operators as _  # noqa: F401  registers the operators
from torch import Tensor

from reink.core.epilogue import with_epilogue
from reink.core.printing import program_text
from reink.core.program import Program
from reink.passes.capture import capture_callable, source_of_callable
from reink.passes.cleanup import cleanup
from reink.passes.functionalize import functionalize
from reink.passes.lower import lower
from reink.passes.reinplace import reinplace

ops = torch.ops.reink_fuzz


def running(x: Tensor) -> Tensor:
    y = x.view(2, 8)
    y.add_(1)
    y.relu_()
    return x * 2


def scaled(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1


def whole(x: Tensor) -> Tensor:
    f = x + 1
    ops.bump(f)
    return f


def row(x: Tensor) -> Tensor:
    f = x + 1
    ops.bump(f[0])
    return f


def two_views(x: Tensor) -> Tensor:
    ops.lower_and_scale(x[0], x[1])
    return x * 2


def a_list(x: Tensor) -> Tensor:
    ops.ramp([x[0], x[2]])
    return x * 2


def missing_optional(x: Tensor) -> Tensor:
    ops.bump_maybe(x[0], None)
    ops.bump_maybe(x[1], x[2])
    return x * 2


def also_returns(x: Tensor) -> tuple[Tensor, Tensor]:
    squared: Tensor = ops.bump_and_square(x[0])
    return squared, x * 2


def late_reader(x: Tensor) -> Tensor:
    old = x[0].clone()
    ops.bump(x[0])
    total: Tensor = old + x[0]
    return total


def snapshot_of_a_sum(x: Tensor) -> Tensor:
    y = x + 1
    kept: Tensor = torch.ops.aten.select_copy.int(y, 0, 1)
    y.mul_(2)
    return kept + y


@dataclass(frozen=True)
class Story:
    """A program, and under which strategies it is printed."""

    fn: Callable[..., Any]
    strategies: tuple[str, ...] = ("v2",)


BOTH = ("v1", "v2")
STORIES = [
    Story(running),
    Story(scaled),
    Story(late_reader, BOTH),
    Story(snapshot_of_a_sum),
    *(Story(fn, BOTH) for fn in (whole, row, two_views, a_list, missing_optional, also_returns)),
]
CASES = [(s.fn, strategy) for s in STORIES for strategy in s.strategies]


def captured(fn: Callable[..., Any]) -> Program:
    return capture_callable(source_of_callable(fn, (torch.arange(16.0).view(4, 4),)))


@pytest.mark.parametrize(("fn", "strategy"), CASES, ids=[f"{f.__name__}-{s}" for f, s in CASES])
def test_story(fn: Callable[..., Any], strategy: str, golden: Callable[[str, str], None]) -> None:
    mutable = captured(fn)
    functional = functionalize(mutable, strategy=strategy)
    parts = [("mutable", program_text(mutable)), ("functional", program_text(functional))]
    pure = with_epilogue(functional)
    cleanup(functional)
    parts.append(("after cleanup", program_text(functional)))
    plan = reinplace(functional)
    lowered = lower(plan)
    copied = sum(c.bytes or 0 for c in plan.choices)
    parts.append((f"lowered, {copied} bytes cloned", program_text(lowered)))
    golden(f"story_{fn.__name__}_{strategy}", "\n\n".join(f"{title}\n{text}" for title, text in parts))
    for program in (pure, lowered):
        given, expected = torch.arange(16.0).view(4, 4) - 7, torch.arange(16.0).view(4, 4) - 7
        results, right = program.module(given), fn(expected)
        right = right if isinstance(right, tuple) else (right,)
        assert torch.equal(given, expected)
        assert all(torch.equal(a, b) for a, b in zip(results, right, strict=True))


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("fn", [whole, row, two_views, a_list, missing_optional, also_returns])
def test_calls_copy_before_reinplace_and_not_after(fn: Callable[..., Any], strategy: str) -> None:
    functional = functionalize(captured(fn), strategy=strategy)
    forms = [n for n in functional.graph.nodes if "auto_functionalized" in n.name]
    assert forms, "the mutable operator became a functional call"
    lowered = lower(reinplace(functional))
    clones = torch.ops.aten.clone.default, torch.ops.aten.copy_.default
    assert not [n for n in lowered.graph.nodes if n.target in clones]


def test_the_two_programs_of_the_literature() -> None:
    """Source: the published graphs of functionalization's running examples."""

    def targets(fn: Callable[..., Any]) -> list[str]:
        program = with_epilogue(functionalize(captured(fn)))
        return [n.target._schema.name[6:] for n in program.graph.nodes if n.op == "call_function"]

    assert targets(running) == ["view", "add", "view", "view", "relu", "view", "mul", "copy_"]
    assert targets(scaled) == ["mul", "add", "copy_"]
