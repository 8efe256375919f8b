"""Custom operators of the tests: those of the fuzzer, and kinds that only single tests need."""

from __future__ import annotations

import torch
from torch import Tensor

from reink.fuzz.operators import operator, ops

__all__ = ["JOURNAL", "ops", "writes_one_of_two"]

JOURNAL: list[float] = []
"""What `ops.note` has seen, in order. A test empties it before each run."""


# --- that say little about themselves --------------------------------------------------------------------


@torch.library.custom_op("reink_tests::writes_one_of_two", mutates_args="unknown")
def writes_one_of_two(x: Tensor, y: Tensor) -> Tensor:
    """Add the second argument to the first, and say only that any argument may be written."""
    x.add_(y)
    return x * 2


@writes_one_of_two.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


# --- as serving engines have them -----------------------------------------------------------------------


@operator("store_pair(Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor slots) -> ()")
def store_pair(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write new keys and values at the given slots of two caches."""
    keys[slots] = k
    values[slots] = v


@operator("norm_step(Tensor(a!) hidden, Tensor(b!) residual, Tensor weight) -> ()")
def norm_step(hidden: Tensor, residual: Tensor, weight: Tensor) -> None:
    """Add to the residual stream, then overwrite the hidden state with its normalised value."""
    residual.add_(hidden)
    scale = residual.square().mean(-1, keepdim=True).add(1e-5).rsqrt()
    hidden.copy_(residual * scale * weight)


@operator("quantize_into(Tensor x, Tensor(a!) cache, Tensor(b!) scale) -> ()")
def quantize_into(x: Tensor, cache: Tensor, scale: Tensor) -> None:
    """Fill `scale` with the largest magnitude of `x`, and the last row of `cache` with `x` divided by it."""
    largest = x.abs().amax()
    scale.fill_(largest)
    cache[-1] = x / largest


@operator("shift_reals(Tensor(a!) t) -> ()")
def shift_reals(t: Tensor) -> None:
    """Takes real numbers only."""
    if t.is_complex():
        raise TypeError("shift_reals takes real numbers")
    t.add_(0.25)


# --- effects --------------------------------------------------------------------------------------------


@operator("note(Tensor x) -> ()")
def note(x: Tensor) -> None:
    """An effect outside of tensors."""
    JOURNAL.append(float(x.sum()))


@operator("quiet_write(Tensor src, Tensor dst) -> ()")
def quiet_write(src: Tensor, dst: Tensor) -> None:
    """Writes an argument against its schema."""
    dst.add_(src)


@operator("jitter(Tensor(a!) t) -> ()", tags=[torch.Tag.nondeterministic_seeded])
def jitter(t: Tensor) -> None:
    """Random numbers."""
    t.add_(torch.rand(t.shape, dtype=t.dtype))


# --- beyond what a schema may promise: for refusals -----------------------------------------------------


@operator("swap_memory(Tensor(a!) t, Tensor src) -> ()")
def swap_memory(t: Tensor, src: Tensor) -> None:
    """Replaces the storage of its argument."""
    torch.ops.aten.set_(t, src)


def _new_head(buffer: Tensor, count: int) -> Tensor:
    return buffer.new_empty((count, *buffer.shape[1:]))


@operator("head(Tensor(a!) buffer, int count) -> Tensor", _new_head)
def head(buffer: Tensor, count: int) -> Tensor:
    """Returns a view of its argument and does not say so."""
    buffer[:count].fill_(1)
    return buffer[:count]


@operator("unfaked(Tensor x) -> Tensor", None)
def unfaked(x: Tensor) -> Tensor:
    """Has no fake kernel."""
    return x * 3
