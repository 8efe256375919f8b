"""Random mutating programs: functionalized, shuffled and re-inplaced, they leave every byte as eager does."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, note, reject, settings
from hypothesis import strategies as st
from support.judge import compare
from support.library import LONG, no_fallback, piped
from support.random_programs import RandomProgram, programs
from support.shuffle import shuffle_pass

from reink.errors import ReinkError

reink: Any = importlib.import_module("reink")

EXAMPLES = 5000 if LONG else 40

_SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@contextlib.contextmanager
def _refusal_of_gaps() -> Iterator[None]:
    """The one refusal that a random program may meet: `as_strided` into the gaps between the elements of an input."""
    try:
        yield
    except ReinkError as error:
        if error.code != "view-outside-input":
            raise
        reject()


@_SETTINGS
@given(program=programs(), strategy=st.sampled_from(("v2", "v1")))
def test_functionalized_random_program_equals_eager(program: RandomProgram, strategy: str) -> None:
    note(str(program))
    with _refusal_of_gaps():
        pure = reink.functionalize(program.run, program.make_args(), strategy=strategy)
    compare(program.run, program.make_args, lambda _: pure)


@_SETTINGS
@given(program=programs(), strategy=st.sampled_from(("v2", "v1")), seed=st.none() | st.integers(0, 99))
def test_random_program_through_the_pipeline_equals_eager(
    program: RandomProgram, strategy: str, seed: int | None
) -> None:
    note(str(program))
    shuffle = None if seed is None else shuffle_pass(seed)
    passes = () if shuffle is None else (shuffle,)
    with no_fallback(), _refusal_of_gaps():
        fast = piped(program.run, program.make_args(), strategy=strategy, passes=passes)
    compare(program.run, program.make_args, lambda _: fast)
    assert shuffle is None or shuffle.sizes, "the user's pass never ran"


@settings(_SETTINGS, max_examples=EXAMPLES // 4)
@given(program=programs())
def test_random_program_equals_itself(program: RandomProgram) -> None:
    """The judge finds nothing between two plain runs: what it finds elsewhere is not chance."""
    compare(program.run, program.make_args, lambda fn: fn)
