"""How the caller's tensors share memory, and how that reaches the graph.

Inputs that overlap, at least one of them written, cannot be told apart by names: the graph gets one flat base
that spans them, and takes each input as a view of it. Only the relation counts, not absolute addresses, so a
window that slides through a storage is one pattern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from reink.core.region import Region, disjoint, overlaps_itself, reach_of
from reink.core.torch_internals import FakeTensorMode, storage_key

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Member:
    """Input number `input` inside a cluster: `offset` bytes after the start of the base.

    `is_conj` and `is_neg` are its lazy bits: what its bytes mean.
    """

    input: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_conj: bool = False
    is_neg: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """Inputs that share memory: a flat base of `length` elements of `dtype` spans them all."""

    members: tuple[Member, ...]
    length: int
    dtype: torch.dtype
    written: tuple[int, ...] = ()


AliasPattern = tuple[Cluster, ...]

_Span = tuple[int, int, int]
_NOTHING: Mapping[int, int] = MappingProxyType({})


def alias_pattern(inputs: Sequence[Any], written: Sequence[int], whole: Set[int] = frozenset()) -> AliasPattern:
    """The clusters among `inputs`; `written` are the positions that the program writes.

    Inputs that overlap with no written one are left alone, however much they share. Of those in `whole` the program
    looks at all of the storage: each is in a cluster that spans it, if need be alone.
    """
    targets = {i for i in (*written, *whole) if _has_memory(inputs[i])}
    if not targets:
        return ()
    memories: dict[Any, list[_Span]] = {}
    for position, value in enumerate(inputs):
        if _has_memory(value):
            memory, start = address_of(value)
            span = _storage_span if position in whole else _span
            memories.setdefault(memory, []).append(span(value, start, position))
    clusters = []
    for group in (g for spans in memories.values() for g in _touching(sorted(spans))):
        for component in _overlapping(group, inputs, targets, whole):
            clusters.append(_cluster(component, inputs, set(written)))
    # by input, not by address: the same program gives the same graph each time
    return tuple(sorted(clusters, key=lambda c: c.members[0].input))


@dataclass(frozen=True, slots=True)
class Watched:
    """The inputs that decide how a program has to be compiled: those that it writes, and those of which it looks at
    all of the storage."""

    written: tuple[int, ...]
    whole: frozenset[int]

    def pattern(self, inputs: Sequence[Any]) -> AliasPattern:
        """How these inputs share memory."""
        return alias_pattern(inputs, self.written, self.whole)


def address_of(tensor: Tensor) -> tuple[Any, int]:
    """The memory in which `tensor` lies, and the byte there of its first element.

    The memory is the device, whatever the storages are; on ``meta``, which has no addresses, it is the storage.
    """
    if tensor.is_meta:
        return storage_key(tensor), int(tensor.storage_offset()) * tensor.element_size()
    return tensor.device, tensor.data_ptr()


def _has_memory(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and value.numel() > 0


def _span(tensor: Tensor, start: int, position: int) -> _Span:
    """First byte, one past the last byte, position."""
    return start, start + reach_of(tensor.size(), tensor.stride()) * tensor.element_size(), position


def _storage_span(tensor: Tensor, start: int, position: int) -> _Span:
    """`_span` for the whole storage that `tensor` lies in."""
    first = start - int(tensor.storage_offset()) * tensor.element_size()
    return first, first + tensor.untyped_storage().nbytes(), position


def _touching(spans: list[_Span]) -> list[list[_Span]]:
    groups: list[list[_Span]] = []
    end = 0
    for span in spans:
        if groups and span[0] < end:
            groups[-1].append(span)
        else:
            groups.append([span])
        end = max(end, span[1])
    return groups


def _overlapping(group: list[_Span], inputs: Sequence[Any], targets: set[int], whole: Set[int]) -> list[list[_Span]]:
    """The parts of a group that are tied by an overlap with a target: a written input, or one that is looked beyond."""
    parts = [[s] for s in group if s[2] in targets]
    if not parts:
        return []
    regions = {p: Region.of((hi - lo,), (1,), lo, 1) if p in whole else _region(inputs[p], lo) for lo, hi, p in group}
    merged: list[list[_Span]] = []
    for part in parts:
        tied = [s for s in group if s is part[0] or not disjoint(regions[s[2]], regions[part[0][2]])]
        joined = [m for m in merged if any(s in m for s in tied)]
        for m in joined:
            merged.remove(m)
            tied.extend(s for s in m if s not in tied)
        merged.append(sorted(tied))
    alone = (m[0][2] for m in merged if len(m) == 1)
    kept = {p for p in alone if p in whole or _shares_with_itself(inputs[p])}
    return _without_strangers([m for m in merged if len(m) > 1 or m[0][2] in kept], group, inputs)


def _without_strangers(parts: list[list[_Span]], group: list[_Span], inputs: Sequence[Any]) -> list[list[_Span]]:
    """Take into each part every input that lies within its span: the base of the part covers those bytes too."""
    wide: list[list[_Span]] = []
    for part in parts:
        start, end = _reach(part, inputs)
        inside = {s for s in group if s[0] < end and start < s[1]} | set(part)
        for other in [w for w in wide if any(s in inside for s in w)]:
            wide.remove(other)
            inside |= set(other)
        wide.append(sorted(inside))
    return wide if wide == [sorted(p) for p in parts] else _without_strangers(wide, group, inputs)


def _reach(part: list[_Span], inputs: Sequence[Any]) -> tuple[int, int]:
    """First and one-past-last byte of a base for the inputs of `part`.

    For inputs of several dtypes it starts at a multiple of the largest element in their storage, and its length is one
    where the storage has room: a new version of the base, which starts at one too, must let each of them be seen in
    its dtype, and PyTorch copies such views only where they divide their storage.
    """
    start, end = min(s[0] for s in part), max(s[1] for s in part)
    tensors = [inputs[s[2]] for s in part]
    item = max(t.element_size() for t in tensors)
    if len({t.dtype for t in tensors}) == 1:
        return start, end - (end - start) % item
    first, last, _ = _storage_span(tensors[0], address_of(tensors[0])[1], 0)
    start -= (start - first) % item
    rounded = start + -(-(end - start) // item) * item
    if rounded > last:  # what is left at the end of a storage belongs to no larger element
        used = max(_span(t, address_of(t)[1], 0)[1] for t in tensors)
        rounded = rounded - item if rounded - item >= used else end
    return start, rounded


def _shares_with_itself(tensor: Tensor) -> bool:
    return overlaps_itself(tuple(tensor.size()), tensor.stride())


def _region(tensor: Tensor, start: int) -> Region:
    itemsize = tensor.element_size()
    size, stride = (*tensor.size(), itemsize), (*(s * itemsize for s in tensor.stride()), 1)
    return Region.of(size, stride, start, 1)


def _cluster(part: list[_Span], inputs: Sequence[Any], written: set[int]) -> Cluster:
    dtypes = {inputs[s[2]].dtype for s in part}
    start, end = _reach(part, inputs)
    members = tuple(_placed(inputs[s[2]], s[2], start) for s in part)
    dtype = members[0].dtype if len(dtypes) == 1 else torch.uint8
    # a copy of flags makes every byte 0 or 1, and what lies between and beyond the members may be anything
    if dtype is torch.bool or any(n % dtype.itemsize for n in (end - start, *(m.offset for m in members))):
        dtype = torch.uint8
    length = (end - start) // dtype.itemsize
    return Cluster(members, length, dtype, tuple(s[2] for s in part if s[2] in written))


def _placed(tensor: Tensor, position: int, start: int) -> Member:
    """The input as a member of a cluster that begins at address `start`."""
    offset = address_of(tensor)[1] - start
    bits = tensor.is_conj(), tensor.is_neg()
    return Member(position, tuple(tensor.size()), tensor.stride(), offset, tensor.dtype, *bits)


def behind(position: int, pattern: AliasPattern, count: int) -> set[int]:
    """The positions among the user's `count` inputs that an input of the graph stands for, given a pattern."""
    inside = members_of(pattern)
    outside = [i for i in range(count) if i not in inside]
    if position < len(outside):
        return {outside[position]}
    return {m.input for m in pattern[position - len(outside)].members}


def note_writes(inputs: Sequence[Any], pattern: AliasPattern) -> None:
    """Tell autograd that the written inputs behind a base have changed, as writing them by name would."""
    for cluster in pattern:
        for position in cluster.written:
            if not inputs[position].is_inference():
                torch.autograd.graph.increment_version(inputs[position])


def has_one_storage(inputs: Sequence[Any], pattern: AliasPattern) -> bool:
    """Whether each cluster is memory of one storage; arrays from outside can share memory without sharing one."""
    return all(len({storage_key(inputs[m.input]) for m in c.members}) == 1 for c in pattern)


def members_of(pattern: AliasPattern) -> set[int]:
    """Positions of the inputs that are views of a base."""
    return {m.input for c in pattern for m in c.members}


def pack(inputs: Sequence[Any], pattern: AliasPattern) -> list[Any]:
    """The graph's inputs: those outside clusters, in order, then one flat base for each cluster."""
    inside = members_of(pattern)
    return [v for i, v in enumerate(inputs) if i not in inside] + [_base(inputs, c) for c in pattern]


def _base(inputs: Sequence[Any], cluster: Cluster) -> Tensor:
    member = cluster.members[0]
    tensor: Tensor = inputs[member.input].detach()
    offset = (tensor.storage_offset() * tensor.element_size() - member.offset) // cluster.dtype.itemsize
    base = torch.empty(0, dtype=cluster.dtype, device=tensor.device)
    return base.set_(tensor.untyped_storage(), offset, (cluster.length,), (1,))


def unpack(packed: Sequence[Any], pattern: AliasPattern, count: int) -> list[Any]:
    """The `count` inputs of the user's program again, made from the graph's by views; runs under tracing."""
    inside = members_of(pattern)
    bases = packed[count - len(inside) :]
    rest = iter(packed[: count - len(inside)])
    inputs: list[Any] = [None if i in inside else next(rest) for i in range(count)]
    for base, cluster in zip(bases, pattern, strict=True):
        for member in cluster.members:
            inputs[member.input] = _member(base, member, cluster)
    return inputs


def _member(base: Tensor, member: Member, cluster: Cluster) -> Tensor:
    start = member.offset // cluster.dtype.itemsize
    reach = reach_of(member.size, member.stride)
    part = base[start : start + reach * member.dtype.itemsize // cluster.dtype.itemsize]
    if member.dtype != cluster.dtype:
        part = part.view(member.dtype)
    part = part.as_strided(member.size, member.stride)
    if member.is_conj:
        part = part.conj()
    return part._neg_view() if member.is_neg else part


def fake_inputs(inputs: Sequence[Any], mode: FakeTensorMode, offsets: Mapping[int, int] = _NOTHING) -> list[Any]:
    """Fake tensors for tracing, each in a storage of its own; `offsets` are offsets there unlike those of `inputs`."""
    return [_fake(v, mode, offsets.get(k)) for k, v in enumerate(inputs)]


def _fake(value: Any, mode: FakeTensorMode, offset: int | None = None) -> Any:
    if not isinstance(value, Tensor):
        return value
    start: Any = value.storage_offset() if offset is None else offset
    with mode:
        tensor = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        if type(start) is int and start:
            count = start + reach_of(value.size(), value.stride())
            flat = torch.empty((count,), dtype=value.dtype, device=value.device)
            tensor = flat.as_strided(value.size(), value.stride(), start)
        if value.is_conj():
            tensor = tensor.conj()
        if value.is_neg():
            tensor = tensor._neg_view()
    return tensor
