"""The inputs that a program is verified on: as given, and derived from them, each with a name.

An edit takes a fresh copy of the flat arguments and returns those to call with. It draws the same numbers each
time, so that eager and compiled get the same. Only plain strided tensors are edited.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reink.core.torch_internals import storage_key
from reink.verification.copies import copy_tensors, is_plain, with_kind

Leaves = list[Any]
Edit = Callable[[Leaves], Leaves]

# Bytes before and after each storage: a multiple of the largest element, and no multiple of a vector register.
GUARD = 48
# So many different sizes are made bigger, each in a run of its own.
MOST_SIZES = 6


@dataclass(frozen=True, slots=True)
class Variant:
    """Calls of one compiled function, an edit each, or the reason why there are none in `skipped`.

    `overlaps_in_part` marks inputs on which a result is defined only if each operator is defined on them.
    """

    name: str
    calls: tuple[Edit, ...] = ()
    overlaps_in_part: bool = False
    skipped: str = ""


def as_given(leaves: Leaves) -> Leaves:
    """The arguments as they are."""
    return leaves


def fresh(leaves: Leaves) -> Leaves:
    """Other values in the same places: reversed, and floating point ones moved by less than one.

    Whole numbers stay among those given, since they may be positions.
    """
    drawn = torch.Generator().manual_seed(1)
    for tensor in {id(t): t for t in leaves if is_plain(t)}.values():
        if has_memory_for_each(tensor):
            with torch.no_grad():
                values = tensor.detach().flatten().flip(0).view(tensor.shape)
                if tensor.is_floating_point() or tensor.is_complex():
                    noise = torch.rand(tensor.shape, generator=drawn, dtype=torch.float64)
                    values = values.to(torch.promote_types(tensor.dtype, torch.float32)) + noise.to(tensor.device)
                tensor.detach().copy_(values)
    return leaves


def has_memory_for_each(tensor: Tensor) -> bool:
    """Whether no dim of several elements has stride 0."""
    return all(stride != 0 or size < 2 for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def guarded(leaves: Leaves) -> Leaves:
    """Every storage inside a larger one, so that each tensor lies at an offset between guard zones."""
    memo: dict[int, Any] = {}
    copy_tensors([t for t in leaves if is_plain(t)], memo, GUARD)
    return [memo.get(id(v), v) for v in leaves]


def transposed(leaves: Leaves) -> Leaves:
    """Every tensor with its dimensions in the opposite order in memory."""
    return _each(leaves, lambda t: _in_order(t, range(t.dim() - 1, -1, -1)))


def gapped(leaves: Leaves) -> Leaves:
    """Every tensor with a gap after each element."""
    return _each(leaves, lambda t: torch.stack((t, _spoiled(t)), -1)[..., 0])


def grown(size: int) -> Edit:
    """Every dimension of `size` elements bigger by one; the values begin again at the end."""

    def edit(leaves: Leaves) -> Leaves:
        return _each(leaves, lambda t: _grown(t, size) if size in t.size() else t)

    return edit


def _grown(tensor: Tensor, size: int) -> Tensor:
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: -strides[d])
    for dim in (d for d, n in enumerate(tensor.size()) if n == size):
        tensor = tensor.index_select(dim, torch.arange(size + 1, device=tensor.device) % size)
    return _in_order(tensor, order)


def _in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A copy whose dimensions lie in memory in this order, outermost first."""
    order = list(order)
    back = [order.index(d) for d in range(len(order))]
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _spoiled(tensor: Tensor) -> Tensor:
    """A tensor like `tensor` of other values, to stand where nobody may read."""
    return torch.ones_like(tensor) if tensor.dtype == torch.bool else tensor * 0 + 77


def _each(leaves: Leaves, change: Callable[[Tensor], Tensor]) -> Leaves:
    made: dict[int, Tensor] = {}
    for tensor in leaves:
        if is_plain(tensor) and id(tensor) not in made:
            with torch.no_grad():
                changed = change(tensor.detach())
            made[id(tensor)] = tensor if changed.data_ptr() == tensor.data_ptr() else with_kind(tensor, changed)
    return [made.get(id(v), v) for v in leaves]


# pairs of inputs


def same_tensor(i: int, j: int) -> Edit:
    """Input `j` is the tensor object that input `i` is."""
    return lambda leaves: [leaves[i] if k == j else v for k, v in enumerate(leaves)]


def neighbours(i: int, j: int) -> Edit:
    """Input `j` right behind input `i` in one storage."""
    return _together(i, j, lambda a, b: torch.stack((a, b)), lambda both: (both[0], both[1]))


def interleaved(i: int, j: int) -> Edit:
    """The elements of `i` and `j` in turn in one storage."""
    return _together(i, j, lambda a, b: torch.stack((a, b), -1), lambda both: (both[..., 0], both[..., 1]))


def one_step_on(i: int, j: int) -> Edit:
    """Input `j` begins one row (one element of a vector) after `i` in one storage, and ends one after it."""
    return _together(i, j, lambda a, b: torch.cat((a, b[-1:])), lambda both: (both[:-1], both[1:]))


def _together(
    i: int, j: int, join: Callable[[Tensor, Tensor], Tensor], part: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Edit:
    def edit(leaves: Leaves) -> Leaves:
        with torch.no_grad():
            a, b = part(join(leaves[i].detach(), leaves[j].detach()))
        edited = list(leaves)
        edited[i], edited[j] = with_kind(leaves[i], a), with_kind(leaves[j], b)
        return edited

    return edit


def both(first: Edit, second: Edit) -> Edit:
    """One edit after the other."""
    return lambda leaves: second(first(leaves))


# the list


def variants(leaves: Sequence[Any], values: Edit) -> Iterator[Variant]:
    """The runs in which inputs share no more memory than as given. `values` is what eager accepts: fresh or given."""
    if values is fresh:
        yield Variant("called again with fresh values", (as_given, fresh))
    yield Variant("inside larger storages", (both(values, guarded),))
    tensors = [t for t in leaves if is_plain(t)]
    if _share(tensors):
        why = "the inputs share memory, which this would part"
        yield Variant("other strides", skipped=why)
        yield Variant("other sizes", skipped=why)
        return
    if any(t.dim() > 1 for t in tensors):
        yield Variant("transposed in memory", (both(values, transposed),))
    yield Variant("gaps between elements", (both(values, gapped),))
    sizes = sorted({int(n) for t in tensors for n in t.size() if n > 1}, reverse=True)
    for size in sizes[:MOST_SIZES]:
        yield Variant(f"size {size} made {size + 1}", (values, both(values, grown(size))))
    if sizes[MOST_SIZES:]:
        left = ", ".join(map(str, sizes[MOST_SIZES:]))
        yield Variant("other sizes", skipped=f"only the {MOST_SIZES} largest are made bigger; left as given: {left}")


def pair_variants(names: Sequence[str], leaves: Sequence[Any], i: int, j: int, values: Edit) -> list[Variant]:
    """The runs in which inputs `i` and `j` share a storage: the same, apart in it, and overlapping in part."""
    a, b = names[i], names[j]
    found = [
        Variant(f"{a}, {b} the same tensor", (both(values, same_tensor(i, j)),)),
        Variant(f"{a}, {b} neighbours in a storage", (both(values, neighbours(i, j)),)),
        Variant(f"{a}, {b} interleaved in a storage", (both(values, interleaved(i, j)),)),
    ]
    if leaves[i].dim() and leaves[i].size(0) > 1:
        name = f"{a}, {b} overlapping in part"
        found.append(Variant(name, (both(values, one_step_on(i, j)),), overlaps_in_part=True))
    return found


def pairs(leaves: Sequence[Any], written: Sequence[int]) -> list[tuple[int, int]]:
    """Inputs of one shape and dtype that share memory with no other, those with a `written` one first."""
    tensors = [(k, t) for k, t in enumerate(leaves) if is_plain(t) and t.numel() > 0]
    keys = [storage_key(t) for _, t in tensors]
    alone = [(k, t) for k, t in tensors if keys.count(storage_key(t)) == 1]
    found = [(i, j) for (i, a), (j, b) in itertools.combinations(alone, 2) if _kind(a) == _kind(b)]
    return sorted(found, key=lambda pair: -sum(k in written for k in pair))


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.dtype, tensor.device, tensor.requires_grad, type(tensor)


def _share(tensors: Sequence[Tensor]) -> bool:
    return len({storage_key(t) for t in tensors}) < len(tensors)
