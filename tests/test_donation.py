"""Arguments that the caller gives away: their memory is used, and any later use is an error."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import reink
from reink.api import compile_function
from reink.backends.donating import taken_over
from reink.core.torch_internals import storage_key
from reink.errors import ReinkError, refusal_in

pytestmark = pytest.mark.usefixtures("_no_gradients")


@pytest.fixture
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def compiled(fn: Any, **options: Any) -> Any:
    """With PyTorch's own kernels, which compile at once; the last tests have code generated."""
    return reink.compile(fn, codegen="eager", **options)


def step(state: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(state * 0.5 + x)


def test_a_result_lies_in_the_memory_that_was_given_away() -> None:
    fast = compiled(step, donate=("state",), prove=True)
    state, x = torch.arange(6.0), torch.ones(6)
    address, expected = state.data_ptr(), step(torch.arange(6.0), x)
    for _ in range(3):
        old, state = state, fast(state, x)
        assert torch.equal(state, expected)
        assert state.data_ptr() == address
        assert storage_key(state) != storage_key(old)
        expected = step(expected, x)
    (report,) = fast.reports
    assert [(d.name, d.bytes, d.operator) for d in report.donations] == [("state", 24, "aten.mul.Tensor")]
    assert report.donations[0].source is not None
    assert report.donations[0].source.text == "return torch.tanh(state * 0.5 + x)"


def test_scatters_and_writes_of_calls_use_donated_memory() -> None:
    def updated(cache: Tensor, row: Tensor) -> Tensor:
        return torch.select_scatter(cache, row, 0, 1)

    cache, row = torch.arange(12.0).view(3, 4), torch.full((4,), -1.0)
    address, expected = cache.data_ptr(), updated(cache, row)
    result = compiled(updated, donate=("cache",), prove=True)(cache, row)
    assert torch.equal(result, expected)
    assert result.data_ptr() == address


def test_each_tensor_of_an_argument_is_given() -> None:
    def both(pair: tuple[Tensor, tuple[Tensor, int]], x: Tensor) -> tuple[Tensor, Tensor]:
        return pair[0] + x, pair[1][0] * x

    pair = (torch.arange(4.0), (torch.arange(4.0), 3))
    addresses, expected = [pair[0].data_ptr(), pair[1][0].data_ptr()], both(pair, torch.ones(4))
    results = compiled(both, donate=("pair",))(pair, torch.ones(4))
    assert all(map(torch.equal, results, expected))
    assert [r.data_ptr() for r in results] == addresses


def _use_again(fast: Any, state: Tensor, x: Tensor) -> Any:
    return fast(state, x)


@pytest.mark.parametrize("alias", [lambda s: s, lambda s: s.view(2, 3)[1], lambda s: s.detach()])
def test_a_use_through_any_alias_names_both_lines(alias: Callable[[Tensor], Tensor]) -> None:
    fast, state = compiled(step, donate=("state",)), torch.arange(6.0)
    other = alias(state)
    fast(state, torch.ones(6))  # given away here
    with pytest.raises(ReinkError) as caught:
        _use_again(fast, other, torch.ones(other.shape))
    error = caught.value
    assert error.code == "donated-input"
    assert "in _use_again    return fast(state, x)" in error.where
    assert "fast(state, torch.ones(6))  # given away here" in error.why
    with pytest.raises(ReinkError):  # nor by a callable that donates nothing
        compiled(step)(torch.ones(other.shape), other)


def test_an_argument_that_is_returned_as_it_is_is_an_error_if_its_memory_is_used() -> None:
    fast = compiled(lambda state: (state, state * 2), donate=("state",))
    with pytest.raises(ReinkError, match="the program returns it") as caught:
        fast(torch.ones(3))
    assert caught.value.code == "donated-input"


def test_a_written_argument_keeps_its_new_value() -> None:
    def grow(state: Tensor) -> Tensor:
        state.add_(1)
        return state

    fast, state = compiled(grow, donate=("state",)), torch.zeros(3)
    state = fast(state)
    assert state.tolist() == [1, 1, 1]
    assert fast(state).tolist() == [2, 2, 2]
    assert "the program writes it" in fast.reports[0].donations[0].reason


_SHARED = torch.zeros(8)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((torch.zeros(8)[2:], torch.ones(6)), "a part of its storage"),
        ((_SHARED, _SHARED[:]), "it shares memory with x"),
        ((nn.Parameter(torch.zeros(4)), torch.ones(4)), "it requires grad"),
        ((torch.zeros(4, dtype=torch.int64), torch.ones(4)), "no value that is made after its last use"),
        ((torch.zeros(4, dtype=torch.complex64).conj(), torch.ones(4)), "no plain tensor"),
    ],
)
def test_a_donation_of_no_use_is_reported_and_harmless(args: tuple[Tensor, Tensor], reason: str) -> None:
    expected, before = step(*args), args[0].clone()
    report = reink.explain(step, args, codegen="eager", donate=("state",))
    assert [reason in d.reason for d in report.donations] == [True]
    assert reason in str(report)
    fast = compiled(step, donate=["state"])
    assert torch.equal(fast(*args), expected)
    assert torch.equal(args[0], before)
    assert [reason in d.reason for d in fast.reports[0].donations] == [True]


def test_memory_of_a_parameter_is_not_given_away() -> None:
    class Sum(nn.Module):
        kept: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.kept

    model = Sum()
    fast = compiled(model, donate=("x",))
    assert fast(model.kept).tolist() == [2, 2, 2, 2]
    assert model.kept.tolist() == [1, 1, 1, 1]
    assert "shares memory with kept" in fast.reports[0].donations[0].reason


def test_what_an_object_holds_is_not_given_away() -> None:
    def applied(layer: Any, x: Tensor) -> Any:
        return layer(x) + layer.bias

    layer: Any = nn.Linear(4, 4).requires_grad_(False)
    x, before = torch.ones(4), layer.bias.clone()
    expected = applied(layer, x)
    fast = compiled(applied, donate=("layer",))
    assert torch.equal(fast(layer, x), expected)
    assert torch.equal(layer.bias, before)
    assert "is or holds a Linear" in fast.reports[0].donations[0].reason


def test_views_of_a_donated_argument_and_late_reads_are_right() -> None:
    def late(state: Tensor) -> tuple[Tensor, Tensor]:
        doubled = state * 2
        return doubled, doubled + state[1]

    def returned(state: Tensor) -> tuple[Tensor, Tensor]:
        return state[1:], state * 2

    for program in (late, returned):
        expected = program(torch.arange(4.0))
        results = compiled(program, donate=("state",), prove=True)(torch.arange(4.0))
        assert all(map(torch.equal, results, expected))


def test_the_pipeline_alone_takes_donated_memory_and_the_checks_follow() -> None:
    state, x = torch.arange(6.0), torch.ones(6)
    address, expected = state.data_ptr(), step(state, x)
    fast = compile_function(step, (state, x), {"donate": ("state",), "prove": True})
    assert [v.check for v in fast.compiled.verdicts if v.ok and v.decided] == [v.check for v in fast.compiled.verdicts]
    result = fast(state, x)
    assert torch.equal(result, expected)
    assert result.data_ptr() == address


def test_the_memory_goes_from_hand_to_hand_without_a_trail() -> None:
    value, storages = torch.zeros(4), []
    for _ in range(50):
        value = taken_over(value)
        storages.append(StorageWeakRef(value.untyped_storage()))
    assert [s.expired() for s in storages] == [True] * 49 + [False]
    assert value.tolist() == [0, 0, 0, 0]


def _as_back_end(*args: Tensor) -> object:
    compile_: Any = torch.compile
    return compile_(step, backend="reink", options={"donate": ("state",)})(*args)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: compiled(step, donate=("stat",)), "did you mean 'state'?"),
        (lambda: compiled(step, donate="state"), "list of names"),
        (lambda: compiled(step, donate=("state",), fullgraph=False), "fullgraph"),
        (lambda: _as_back_end(torch.ones(3), torch.ones(3)), "reink.compile"),
    ],
)
def test_what_cannot_be_donated_is_said(attempt: Callable[[], object], words: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Dynamo wraps what a back end raises
        attempt()
    error = refusal_in(caught.value)
    assert error is not None
    assert error.code == "unknown-option"
    assert words in str(error)


def _given_memory_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Dynamo wraps what a graph raises
        call()
    error = refusal_in(caught.value)
    assert error is not None
    assert error.code == "donated-input"


_START = torch.arange(4.0)


def _from_start(x: Tensor, state: Tensor = _START) -> Tensor:
    return state + x


def test_what_a_call_does_not_give_is_not_taken_by_the_next() -> None:
    fast = compiled(_from_start, donate=("state",))
    for _ in range(2):
        assert fast(torch.ones(4)).tolist() == [1, 2, 3, 4]
    assert _START.tolist() == [0, 1, 2, 3]
    buffer = torch.zeros(8)
    for _ in range(2):
        assert fast(torch.ones(4), buffer[:4]).tolist() == [1, 1, 1, 1]
    assert not buffer.any()


def test_names_are_those_of_the_function_that_is_called() -> None:
    def inner(state: Tensor, x: Tensor) -> Tensor:
        return state * 2 + x.sum()

    @functools.wraps(inner)
    def outer(x: Tensor, state: Tensor) -> Tensor:
        return inner(x, state)

    first, second = torch.ones(4), torch.ones(4)
    compiled(outer, donate=("state",))(first, second)
    assert first.tolist() == [1, 1, 1, 1]


def test_memory_is_given_away_also_where_the_call_fails() -> None:
    def indexed(state: Tensor, x: Tensor, i: Tensor) -> Tensor:
        return state * 2 + x[i]

    fast, state = compiled(indexed, donate=("state",)), torch.ones(4)
    with pytest.raises(IndexError):
        fast(state, torch.ones(4), torch.tensor([9]))
    _given_memory_is_refused(lambda: fast(state, torch.ones(4), torch.tensor([1])))


def test_memory_that_is_known_from_elsewhere_is_refused() -> None:
    """Returned, closed over by another program, or held by a module."""
    outside, kept = torch.arange(4.0), torch.ones(4)

    class Adds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.get_buffer("kept")

    module, double = Adds(), compiled(lambda state: state * 2, donate=("state",))
    module.register_buffer("kept", torch.ones(4))
    compiled_module, adds = compiled(module), compiled(lambda x: x + kept)
    _given_memory_is_refused(lambda: compiled(lambda state: (state * 2, outside), donate=("state",))(outside))
    double(kept)
    _given_memory_is_refused(lambda: adds(torch.zeros(4)))
    double(module.kept)
    _given_memory_is_refused(lambda: compiled_module(torch.zeros(4)))


def test_a_container_that_the_program_may_change_is_not_taken_apart() -> None:
    def appended(cache: dict[str, Tensor], x: Tensor) -> Tensor:
        cache["k"] = torch.cat([cache["k"], x])
        return x * 2

    cache = {"k": torch.zeros(2)}
    fast = compiled(appended, donate=("cache",))
    fast(cache, torch.ones(2))
    assert cache["k"].tolist() == [0, 0, 1, 1]
    assert "holds a dict" in fast.reports[0].donations[0].reason


def test_what_was_not_used_may_be_used_again() -> None:
    def grow(state: Tensor) -> None:
        state.add_(1)

    fast, state = compiled(grow, donate=("state",)), torch.zeros(3)
    fast(state)
    fast(state)
    assert state.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.from_numpy(np.zeros(4, dtype=np.float32)), "PyTorch did not allocate"),
        (nn.Parameter(torch.zeros(4), requires_grad=False), "no plain tensor"),
    ],
)
def test_memory_and_objects_that_are_more_than_a_tensor_are_left_alone(value: Tensor, reason: str) -> None:
    fast = compiled(step, donate=("state",))
    assert torch.equal(fast(value, torch.ones(4)), step(value, torch.ones(4)))
    assert not value.any()
    assert reason in fast.reports[0].donations[0].reason


def test_autograd_knows_that_what_it_saved_is_gone() -> None:
    with torch.enable_grad():
        weight, state = torch.ones(4, requires_grad=True), torch.ones(4)
        loss = (weight * state).sum()
        with torch.no_grad():
            compiled(lambda state: state * 5, donate=("state",))(state)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_threads_give_away_at_once() -> None:
    fast = compiled(lambda state: torch.tanh(state * 2), donate=("state",))
    kept = [torch.ones(4) for _ in range(500)]
    for state in kept:
        fast(state)
    failed: list[Exception] = []

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(40):
                    fast(torch.ones(4))
        except Exception as error:  # it is told in the main thread
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


# ---- generated code ------------------------------------------------------------------------------------------


def _twice_and_turned(state: Tensor) -> tuple[Tensor, Tensor]:
    return state.t() + 1, state * 2


def _indexed(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    return state.index_put((torch.tensor(1),), row), row * 2


@pytest.mark.parametrize(
    ("program", "rest", "operator"),
    [
        (step, (torch.ones(4, 4),), "aten.tanh.default"),
        (_twice_and_turned, (), "aten.mul.Tensor"),
        (_indexed, (torch.full((4,), -1.0),), "aten.index_put.default"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_generated_code_computes_a_result_into_donated_memory(
    program: Callable[..., Any], rest: tuple[Tensor, ...], operator: str
) -> None:
    fast = reink.compile(program, donate=("state",), prove=True)
    state = torch.arange(16.0).view(4, 4)
    address, expected = state.data_ptr(), program(state.clone(), *rest)
    results = fast(state, *rest)
    torch.testing.assert_close(results, expected)
    assert address in [r.data_ptr() for r in (results if isinstance(results, tuple) else (results,))]
    (report,) = fast.reports
    assert report.codegen == "inductor"
    assert [(d.name, d.bytes, d.operator) for d in report.donations] == [("state", 64, operator)]


def test_generated_code_leaves_a_donation_that_a_library_kernel_would_have_to_be_copied_into() -> None:
    def product(state: Tensor, x: Tensor) -> Tensor:
        return torch.mm(state, x)

    fast = reink.compile(product, donate=("state",))
    state = torch.arange(16.0).view(4, 4)
    before = state.clone()
    torch.testing.assert_close(fast(state, torch.eye(4)), before)
    assert torch.equal(state, before)
    assert "no value that is made after its last use" in fast.reports[0].donations[0].reason
