"""Which bytes a small tensor covers, by listing them: what a random program needs to stay defined."""

from __future__ import annotations

import itertools

from torch import Tensor

from reink.core.torch_internals import storage_key


def element_offsets(tensor: Tensor) -> list[int]:
    """The offset in bytes, inside its storage, of the first byte of every element of `tensor`."""
    size = tensor.element_size()
    steps = [range(n) for n in tensor.shape]
    strides = tensor.stride()
    starts = (sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*steps))
    return [(int(tensor.storage_offset()) + int(start)) * size for start in starts]


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements of `tensor` are the same memory."""
    return not tensor.is_contiguous() and len(set(element_offsets(tensor))) < tensor.numel()


def overlap_in_part(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share bytes without being the same view: an elementwise write is then undefined."""
    if storage_key(a) != storage_key(b):
        return False
    same_bits = a.dtype == b.dtype and a.is_neg() == b.is_neg() and a.is_conj() == b.is_conj()
    return share_bytes(a, b) and not (same_bits and element_offsets(a) == element_offsets(b))


def share_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have bytes in common."""
    if storage_key(a) != storage_key(b):
        return False
    touched = {x + k for x in element_offsets(a) for k in range(a.element_size())}
    return any(x + k in touched for x in element_offsets(b) for k in range(b.element_size()))
