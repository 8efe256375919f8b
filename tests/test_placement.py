"""Copies are placed at the least cost: the model against every choice, plans against every plan, run and counted."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from corpus.registry import counting
from support.library import LONG, piped
from support.operators import ops
from test_passes import drop_clones
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reink.check import check_ownership
from reink.core.calls import CALLS
from reink.core.opinfo import facts_of
from reink.core.plan import Plan
from reink.core.program import Program
from reink.passes.cleanup import cleanup
from reink.passes.lower import lower
from reink.passes.optimum import Kept, cheapest
from reink.passes.placement import Rules
from reink.passes.reinplace import decided
from reink.pipeline import begin

aten = torch.ops.aten
library = torch.library.Library("placement", "DEF")
library.define("take(Tensor(a!) into, Tensor x) -> ()")


@torch.library.impl("placement::take", "CompositeExplicitAutograd", lib=library)
def _take(into: Tensor, x: Tensor) -> None:
    into.add_(x.sum())


torch.library.register_fake("placement::take", lambda *args: None, lib=library)
take = torch.ops.placement.take

INSTANCES = 10_000
SEEDS = range(300) if LONG else range(24)
MOST_WRITES = 7

# -- the model ---------------------------------------------------------------------------------------------


def _cost(detaching: list[int], kept: list[Kept], back: int, chosen: tuple[int, ...]) -> int:
    missed = sum(k.cost for k in kept if not any(k.born <= c <= k.lost for c in chosen))
    return sum(detaching[c] for c in chosen) + (back if chosen else 0) + missed


def _instance(rng: random.Random) -> tuple[list[int], list[Kept], int]:
    detaching = [rng.choice((0, rng.randint(0, 20))) for _ in range(rng.randint(0, 7))]
    kept = []
    for _ in range(rng.randint(0, 8) if detaching else 0):
        lost = rng.randrange(len(detaching))
        kept.append(Kept(rng.randint(0, lost), lost, rng.randint(0, 12)))
    return detaching, kept, rng.choice((0, rng.randint(0, 15)))


def test_the_optimum_is_that_of_every_choice() -> None:
    rng = random.Random(1)
    for _ in range(INSTANCES):
        detaching, kept, back = _instance(rng)
        least, chosen = cheapest(detaching, kept, back)
        every = (c for n in range(len(detaching) + 1) for c in itertools.combinations(range(len(detaching)), n))
        assert least == min(_cost(detaching, kept, back, c) for c in every)
        assert least == _cost(detaching, kept, back, tuple(chosen))


# -- plans -------------------------------------------------------------------------------------------------


class _Copied(TorchDispatchMode):
    """Counts the bytes that clones and `copy_` write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (aten.clone.default, aten.copy_.default):
            self.bytes += result.numel() * result.element_size()
        return result


def _copied(program: Program, args: tuple[Tensor, ...]) -> int:
    with _Copied() as counted:
        program.module(*(a.clone() for a in args))
    copies: int = counted.bytes
    return copies - sum(a.numel() * a.element_size() for a in args)


def _program(rng: random.Random) -> str:
    """Writes to rows of one storage, and readers of old values that cannot move above them."""
    lines, old = [rng.choice(("y = x + 1", "y = x"))], list[str]()
    for k in range(rng.randint(2, 4)):
        first = rng.randrange(6)
        rows = f"{first}:{rng.randint(first + 1, 6)}"
        if rng.random() < 0.7:
            lines.append(f"o{k} = {rng.choice(('y', f'y[{first}]', f'y[{rows}]'))}.clone()")
            old.append(f"o{k}")
        row, some = f"y[{rng.randrange(6)}]", f"y[{rows}]"
        writes = (
            f"{row}.mul_(2)",
            f"{some}.add_(1)",
            f"ops.bump({row})",
            f"ops.bump({some})",
            "y.mul_(3)",
            f"{row}.copy_(row)",
            "y.copy_(z)",
            f"{some} = z[{rows}]",
        )
        lines.append(rng.choice(writes))
        if rng.random() < 0.3:
            lines.append(f"take(sink, y[{rng.randrange(6)}])")
    rng.shuffle(old)
    lines += [f"take(sink, {o})" for o in old]
    return "\n    ".join(["def program(x, z, row, sink):", *lines, rng.choice(("return y.sum()", "return y"))])


def _writes(program: Program) -> list[Any]:
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    scatters = [n for n in calls if facts_of(n.target).window or n.target is aten.copy.default]
    return [n for n in calls if n in scatters or n.target in CALLS or "reink_write" in n.meta]


def _every_plan(program: Program) -> list[Plan]:
    """With each set of writes detached, and small parts written in place or elsewhere; each is right."""
    writes, plans = [(n, 0) for n in _writes(program)], list[Plan]()
    for count in range(len(writes) + 1 if len(writes) <= MOST_WRITES else 2):
        for detached, apart in itertools.product(itertools.combinations(writes, count), (False, True)):
            plan, _ = decided(program, Rules(reorder=True, elsewhere=frozenset(detached), apart=apart))
            verdict = check_ownership(program, [s.node for s in plan.steps], lower(plan))
            assert verdict.ok, verdict
            plans.append(plan)
    return plans


@pytest.mark.parametrize("seed", SEEDS)
def test_no_other_plan_copies_less(seed: int) -> None:
    rng = random.Random(seed)
    made: dict[str, Any] = {"ops": ops, "take": take}
    exec(text := _program(rng), made)
    args = (counting(6, 4), counting(6, 4) * 2, counting(4), torch.zeros(4))
    fast: Any = piped(made["program"], args, strategy=rng.choice(("v1", "v2")), passes=(drop_clones,))
    compiled = fast.compiled
    functional = begin(compiled.captured, compiled.options).functional
    cleanup(functional)
    drop_clones(functional.graph)
    plans = _every_plan(functional)
    bytes_of = [plan.bytes_copied() or 0 for plan in plans]
    chosen = compiled.plan.bytes_copied()
    assert not compiled.fallback, text
    assert compiled.plan.needed <= chosen <= min(bytes_of), text
    best = plans[bytes_of.index(min(bytes_of))]
    spared = _copied(lower(plans[0]), args) - _copied(lower(best), args)
    assert spared == bytes_of[0] - min(bytes_of), text


# -- what the plans are ------------------------------------------------------------------------------------


def _apart(x: Tensor, sink: Tensor) -> Tensor:
    y = x + 1
    old = y.clone()
    y[0].mul_(2)
    y[1].mul_(2)
    y[2].mul_(2)
    take(sink, torch.cat([old.view(-1), y[0]]))
    return y


def _whole_value_is_read_late(x: Tensor, sink: Tensor) -> Tensor:
    old = x.clone()
    x[0].mul_(2)
    take(sink, x[0])
    take(sink, old)
    return x.sum()


def _rows_in_common(x: Tensor, sink: Tensor) -> Tensor:
    y = x + 1
    old = y.clone()
    y[0:3].mul_(2)
    take(sink, torch.cat([old[0:2], old[1:3], y[0:1]]))
    return y


@pytest.mark.parametrize(
    ("fn", "copied"),
    [(_apart, 3 * 16), (_whole_value_is_read_late, 16), (_rows_in_common, 3 * 16)],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_the_fewest_bytes_are_copied(fn: Any, copied: int) -> None:
    args = (counting(8, 4), torch.zeros(4))
    fast: Any = piped(fn, args, passes=(drop_clones,))
    compiled = fast.compiled
    assert not compiled.fallback
    report = compiled.report()
    assert report.bytes_cloned == report.lower_bound == copied
