"""Wrapper tensors: taken apart at the boundary, put together again around the program, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from corpus.random_and_effects import join_fake_group
from corpus.registry import counting
from corpus.wrappers import pair
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.two_tensor import TwoTensor

import reink
from reink.core.wrappers import Wrappers


class Replacing(TwoTensor):
    """A wrapper that takes another tensor in where others write: no write that its user can see in the old one."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.mul_.Tensor:
            args[0].a = args[0].a * args[1]
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Replacing:
        return Replacing(inner["a"], inner["b"])  # type: ignore[no-untyped-call]


class Forgetful(TwoTensor):
    """A wrapper that is put together again as another."""


@pytest.fixture
def mesh() -> DeviceMesh:
    """Two processes, of which this is the first and the other does not exist."""
    join_fake_group()
    return init_device_mesh("cpu", (2,))


def _store(cache: Any, x: Any) -> tuple[Any, Any]:
    cache[:, 1].copy_(x)
    return cache.mul_(2), (cache + 1).sum(0)


@pytest.mark.parametrize("how", ["compile", "functionalize"])
def test_a_tensor_spread_over_devices_is_written_in_place(mesh: DeviceMesh, how: str) -> None:
    def make() -> tuple[Any, Any]:
        return tuple(DTensor.from_local(t, mesh, [Shard(0)]) for t in (counting(3, 4), counting(3, start=60)))  # type: ignore[return-value]

    with torch.no_grad():
        expected, given = make(), make()
        want = _store(*expected)
        compiled: Any = (
            reink.compile(_store, fullgraph=True) if how == "compile" else reink.functionalize(_store, given)
        )
        got = compiled(*given)
    assert got[0] is given[0]
    assert got[1].placements == want[1].placements
    assert torch.equal(got[1].to_local(), want[1].to_local())
    assert torch.equal(given[0].to_local(), expected[0].to_local())
    if how == "compile":
        assert [r.bytes_cloned for r in compiled.reports] == [0]
    else:
        assert "cache_local_tensor: f32[3, 4]" in str(compiled)


def test_what_was_given_comes_back_as_the_same_object() -> None:
    def step(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return b.add_(1), a, a[0]

    given = pair(2, 3), pair(2, 3, start=30)
    b, a, row = reink.functionalize(step, given)(*given)
    assert (a is given[0], b is given[1]) == (True, True)
    assert type(row) is TwoTensor
    assert row.a.data_ptr() == given[0].a.data_ptr()


def test_a_wrapper_that_gets_another_tensor_is_refused() -> None:
    given = (Replacing(counting(3), counting(3, start=9)),)  # type: ignore[no-untyped-call]
    with pytest.raises(reink.ReinkError, match="puts other tensors into it") as raised:
        reink.functionalize(lambda x: x.mul_(2) + 1, given)
    assert raised.value.code == "tensor-subclass"


def test_a_wrapper_that_becomes_another_is_refused() -> None:
    given = (Forgetful(counting(3), counting(3, start=9)),)  # type: ignore[no-untyped-call]
    with pytest.raises(reink.ReinkError, match="Forgetful apart") as raised:
        reink.functionalize(lambda x: x + 1, given)
    assert raised.value.code == "tensor-subclass"


def test_a_subclass_that_says_nothing_of_its_tensors_is_refused_by_name() -> None:
    masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    with pytest.raises(reink.ReinkError, match="MaskedTensor") as raised:
        reink.functionalize(lambda x: x.mul_(2), (masked,))
    assert raised.value.code == "tensor-subclass"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: counting(3), id="plain"),
        pytest.param(lambda: TwoTensor(pair(3), pair(3)), id="deeper"),
        pytest.param(lambda: Forgetful(counting(3), counting(3)), id="another kind"),  # type: ignore[no-untyped-call]
        pytest.param(lambda: pair(4), id="another size"),
    ],
)
def test_a_pure_program_takes_wrappers_like_its_own(other: Any) -> None:
    pure = reink.functionalize(lambda x: x.mul_(2), (pair(3),))
    with pytest.raises(reink.ReinkError) as raised:
        pure(other())
    assert raised.value.code == "other-inputs"


def test_sizes_that_are_symbolic_are_left_to_stock() -> None:
    def double(x: Any) -> Any:
        return x.mul_(2) + 1

    compiled = reink.compile(double, fullgraph=True)
    with torch.no_grad():
        for size in (3, 4, 5):
            given, expected = pair(size), pair(size)
            assert torch.equal(compiled(given).a, double(expected).a)
            assert torch.equal(given.b, expected.b)


def test_apart_and_together_are_each_others_inverse() -> None:
    values = [counting(2), TwoTensor(pair(2), pair(2, start=7)), 3]
    wrappers = Wrappers(values)
    plain = wrappers.apart(values)
    assert [type(v) for v in plain] == [Tensor, *[Tensor] * 4, int]
    assert wrappers.names(["x", "y", "n"]) == ["x", "y_a_a", "y_a_b", "y_b_a", "y_b_b", "n"]
    again = wrappers.together(plain)
    assert wrappers.fit(again)
    assert all(a is b for a, b in zip(wrappers.apart(again), plain, strict=True))
