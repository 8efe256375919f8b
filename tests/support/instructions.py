"""The instructions of random programs: each a small function of tensors and whole numbers.

Numbers are reduced to what the tensor at hand allows, so that most instructions are legal on most
tensors. Values stay whole and small: sums are then exact in any order, and no cast is undefined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from support.operators import ops

Kind = Literal["view", "read", "write", "custom"]
Action = Callable[[Sequence[Tensor], Sequence[int]], Sequence[Tensor]]

INSTRUCTIONS: dict[str, tuple[Kind, Action]] = {}

LARGEST = 64
"""No tensor of a random program has more elements."""

SEQUENTIAL = frozenset({"lower_and_scale", "ramp", "sweep", "bump_maybe", "triple_out", "triple_tagged_out"})
"""Custom operators whose answer is defined even if their operands overlap each other."""

_WHOLE = (torch.uint8, torch.int16, torch.int32, torch.int64)


def _instruction(kind: Kind) -> Callable[[Action], Action]:
    def register(action: Action) -> Action:
        INSTRUCTIONS[action.__name__.strip("_")] = (kind, action)
        return action

    return register


def element_offsets(tensor: Tensor) -> list[int]:
    """The offset in bytes, inside its storage, of the first byte of every element of `tensor`."""
    size = tensor.element_size()
    steps = [range(n) for n in tensor.shape]
    strides = tensor.stride()
    starts = (sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*steps))
    return [(int(tensor.storage_offset()) + int(start)) * size for start in starts]


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements of `tensor` are the same memory."""
    return len(set(element_offsets(tensor))) < tensor.numel()


def overlap_in_part(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share bytes without being the same view: an elementwise write is then undefined."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    here, there = element_offsets(a), element_offsets(b)
    if a.dtype == b.dtype and here == there and a.is_neg() == b.is_neg() and a.is_conj() == b.is_conj():
        return False
    touched = {x + k for x in here for k in range(a.element_size())}
    return any(x + k in touched for x in there for k in range(b.element_size()))


def _dim(t: Tensor, number: int) -> int:
    return number % t.dim()


def _bounded(source: Tensor) -> Tensor:
    """`source` with values under 997, real; the same tensor where that is a no-op for its type."""
    if source.is_complex():
        source = torch.view_as_real(source.resolve_conj())[..., 0]
    if source.dtype is torch.bool:
        return source
    return source if source.dtype is torch.uint8 else source.remainder(997)


def _fitting(source: Tensor, target: Tensor) -> Tensor:
    """`source` as something that can be written into `target`: itself where possible, else its sum."""
    if source.is_complex() and not target.is_complex():
        source = source.real
    source = source.to(target.dtype)
    trailing = target.shape[target.dim() - source.dim() :] if source.dim() <= target.dim() else None
    fits = trailing is not None and all(n in (1, m) for n, m in zip(source.shape, trailing, strict=True))
    return source if fits else source.sum().to(target.dtype)


# --- views ----------------------------------------------------------------------------------------------


@_instruction("view")
def _flat_view(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].view(-1)]


@_instruction("view")
def _reshape(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    total = v[0].numel()
    factors = [k for k in range(1, total + 1) if total % k == 0]
    first = factors[n[0] % len(factors)]
    return [v[0].reshape(first, total // first)]


@_instruction("view")
def _select(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    dim = _dim(v[0], n[0])
    return [v[0].select(dim, n[1] % v[0].shape[dim])]


@_instruction("view")
def _slice(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    dim = _dim(v[0], n[0])
    size = v[0].shape[dim]
    start = n[1] % (size + 1)
    stop = start + n[2] % (size - start + 1)
    index = (slice(None),) * dim + (slice(start, stop, 1 + n[3] % 3),)
    return [v[0][index]]


@_instruction("view")
def _narrow(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    dim = _dim(v[0], n[0])
    start = n[1] % v[0].shape[dim]
    return [v[0].narrow(dim, start, v[0].shape[dim] - start)]


@_instruction("view")
def _transpose(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].transpose(_dim(v[0], n[0]), _dim(v[0], n[1]))]


@_instruction("view")
def _permute(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    orders = list(itertools.permutations(range(v[0].dim())))
    return [v[0].permute(orders[n[0] % len(orders)])]


@_instruction("view")
def _unsqueeze(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].unsqueeze(n[0] % (v[0].dim() + 1))]


@_instruction("view")
def _squeeze(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].squeeze()] if n[0] % 2 else [v[0].squeeze(_dim(v[0], n[1]))]


@_instruction("view")
def _diagonal(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].diagonal(n[0] % 3 - 1, 0, 1)]


@_instruction("view")
def _expand(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].expand([1 + n[0] % 3 if size == 1 else size for size in v[0].shape])]


@_instruction("view")
def _unfold(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    dim = _dim(v[0], n[0])
    size = 1 + n[1] % v[0].shape[dim]
    return [v[0].unfold(dim, size, 1 + n[2] % (size + 1))]


@_instruction("view")
def _split(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return torch.split(v[0], 1 + n[0] % 3, _dim(v[0], n[1]))[:4]


@_instruction("view")
def _chunk(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return v[0].chunk(1 + n[0] % 3, _dim(v[0], n[1]))


@_instruction("view")
def _unbind(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return v[0].unbind(_dim(v[0], n[0]))[:4]


@_instruction("view")
def _as_strided(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    dim = _dim(v[0], n[0])
    size, stride = list(v[0].shape), list(v[0].stride())
    size[dim], stride[dim] = (size[dim] + 1) // 2, stride[dim] * 2
    if n[1] % 2 or v[0].shape[dim] % 2:
        return [v[0].as_strided(size, stride)]
    return [v[0].as_strided(size, stride, v[0].storage_offset() + v[0].stride(dim))]


@_instruction("view")
def _unflatten(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].unflatten(_dim(v[0], n[0]), (-1, 2))]


@_instruction("view")
def _detach(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].detach()] if n[0] % 2 else [v[0][...]]


@_instruction("view")
def _contiguous(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].contiguous()]


@_instruction("view")
def _view_dtype(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    if v[0].dtype not in _WHOLE:
        return [torch.view_as_real(v[0])] if v[0].is_complex() else [v[0].view_as(v[0])]
    return [v[0].view(_WHOLE[n[0] % len(_WHOLE)])]


@_instruction("view")
def _complex_part(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [(v[0].real, v[0].imag, v[0].conj())[n[0] % 3]] if v[0].is_complex() else [v[0].real]


# --- reads ----------------------------------------------------------------------------------------------


@_instruction("read")
def _clone(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].clone()]


@_instruction("read")
def _plus(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0] + n[0] % 3]


@_instruction("read")
def _sum_of_two(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    result = v[0] + _bounded(_fitting(v[1], v[0]))
    return [result]


@_instruction("read")
def _total(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [_bounded(v[0]).sum()]


@_instruction("read")
def _stacked(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [torch.stack([v[0], _fitting(v[1], v[0]).expand(v[0].shape)])]


@_instruction("read")
def _cast(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [_bounded(v[0]).to((torch.float64, torch.int64)[n[0] % 2])]


# --- ATen writes: the first operand is written ----------------------------------------------------------


@_instruction("write")
def _add_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].add_(_bounded(_fitting(v[1], v[0])), alpha=1 + n[0] % 2)]


@_instruction("write")
def _sub_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].sub_(_fitting(v[1], v[0]))]


@_instruction("write")
def _mul_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].mul_((-1, 2, 0)[n[0] % 3])]


@_instruction("write")
def _copy_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].copy_(_fitting(v[1], v[0]))]


@_instruction("write")
def _fill_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].fill_(n[0])] if n[1] % 3 else [v[0].zero_()]


@_instruction("write")
def _relu_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].relu_()]


@_instruction("write")
def _masked_fill_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].masked_fill_(_fitting(v[1], v[0]).remainder(2) == 0, n[0])]


@_instruction("write")
def _comparison_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [v[0].gt_(_fitting(v[1], v[0]))]


@_instruction("write")
def _index_put_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    index = torch.arange(1 + n[0] % v[0].shape[0])
    found = _bounded(_fitting(v[1], v[0][: len(index)]))
    return [v[0].index_put_((index,), found, accumulate=n[1] % 2 == 1)]


@_instruction("write")
def _index_copy_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    dim = _dim(v[0], n[0])
    part = v[0].narrow(dim, 0, 1 + n[1] % v[0].shape[dim])
    index = torch.arange(part.shape[dim])
    return [v[0].index_copy_(dim, index, _fitting(v[1], part).expand(part.shape).clone())]


@_instruction("write")
def _scatter_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    dim = _dim(v[0], n[0])
    index = torch.zeros_like(v[0].narrow(dim, 0, 1), dtype=torch.int64) + n[1] % v[0].shape[dim]
    return [v[0].scatter_(dim, index, n[2])]


@_instruction("write")
def _assign_row(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    row = n[0] % v[0].shape[0]
    v[0][row] = _fitting(v[1], v[0][row])
    return []


# --- custom operators -----------------------------------------------------------------------------------


@_instruction("custom")
def _bump(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    ops.bump(v[0])
    return []


@_instruction("custom")
def _absorb(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    ops.absorb(v[0], _fitting(v[1], v[0]))
    return []


@_instruction("custom")
def _lower_and_scale(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    ops.lower_and_scale(v[0], v[1])
    return []


@_instruction("custom")
def _ramp(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    ops.ramp([v[0], v[1]])
    return []


@_instruction("custom")
def _bump_maybe(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    ops.bump_maybe(v[0], v[1] if n[0] % 2 else None)
    return []


@_instruction("custom")
def _bump_and_parts(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return list(ops.bump_and_parts(v[0]))


@_instruction("custom")
def _merge_(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    merge = ops.merge_tagged_ if n[0] % 2 else ops.merge_
    return [merge(v[0], _fitting(v[1], v[0]))]


@_instruction("custom")
def _triple_out(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [ops.triple.out(_fitting(v[1], v[0]).expand(v[0].shape), out=v[0])]


@_instruction("custom")
def _triple_tagged_out(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    return [ops.triple_tagged.out(_fitting(v[1], v[0]).expand(v[0].shape), out=v[0])]


@_instruction("custom")
def _sweep(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    ops.sweep(_fitting(v[1], v[0]).expand(v[0].shape), v[0])
    return []


@_instruction("custom")
def _first_row(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    ops.first_row(v[0])
    return []


@_instruction("custom")
def _flip_sign_bit(v: Sequence[Tensor], n: Sequence[int]) -> Sequence[Tensor]:
    ops.flip_sign_bit(v[0].view(torch.int32))
    return []


def is_too_large(tensors: Sequence[Tensor]) -> bool:
    """Whether one of `tensors` has more elements than a random program may hold."""
    return any(math.prod(t.shape) > LARGEST for t in tensors)
