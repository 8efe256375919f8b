"""Custom operators that write their arguments, one of every kind that a schema can express.

They live in ``torch.ops.reink_test``. Most are defined through `torch.library.Library`, whose schemas
can say what `torch.library.custom_op` cannot (returns that alias an argument, lists of optionals); a few
through `custom_op`, since its objects differ (they bump version counters and check aliasing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_Library: Any = torch.library.Library
_LIBRARY = _Library("reink_test", "FRAGMENT")

ops: Any = torch.ops.reink_test

JOURNAL: list[float] = []
"""What `ops.note` has seen, in order. A test empties it before each run."""


def _returns_nothing(*args: object, **kwargs: object) -> None:
    return None


def _define(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any] | None = _returns_nothing,
    tags: Sequence[torch.Tag] = (),
) -> None:
    """Define `schema` with one kernel for every device, and a fake kernel unless `fake` is None."""
    _LIBRARY.define(schema, tags=tuple(tags))
    name = schema.split("(")[0]
    # a composite kernel serves meta tensors too, so an operator without a fake kernel has to be for one device
    _LIBRARY.impl(name, kernel, "CPU" if fake is None else "CompositeExplicitAutograd")
    if fake is not None:
        torch.library.register_fake(f"reink_test::{name}", fake, lib=_LIBRARY)


# --- one written argument -------------------------------------------------------------------------------


@torch.library.custom_op("reink_test::bump", mutates_args=("t",))
def bump(t: Tensor) -> None:
    """Add one to every element."""
    t.add_(1)


@torch.library.custom_op("reink_test::absorb", mutates_args=("into",))
def absorb(into: Tensor, item: Tensor) -> None:
    """Add `item`, which is only read, to `into`."""
    into.add_(item)


@torch.library.custom_op("reink_test::store_rows", mutates_args=("cache",))
def store_rows(cache: Tensor, rows: Tensor, at: int) -> None:
    """Overwrite the rows of `cache` that begin at `at`; the other rows keep their content."""
    cache[at : at + rows.shape[0]] = rows


def _first_row(t: Tensor) -> None:
    t[0].mul_(-3)


_define("first_row(Tensor(a!) t) -> ()", _first_row)


# --- several written arguments --------------------------------------------------------------------------


@torch.library.custom_op("reink_test::lower_and_scale", mutates_args=("low", "high"))
def lower_and_scale(low: Tensor, high: Tensor) -> None:
    """Two writes whose order shows when both arguments share memory."""
    low.sub_(3)
    high.mul_(-2)


@torch.library.custom_op("reink_test::store_pair", mutates_args=("keys", "values"))
def store_pair(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write new keys and values at the given slots of two caches."""
    keys[slots] = k
    values[slots] = v


@torch.library.custom_op("reink_test::norm_step", mutates_args=("hidden", "residual"))
def norm_step(hidden: Tensor, residual: Tensor, weight: Tensor) -> None:
    """Add to the residual stream, then overwrite the hidden state with its normalised value."""
    residual.add_(hidden)
    scale = residual.square().mean(-1, keepdim=True).add(1e-5).rsqrt()
    hidden.copy_(residual * scale * weight)


@torch.library.custom_op("reink_test::quantize_into", mutates_args=("cache", "scale"))
def quantize_into(x: Tensor, cache: Tensor, scale: Tensor) -> None:
    """Fill `scale` with the largest magnitude of `x`, and the last row of `cache` with `x` divided by it."""
    largest = x.abs().amax()
    scale.fill_(largest)
    cache[-1] = x / largest


def _ramp(ts: Sequence[Tensor]) -> None:
    for k, t in enumerate(ts):
        t.add_(10 * (k + 1))


_define("ramp(Tensor(a!)[] ts) -> ()", _ramp)


# --- written arguments that may be absent ---------------------------------------------------------------


def _bump_maybe(t: Tensor, other: Tensor | None) -> None:
    t.add_(2)
    if other is not None:
        other.mul_(3)


def _spill(x: Tensor, sink: Tensor | None) -> Tensor:
    if sink is not None:
        sink.copy_(x - 4)
    return x * 5


def _bump_present(ts: Sequence[Tensor | None]) -> None:
    for t in ts:
        if t is not None:
            t.add_(1)


def _spill_all(x: Tensor, sinks: Sequence[Tensor] | None) -> Tensor:
    for k, sink in enumerate(sinks or ()):
        sink.copy_(x * (k + 2))
    return x + 7


def _like_first(x: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(x)


_define("bump_maybe(Tensor(a!) t, Tensor(b!)? other) -> ()", _bump_maybe)
_define("spill(Tensor x, Tensor(a!)? sink) -> Tensor", _spill, _like_first)
_define("bump_present(Tensor(a!)?[] ts) -> ()", _bump_present)
_define("spill_all(Tensor x, Tensor(a!)[]? sinks) -> Tensor", _spill_all, _like_first)


# --- written arguments and fresh results ----------------------------------------------------------------


def _bump_and_square(t: Tensor) -> Tensor:
    t.add_(1)
    return t * t


def _bump_and_stats(t: Tensor) -> tuple[Tensor, Tensor]:
    t.mul_(2)
    return t.sum(0), t.amax(0)


def _bump_and_parts(t: Tensor) -> list[Tensor]:
    t.sub_(1)
    return [t * 2, t * 3]


def _two_sums(t: Tensor) -> tuple[Tensor, Tensor]:
    return t.new_empty(t.shape[1:]), t.new_empty(t.shape[1:])


def _two_like(t: Tensor) -> list[Tensor]:
    return [torch.empty_like(t), torch.empty_like(t)]


_define("bump_and_square(Tensor(a!) t) -> Tensor", _bump_and_square, _like_first)
_define("bump_and_stats(Tensor(a!) t) -> (Tensor, Tensor)", _bump_and_stats, _two_sums)
_define("bump_and_parts(Tensor(a!) t) -> Tensor[]", _bump_and_parts, _two_like)


# --- results that are an argument -----------------------------------------------------------------------


def _merge_(self: Tensor, src: Tensor) -> Tensor:
    return self.add_(src)


def _first_argument(self: Tensor, src: Tensor) -> Tensor:
    return self


def _triple(x: Tensor) -> Tensor:
    return x * 3


def _triple_out(x: Tensor, *, out: Tensor) -> Tensor:
    return out.copy_(x * 3)


def _out_argument(x: Tensor, *, out: Tensor) -> Tensor:
    return out


def _pour(x: Tensor, y: Tensor) -> Tensor:
    return y.add_(x)


def _second_argument(x: Tensor, y: Tensor) -> Tensor:
    return y


_define("merge_(Tensor(a!) self, Tensor src) -> Tensor(a!)", _merge_, _first_argument)
_define("merge_tagged_(Tensor(a!) self, Tensor src) -> Tensor(a!)", _merge_, _first_argument, [torch.Tag.inplace])
_define("triple(Tensor x) -> Tensor", _triple, _like_first)
_define("triple.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", _triple_out, _out_argument)
_define(
    "triple_tagged.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
    _triple_out,
    _out_argument,
    [torch.Tag.out],
)
_define("pour(Tensor x, Tensor(a!) y) -> Tensor(a!)", _pour, _second_argument)


# --- order inside one call matters ----------------------------------------------------------------------


def _halve_then_add_total(t: Tensor, src: Tensor) -> None:
    t.mul_(0.5)
    t.add_(src.sum())


def _sweep(src: Tensor, dst: Tensor) -> None:
    for i in range(dst.shape[0]):
        dst[i] = src[i] + 1


_define("halve_then_add_total(Tensor(a!) t, Tensor src) -> ()", _halve_then_add_total)
_define("sweep(Tensor src, Tensor(a!) dst) -> ()", _sweep)


# --- particular about dtype -----------------------------------------------------------------------------


def _flip_sign_bit(t: Tensor) -> None:
    if t.dtype is not torch.int32:
        raise TypeError(f"flip_sign_bit takes int32, not {t.dtype}")
    t.bitwise_xor_(-(1 << 31))


def _shift_reals(t: Tensor) -> None:
    if t.is_complex():
        raise TypeError("shift_reals takes real numbers")
    t.add_(0.25)


def _turn(t: Tensor) -> None:
    if not t.is_complex():
        raise TypeError("turn takes complex numbers")
    t.mul_(1j)


_define("flip_sign_bit(Tensor(a!) t) -> ()", _flip_sign_bit)
_define("shift_reals(Tensor(a!) t) -> ()", _shift_reals)
_define("turn(Tensor(a!) t) -> ()", _turn)


# --- effects --------------------------------------------------------------------------------------------


def _note(x: Tensor) -> None:
    JOURNAL.append(float(x.sum()))


def _quiet_write(src: Tensor, dst: Tensor) -> None:
    dst.add_(src)


def _jitter(t: Tensor) -> None:
    t.add_(torch.rand(t.shape, dtype=t.dtype))


_define("note(Tensor x) -> ()", _note)
_define("quiet_write(Tensor src, Tensor dst) -> ()", _quiet_write)
_define("jitter(Tensor(a!) t) -> ()", _jitter, tags=[torch.Tag.nondeterministic_seeded])


# --- beyond what a schema may promise: for refusals -----------------------------------------------------


def _swap_memory(t: Tensor, src: Tensor) -> None:
    torch.ops.aten.set_(t, src)


def _head(buffer: Tensor, count: int) -> Tensor:
    buffer[:count].fill_(1)
    return buffer[:count]


def _new_head(buffer: Tensor, count: int) -> Tensor:
    return buffer.new_empty((count, *buffer.shape[1:]))


_define("swap_memory(Tensor(a!) t, Tensor src) -> ()", _swap_memory)
_define("head(Tensor(a!) buffer, int count) -> Tensor", _head, _new_head)
_define("unfaked(Tensor x) -> Tensor", _triple, None)
