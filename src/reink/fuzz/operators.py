"""Custom operators that write their arguments, one of every kind that a schema can express.

They live in ``torch.ops.reink_fuzz``. `source_of` gives the text of some of them, so that a program that uses
them can be saved as a file that needs nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., Any]

library: Any = torch.library.Library("reink_fuzz", "FRAGMENT")
ops: Any = torch.ops.reink_fuzz


def returns_nothing(*args: object, **kwargs: object) -> None:
    """The fake kernel of an operator that only writes."""
    return None


def operator(
    schema: str, fake: Kernel | None = returns_nothing, tags: Sequence[torch.Tag] = ()
) -> Callable[[Kernel], Kernel]:
    """Define the decorated kernel as an operator for every device, with a fake kernel unless `fake` is None."""

    def define(kernel: Any) -> Kernel:
        library.define(schema, tags=tuple(tags))
        name = schema.split("(")[0]
        # a composite kernel serves meta tensors too, so an operator without a fake kernel is for one device
        library.impl(name, kernel, "CPU" if fake is None else "CompositeExplicitAutograd")
        if fake is not None:
            torch.library.register_fake(f"reink_fuzz::{name}", fake, lib=library)
        kernel.schema, kernel.fake = schema, fake
        return kernel  # type: ignore[no-any-return]

    return define


HEAD = """Kernel = Callable[..., Any]
library: Any = torch.library.Library("reink_fuzz", "FRAGMENT")
ops: Any = torch.ops.reink_fuzz
"""


def source_of(names: Iterable[str]) -> str:
    """Python source that defines the operators `names` (without overloads), with what they need."""
    wanted = set(names)
    kernels: list[Any] = [k for k in globals().values() if _name(k) in wanted]
    if not kernels:
        return ""
    fakes = dict.fromkeys([returns_nothing, *(k.fake for k in kernels)])
    parts = [HEAD, *map(inspect.getsource, [*fakes, operator, *kernels])]
    return "\n\n".join(parts)


def _name(kernel: Any) -> str:
    schema: str = getattr(kernel, "schema", "")
    return schema.split("(")[0].split(".")[0]


# --- fake results ---------------------------------------------------------------------------------------


def like_first(x: Tensor, *rest: object) -> Tensor:
    """One result like the first argument."""
    return torch.empty_like(x)


def two_like(t: Tensor) -> list[Tensor]:
    """A list of two results like the argument."""
    return [torch.empty_like(t), torch.empty_like(t)]


def two_rows(t: Tensor) -> tuple[Tensor, Tensor]:
    """Two results like a row of the argument."""
    return t.new_empty(t.shape[1:]), t.new_empty(t.shape[1:])


def is_first(self: Tensor, src: Tensor) -> Tensor:
    """The result is the first argument."""
    return self


def is_second(x: Tensor, y: Tensor) -> Tensor:
    """The result is the second argument."""
    return y


def is_out(x: Tensor, *, out: Tensor) -> Tensor:
    """The result is `out`."""
    return out


# --- one written argument -------------------------------------------------------------------------------


@operator("bump(Tensor(a!) t) -> ()")
def bump(t: Tensor) -> None:
    """Add one to every element."""
    t.add_(1)


@operator("absorb(Tensor(a!) into, Tensor item) -> ()")
def absorb(into: Tensor, item: Tensor) -> None:
    """Add `item`, which is only read, to `into`."""
    into.add_(item)


@operator("store_rows(Tensor(a!) cache, Tensor rows, int at) -> ()")
def store_rows(cache: Tensor, rows: Tensor, at: int) -> None:
    """Overwrite the rows of `cache` that begin at `at`; the other rows keep their content."""
    cache[at : at + rows.shape[0]] = rows


@operator("first_row(Tensor(a!) t) -> ()")
def first_row(t: Tensor) -> None:
    """Write one row only."""
    t[0].mul_(-3)


# --- several written arguments --------------------------------------------------------------------------


@operator("lower_and_scale(Tensor(a!) low, Tensor(b!) high) -> ()")
def lower_and_scale(low: Tensor, high: Tensor) -> None:
    """Two writes whose order shows when both arguments share memory."""
    low.sub_(3)
    high.mul_(-2)


@operator("ramp(Tensor(a!)[] ts) -> ()")
def ramp(ts: Sequence[Tensor]) -> None:
    """Write every tensor of a list."""
    for k, t in enumerate(ts):
        t.add_(10 * (k + 1))


# --- written arguments that may be absent ---------------------------------------------------------------


@operator("bump_maybe(Tensor(a!) t, Tensor(b!)? other) -> ()")
def bump_maybe(t: Tensor, other: Tensor | None) -> None:
    """Write a second argument if there is one."""
    t.add_(2)
    if other is not None:
        other.mul_(3)


@operator("spill(Tensor x, Tensor(a!)? sink) -> Tensor", like_first)
def spill(x: Tensor, sink: Tensor | None) -> Tensor:
    """A result, and a copy of it in other form if there is a place for it."""
    if sink is not None:
        sink.copy_(x * 4)
    return (x * 5).to(x.dtype)


@operator("bump_present(Tensor(a!)?[] ts) -> ()")
def bump_present(ts: Sequence[Tensor | None]) -> None:
    """Write the tensors of a list that are there."""
    for t in ts:
        if t is not None:
            t.add_(1)


@operator("spill_all(Tensor x, Tensor(a!)[]? sinks) -> Tensor", like_first)
def spill_all(x: Tensor, sinks: Sequence[Tensor] | None) -> Tensor:
    """A result, and a write to every tensor of a list that may be absent."""
    for k, sink in enumerate(sinks or ()):
        sink.copy_(x * (k + 2))
    return (x + 7).to(x.dtype)


# --- written arguments and fresh results ----------------------------------------------------------------


@operator("bump_and_square(Tensor(a!) t) -> Tensor", like_first)
def bump_and_square(t: Tensor) -> Tensor:
    """A write and a result."""
    t.add_(1)
    return t * t


@operator("bump_and_stats(Tensor(a!) t) -> (Tensor, Tensor)", two_rows)
def bump_and_stats(t: Tensor) -> tuple[Tensor, Tensor]:
    """A write and two results."""
    t.mul_(2)
    return t.sum(0).to(t.dtype), t.sum(0).neg().to(t.dtype)


@operator("bump_and_parts(Tensor(a!) t) -> Tensor[]", two_like)
def bump_and_parts(t: Tensor) -> list[Tensor]:
    """A write and a list of results."""
    t.sub_(1)
    return [(t * 2).to(t.dtype), (t * 3).to(t.dtype)]


# --- results that are an argument -----------------------------------------------------------------------


@operator("merge_(Tensor(a!) self, Tensor src) -> Tensor(a!)", is_first)
def merge_(self: Tensor, src: Tensor) -> Tensor:
    """In place, and returns what it wrote."""
    return self.add_(src)


@operator("merge_tagged_(Tensor(a!) self, Tensor src) -> Tensor(a!)", is_first, [torch.Tag.inplace])
def merge_tagged_(self: Tensor, src: Tensor) -> Tensor:
    """The same with the tag that says so."""
    return self.add_(src)


@operator("triple(Tensor x) -> Tensor", like_first)
def triple(x: Tensor) -> Tensor:
    """Writes nothing."""
    return (x * 3).to(x.dtype)


@operator("triple.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", is_out)
def triple_out(x: Tensor, *, out: Tensor) -> Tensor:
    """Writes its result into `out`."""
    return out.copy_(x * 3)


@operator("triple_tagged.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", is_out, [torch.Tag.out])
def triple_tagged_out(x: Tensor, *, out: Tensor) -> Tensor:
    """The same with the tag that says so."""
    return out.copy_(x * 3)


@operator("pour(Tensor x, Tensor(a!) y) -> Tensor(a!)", is_second)
def pour(x: Tensor, y: Tensor) -> Tensor:
    """Returns an argument that is not the first."""
    return y.add_(x)


# --- order inside one call matters ----------------------------------------------------------------------


@operator("halve_then_add_total(Tensor(a!) t, Tensor src) -> ()")
def halve_then_add_total(t: Tensor, src: Tensor) -> None:
    """Reads `src` after its first write."""
    t.mul_(0.5)
    t.add_(src.sum())


@operator("sweep(Tensor src, Tensor(a!) dst) -> ()")
def sweep(src: Tensor, dst: Tensor) -> None:
    """Reads and writes row by row."""
    for i in range(dst.shape[0]):
        dst[i] = src[i] + 1


# --- particular about dtype -----------------------------------------------------------------------------


@operator("flip_sign_bit(Tensor(a!) t) -> ()")
def flip_sign_bit(t: Tensor) -> None:
    """Takes int32 only."""
    if t.dtype is not torch.int32:
        raise TypeError(f"flip_sign_bit takes int32, not {t.dtype}")
    t.bitwise_xor_(-(1 << 31))


@operator("turn(Tensor(a!) t) -> ()")
def turn(t: Tensor) -> None:
    """Takes complex numbers only."""
    if not t.is_complex():
        raise TypeError("turn takes complex numbers")
    t.mul_(1j)
