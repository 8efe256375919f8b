"""Every program of the corpus behaves under reink as in eager, whatever a correct pass does to its graph."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from corpus import PROGRAMS, Program
from corpus.registry import counting
from support.judge import allocated_bytes, compare
from support.library import LONG, compiled, no_fallback, piped
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from reink.errors import refusal_in
from reink.fuzz.shuffle import shuffle_pass

reink: Any = importlib.import_module("reink")

SEEDS = 10 if LONG else 3

WITH_PASSES = [p for p in PROGRAMS if not p.handed_over]

BY_THE_LIBRARY = [p for p in WITH_PASSES if not p.dynamic_dims and not p.calls]

# Dynamo gives a back end only what lies between the calls that it cannot trace; reink alone sees all of it.
IN_PIECES = [p for p in BY_THE_LIBRARY if not p.fullgraph]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@contextlib.contextmanager
def _refusal_allowed(program: Program, also: bool = False) -> Iterator[list[Any]]:
    """Let a coded refusal pass where the program says that it is as good as the answer, and collect it."""
    refused: list[Any] = []
    try:
        yield refused
    except Exception as error:
        refused.append(refusal_in(error))
        if isinstance(error, AssertionError) or not (program.may_refuse or also) or refused[0] is None:
            raise


def _judge(program: Program, factory: Callable[..., Any]) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=program.scalars):
        compare(
            program.build(),
            program.make_args,
            factory,
            calls=program.calls,
            grad_mode=program.grad_mode,
            state=program.state,
            reset=program.reset,
        )


def _judge_compiled(program: Program, **options: Any) -> Callable[..., Any] | None:
    """Compare the compiled program with eager; the compiled function, or None if it was rightly refused."""
    made: list[Callable[..., Any]] = []

    def factory(fn: Callable[..., Any]) -> Callable[..., Any]:
        made.append(compiled(fn, dynamic=program.dynamic, fullgraph=program.fullgraph, **options))
        return made[0]

    with _refusal_allowed(program) as refused, no_fallback():
        _judge(program, factory)
    return None if refused else made[0]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_compiled_program_equals_eager_and_allocates_no_more(program: Program) -> None:
    """No more bytes in all than eager, and no more of them at a time.

    But for loops: PyTorch's `while_loop` holds the flag of its condition and what it carries while the body runs.
    """
    fast = _judge_compiled(program)
    if fast is None or not program.zero_extra:
        return
    eager = allocated_bytes(program.build(), program.make_args(), program.grad_mode)
    found = allocated_bytes(fast, program.make_args(), program.grad_mode)
    assert found.total <= eager.total, f"{found.total - eager.total} bytes more than the {eager.total} of eager"
    if "loop" not in str(program):
        assert found.peak <= eager.peak, f"{found.peak} bytes at a time, where eager has {eager.peak}"


def _shuffles() -> Iterator[tuple[Program, str, int]]:
    """Each program once under v1, every second also under v2; all seeds under both in the long form."""
    for k, program in enumerate(WITH_PASSES):
        if LONG:
            yield from ((program, strategy, seed) for strategy in ("v1", "v2") for seed in range(SEEDS))
            continue
        yield program, "v1", k % SEEDS
        if k % 2:
            yield program, "v2", (k + 1) % SEEDS


@pytest.mark.parametrize(("program", "strategy", "seed"), list(_shuffles()), ids=str)
def test_shuffled_program_equals_eager(program: Program, strategy: str, seed: int) -> None:
    shuffle = shuffle_pass(seed)
    if _judge_compiled(program, strategy=strategy, passes=(shuffle,)) is not None and not program.may_refuse:
        assert shuffle.sizes, "the user's pass never ran"


@pytest.mark.parametrize("program", BY_THE_LIBRARY, ids=str)
def test_functionalized_program_equals_eager(program: Program) -> None:
    # int(tensor.item()) is Python that needs the number: only Dynamo can leave it symbolic
    with _refusal_allowed(program, program.scalars):
        _judge(program, lambda fn: reink.functionalize(fn, program.make_args()))


@pytest.mark.parametrize("strategy", ["v1", "v2"])
@pytest.mark.parametrize("program", IN_PIECES, ids=str)
def test_program_that_dynamo_takes_apart_equals_eager_whole(program: Program, strategy: str) -> None:
    with _refusal_allowed(program), no_fallback():
        _judge(program, lambda fn: piped(fn, program.make_args(), strategy=strategy, passes=(shuffle_pass(1),)))


# --- the judge and the shuffle, judged ------------------------------------------------------------------


def _subject(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    x.add_(1)
    return x, y.t() * 2, 3


def _two_inputs() -> tuple[Tensor, Tensor]:
    return counting(8)[2:5], counting(2, 3)


def _forgets_the_write(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    return x + 1, y.t() * 2, 3


def _returns_a_copy(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    return x.add_(1).clone(), y.t() * 2, 3


def _returns_another_object(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    return x.add_(1).view_as(x), y.t() * 2, 3


def _writes_a_neighbour(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    x.as_strided((5,), (1,), 2).add_(1)
    return x, y.t() * 2, 3


def _loses_strides(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    x.add_(1)
    return x, (y.t() * 2).contiguous(), 3


def _ties_a_result_to_an_input(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    x.add_(1)
    return x, y.mul_(2).t(), 3


def _changes_a_number(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    x.add_(1)
    return x, y.t() * 2, 4


def _changes_a_layout(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    x.add_(1)
    product = y.t() * 2
    y.t_()
    return x, product, 3


@pytest.mark.parametrize(
    "wrong",
    [
        _forgets_the_write,
        _returns_a_copy,
        _returns_another_object,
        _writes_a_neighbour,
        _loses_strides,
        _ties_a_result_to_an_input,
        _changes_a_number,
        _changes_a_layout,
    ],
)
def test_the_judge_finds_what_is_wrong(wrong: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="differs from eager"):
        compare(_subject, _two_inputs, lambda _: wrong)


def test_the_judge_accepts_what_is_right() -> None:
    compare(_subject, _two_inputs, lambda fn: fn, calls=2)


def test_allocated_bytes_counts_results_and_temporaries() -> None:
    x = counting(16)
    assert allocated_bytes(lambda t: t.neg_(), (x,)) == (0, 0)
    assert allocated_bytes(lambda t: t.neg().neg_(), (x,)) == (64, 64)
    assert allocated_bytes(lambda t: t.clone().sum(), (x,)) == (64 + 4, 64 + 4)
    assert allocated_bytes(lambda t: t.neg().neg().neg(), (x,)) == (3 * 64, 2 * 64)


def test_the_shuffle_refuses_a_graph_that_writes() -> None:
    traced = make_fx(_subject, tracing_mode="fake")(*_two_inputs())
    with pytest.raises(AssertionError, match="a write in a pure graph"):
        shuffle_pass(0)(traced.graph)


def test_the_shuffle_changes_the_order_and_nothing_else() -> None:
    def pure(x: Tensor) -> Tensor:
        parts = [x * k for k in range(6)]
        return torch.stack([p + torch.rand(4) for p in parts]).clone()

    traced = make_fx(pure, tracing_mode="fake")(counting(4))
    before = [n.name for n in traced.graph.nodes]
    random_before = [name for name in before if name.startswith("rand")]
    shuffle_pass(1)(traced.graph)
    traced.recompile()
    after = [n.name for n in traced.graph.nodes]
    assert before != after
    assert sorted(before) == sorted(after)
    assert random_before == [name for name in after if name.startswith("rand")]
    targets = [node.target for node in traced.graph.nodes]
    assert targets.count(torch.ops.aten.clone.default) == 1
    assert not any("scatter" in str(target) for target in targets)
    compare(pure, lambda: (counting(4),), lambda _: traced)
