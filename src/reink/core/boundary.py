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

from reink.core.program import MutationSignature
from reink.core.region import Region, disjoint, overlaps_itself, reach_of
from reink.core.torch_internals import FakeTensor, FakeTensorMode, is_wrapper_subclass, storage_key
from reink.errors import ReinkError

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Member:
    """Input number `input` inside a cluster: `offset` bytes after the start of the base.

    `is_conj` and `is_neg` are its lazy bits: what its bytes mean. `same_as`: the input before it that is the very same
    tensor object, where the program changes what that is; or -1.
    """

    input: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_conj: bool = False
    is_neg: bool = False
    same_as: int = -1


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
_NO_INPUTS: frozenset[int] = frozenset()


def as_they_are(inputs: Sequence[Any]) -> list[Any]:
    """The inputs as they are now, to compile for: an object of our own, over the same memory, for each tensor object.

    The program itself may change the sizes and strides of those that it is given.
    """
    kept: dict[int, Any] = {}
    for value in inputs:
        plain = isinstance(value, Tensor) and not isinstance(value, FakeTensor) and not is_wrapper_subclass(value)
        kept.setdefault(id(value), value.data if plain else value)
    return [kept[id(value)] for value in inputs]


def alias_pattern(
    inputs: Sequence[Any], written: Sequence[int], whole: Set[int] = _NO_INPUTS, reshaped: Set[int] = _NO_INPUTS
) -> AliasPattern:
    """The clusters among `inputs`; `written` are the positions that the program writes.

    Inputs that overlap with no written one are left alone, however much they share. Of those in `whole` the program
    looks at all of the storage: each is in a cluster that spans it, if need be alone. Those in `reshaped` are objects
    that the program makes views of themselves: one that is given twice is in a cluster, where it is one object.
    """
    same = _given_twice(inputs, reshaped)
    empty = _empty_clusters(inputs, same)
    targets = {i for i in (*written, *whole, *same) if _has_memory(inputs[i])}
    if not targets:
        return empty
    memories: dict[Any, list[_Span]] = {}
    for position, value in enumerate(inputs):
        if _has_memory(value):
            memory, start = address_of(value)
            span = _storage_span if position in whole else _span
            memories.setdefault(memory, []).append(span(value, start, position))
    clusters = []
    for spans in memories.values():
        parts = [p for group in _touching(sorted(spans)) for p in _overlapping(group, inputs, targets, whole)]
        for part in _without_strangers(parts, spans, inputs):
            clusters.append(_cluster(part, inputs, set(written), same))
    # by input, not by address: the same program gives the same graph each time
    return tuple(sorted((*clusters, *empty), key=lambda c: c.members[0].input))


def _given_twice(inputs: Sequence[Any], reshaped: Set[int]) -> dict[int, int]:
    """The positions of each object among `reshaped` that comes more than once, each with the first of the object."""
    places: dict[int, list[int]] = {}
    for position, value in enumerate(inputs):
        if isinstance(value, Tensor):
            places.setdefault(id(value), []).append(position)
    return {p: same[0] for same in places.values() if len(same) > 1 and not reshaped.isdisjoint(same) for p in same}


def _empty_clusters(inputs: Sequence[Any], same: Mapping[int, int]) -> AliasPattern:
    """A cluster for each object that comes more than once and has no memory in which its positions could overlap."""
    found: dict[int, list[Member]] = {}
    for position, first in same.items():
        value = inputs[position]
        if value.layout is torch.strided and not value.numel():
            found.setdefault(first, []).append(_placed(value, position, address_of(value)[1], same))
    return tuple(Cluster(tuple(members), 0, members[0].dtype) for members in found.values())


@dataclass(frozen=True, slots=True)
class Watched:
    """The inputs that decide how a program has to be compiled: those that it writes, those of which it looks at all of
    the storage, and those of which it changes sizes, strides or start."""

    written: tuple[int, ...]
    whole: frozenset[int]
    reshaped: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.written or self.whole or self.reshaped)

    def pattern(self, inputs: Sequence[Any]) -> AliasPattern:
        """How these inputs share memory."""
        return alias_pattern(inputs, self.written, self.whole, self.reshaped)


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
    return [m for m in merged if len(m) > 1 or m[0][2] in kept]


def _without_strangers(parts: list[list[_Span]], spans: list[_Span], inputs: Sequence[Any]) -> list[list[_Span]]:
    """Take into each part every input that lies where its base will: the base covers those bytes too.

    `spans` are those of all inputs in the same memory.
    """
    wide: list[list[_Span]] = []
    for part in parts:
        start, end = _reach(part, inputs)
        inside = {s for s in spans if s[0] < end and start < s[1]} | set(part)
        for other in [w for w in wide if any(s in inside for s in w)]:
            wide.remove(other)
            inside |= set(other)
        wide.append(sorted(inside))
    return wide if wide == [sorted(p) for p in parts] else _without_strangers(wide, spans, inputs)


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


def _cluster(part: list[_Span], inputs: Sequence[Any], written: set[int], same: Mapping[int, int]) -> Cluster:
    dtypes = {inputs[s[2]].dtype for s in part}
    start, end = _reach(part, inputs)
    members = tuple(_placed(inputs[s[2]], s[2], start, same) for s in part)
    dtype = members[0].dtype if len(dtypes) == 1 else torch.uint8
    # a copy of flags makes every byte 0 or 1, and what lies between and beyond the members may be anything
    if dtype is torch.bool or any(n % dtype.itemsize for n in (end - start, *(m.offset for m in members))):
        dtype = torch.uint8
    length = (end - start) // dtype.itemsize
    return Cluster(members, length, dtype, tuple(s[2] for s in part if s[2] in written))


def _placed(tensor: Tensor, position: int, start: int, same: Mapping[int, int]) -> Member:
    """The input as a member of a cluster that begins at address `start`."""
    offset, first = address_of(tensor)[1] - start, same.get(position, position)
    rest = tensor.is_conj(), tensor.is_neg(), first if first < position else -1
    return Member(position, tuple(tensor.size()), tensor.stride(), offset, tensor.dtype, *rest)


def behind(position: int, pattern: AliasPattern, count: int) -> set[int]:
    """The positions among the user's `count` inputs that an input of the graph stands for, given a pattern."""
    inside = members_of(pattern)
    outside = [i for i in range(count) if i not in inside]
    if position < len(outside):
        return {outside[position]}
    return {m.input for m in pattern[position - len(outside)].members}


def hand_back(
    inputs: Sequence[Any], results: Sequence[Any], signature: MutationSignature, pattern: AliasPattern
) -> list[Any]:
    """The user's results of a run on `inputs`, after what only the boundary can do to the caller's tensor objects.

    Those that the program changes take sizes, strides and start of the view that the graph made of them, in place; and
    a result that is an input is that very object, where the graph has only a view of it.
    """
    found = list(results)
    _note_writes(inputs, pattern)
    if signature.changes:
        with torch.no_grad():
            for change in signature.changes:
                view: Tensor = found[change.output]
                inputs[change.input].as_strided_(view.size(), view.stride(), view.storage_offset())
    if pattern or signature.changes:
        for k, position in signature.identical:
            found[k] = inputs[position]
    return found[: len(found) - len(signature.changes)]


def _note_writes(inputs: Sequence[Any], pattern: AliasPattern) -> None:
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
        for member in sorted(cluster.members, key=lambda m: m.input):  # an object before it is the same again
            again = member.same_as >= 0
            inputs[member.input] = inputs[member.same_as] if again else _member(base, member, cluster)
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
    if value.layout is not torch.strided:
        raise ReinkError(
            "not-a-tensor-program",
            f"cannot capture: an input has the layout {value.layout}",
            why="reink follows memory by sizes and strides, and this has none",
            do="pass the tensors that it is made of, and make it inside the program",
        )
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
