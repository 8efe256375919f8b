"""Arguments that the caller gives away: their memory is used, and any later use is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def step(state: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(state * 0.5 + x)


def test_a_result_lies_in_the_memory_that_was_given_away() -> None:
    fast = reink.compile(step, donate=("state",), prove=True)
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
    result = reink.compile(updated, donate=("cache",), prove=True)(cache, row)
    assert torch.equal(result, expected)
    assert result.data_ptr() == address


def test_each_tensor_of_an_argument_is_given() -> None:
    def both(pair: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return pair["a"] + x, pair["b"] * x

    pair = {"a": torch.arange(4.0), "b": torch.arange(4.0)}
    addresses, expected = [t.data_ptr() for t in pair.values()], both(pair, torch.ones(4))
    results = reink.compile(both, donate=("pair",))(pair, torch.ones(4))
    assert all(map(torch.equal, results, expected))
    assert [r.data_ptr() for r in results] == addresses


def _use_again(fast: Any, state: Tensor, x: Tensor) -> Any:
    return fast(state, x)


@pytest.mark.parametrize("alias", [lambda s: s, lambda s: s.view(2, 3)[1], lambda s: s.detach()])
def test_a_use_through_any_alias_names_both_lines(alias: Callable[[Tensor], Tensor]) -> None:
    fast, state = reink.compile(step, donate=("state",)), torch.arange(6.0)
    other = alias(state)
    fast(state, torch.ones(6))  # given away here
    with pytest.raises(ReinkError) as caught:
        _use_again(fast, other, torch.ones(other.shape))
    error = caught.value
    assert error.code == "donated-input"
    assert "in _use_again    return fast(state, x)" in error.where
    assert "fast(state, torch.ones(6))  # given away here" in error.why
    with pytest.raises(ReinkError):  # nor by a callable that donates nothing
        reink.compile(step)(torch.ones(other.shape), other)


def test_an_argument_that_is_returned_as_it_is_is_an_error_if_its_memory_is_used() -> None:
    fast = reink.compile(lambda state: (state, state * 2), donate=("state",))
    with pytest.raises(ReinkError, match="the program returns it") as caught:
        fast(torch.ones(3))
    assert caught.value.code == "donated-input"


def test_a_written_argument_keeps_its_new_value() -> None:
    def grow(state: Tensor) -> Tensor:
        state.add_(1)
        return state

    fast, state = reink.compile(grow, donate=("state",)), torch.zeros(3)
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
    report = reink.explain(step, args, donate=("state",))
    assert [reason in d.reason for d in report.donations] == [True]
    assert reason in str(report)
    fast = reink.compile(step, donate=["state"])
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
    fast = reink.compile(model, donate=("x",))
    assert fast(model.kept).tolist() == [2, 2, 2, 2]
    assert model.kept.tolist() == [1, 1, 1, 1]
    assert "shares memory with kept" in fast.reports[0].donations[0].reason


def test_what_an_object_holds_is_not_given_away() -> None:
    def applied(layer: Any, x: Tensor) -> Any:
        return layer(x) + layer.bias

    layer: Any = nn.Linear(4, 4).requires_grad_(False)
    x, before = torch.ones(4), layer.bias.clone()
    expected = applied(layer, x)
    fast = reink.compile(applied, donate=("layer",))
    assert torch.equal(fast(layer, x), expected)
    assert torch.equal(layer.bias, before)
    assert "a Linear, which is not taken apart" in fast.reports[0].donations[0].reason


def test_views_of_a_donated_argument_and_late_reads_are_right() -> None:
    def late(state: Tensor) -> tuple[Tensor, Tensor]:
        doubled = state * 2
        return doubled, doubled + state[1]

    def returned(state: Tensor) -> tuple[Tensor, Tensor]:
        return state[1:], state * 2

    for program in (late, returned):
        expected = program(torch.arange(4.0))
        results = reink.compile(program, donate=("state",), prove=True)(torch.arange(4.0))
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
        (lambda: reink.compile(step, donate=("stat",)), "did you mean 'state'?"),
        (lambda: reink.compile(step, donate="state"), "list of names"),
        (lambda: reink.compile(step, donate=("state",), fullgraph=False), "fullgraph"),
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
