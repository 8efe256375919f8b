"""Which tensor values share memory, and where: the one alias model that every pass asks.

A `Buffer` is one storage of the program. A `Place` is one way of looking at it: a size, strides, a byte offset
and a dtype. Places are unique per buffer, so two values live in the same place iff it is the same object,
and two views that address the same elements the same way are one place however they were made.
Offsets are relative to the buffer's base, never to the storage that the base may itself be a view of.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import torch

from reink.core.extent import Extent, extent_of
from reink.core.program import ViewStep
from reink.core.region import (
    Box,
    IntegerFacts,
    Region,
    boxes_disjoint,
    byte_size,
    contains,
    disjoint,
)
from reink.core.torch_internals import (
    ShapeEnv,
    detect_fake_mode,
    expression,
    fake_view,
    lower_bound,
    operator_named,
)

Tensor = torch.Tensor
Key = tuple[Any, ...]
Layout = tuple[tuple[Any, ...], tuple[Any, ...], Any]
Geometry = tuple[tuple[Any, ...], tuple[Any, ...], Any, torch.dtype, int, "Extent"]
# Views that insist on strides which have no meaning: those of dims of one element.
PARTICULAR_VIEWS = frozenset({"aten.view.dtype", "aten.view_as_real.default", "aten.view_as_complex.default"})


class SymbolFacts:
    """What is known about symbolic sizes without adding a guard: the ranges that torch recorded."""

    def __init__(self, environment: ShapeEnv | None) -> None:
        self.environment = environment

    def is_nonnegative(self, value: Any) -> bool:
        """True only if `value` is proven to be at least zero for every size that can occur."""
        if isinstance(value, int):
            return value >= 0
        bound = lower_bound(value, self.environment)
        return bound is not None and bound >= 0


class Buffer:
    """One storage. `kind` is ``input``, ``constant`` or ``fresh``; `name` is the value it was born as.

    Mutable: passes hang places, versions and lowered nodes on it.
    """

    __slots__ = ("facts", "input_index", "kind", "name", "places", "root")

    def __init__(self, kind: str, name: str, value: Tensor, input_index: int = -1) -> None:
        self.kind, self.name, self.input_index = kind, name, input_index
        self.places: dict[Key, Place] = {}
        self.facts: SymbolFacts | None = None
        size, stride, _, dtype, bits, extent = geometry_of(value)
        root = self.root = Place(self, size, stride, 0, dtype, bits, None, None, extent)
        root._value = value
        self.places[size, stride, 0, dtype, bits] = root

    def __repr__(self) -> str:
        return f"Buffer({self.kind} {self.name})"


class Place:
    """A view of a buffer: `size` and `stride` in elements of `dtype`, `offset` in bytes from the base.

    `parent` and `step` say how the view is made from a shorter chain; both are None for the base. `bits`
    holds the conjugate and negative bit. Sizes, strides and offset are ints or sympy expressions.
    """

    __slots__ = (
        "_box",
        "_hull",
        "_region",
        "_value",
        "bits",
        "buffer",
        "depth",
        "dtype",
        "extent",
        "offset",
        "parent",
        "size",
        "step",
        "stride",
        "windows",
    )

    def __init__(
        self,
        buffer: Buffer,
        size: tuple[Any, ...],
        stride: tuple[Any, ...],
        offset: Any,
        dtype: torch.dtype,
        bits: int,
        parent: Place | None,
        step: ViewStep | None,
        extent: Extent | None = None,
    ) -> None:
        self.buffer, self.size, self.stride, self.offset = buffer, size, stride, offset
        self.dtype, self.bits, self.parent, self.step = dtype, bits, parent, step
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.extent = extent or extent_of(size, stride)
        self._region: Region | bool | None = False
        # the windows of this place that scatter nodes write, by node
        self.windows: dict[torch.fx.Node, Place] = {}
        self._box: Any = False
        self._value: Any = None
        self._hull: tuple[int, int] | bool | None = False

    def __repr__(self) -> str:
        return f"Place({self.buffer.name} {list(self.size)} {list(self.stride)} +{self.offset} {self.dtype})"

    def key(self) -> Key:
        return (self.size, self.stride, self.offset, self.dtype, self.bits)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    def child(self, step: ViewStep, parent_value: Tensor, value: Tensor) -> Place:
        """The place of `value`, a view of the tensor in this place whose own value is `parent_value`.

        The two values only have to agree with each other about offsets and lazy bits, so this also holds for a
        place that has moved to another buffer; where it lies there with other strides, the view is made afresh.
        """
        says_itself = step.op == "aten.as_strided.default" or step.op[-1] == "]"
        if not says_itself and self.lies_otherwise(parent_value):
            with suppress(RuntimeError, ValueError):  # a view that cannot be made here is never looked at
                parent_value, value = self.value, view_value(self.value, step)
        _, _, before, parent_dtype, parent_bits, _ = geometry_of(parent_value)
        size, stride, offset, dtype, bits, extent = geometry_of(value)
        if dtype is self.dtype:
            moved = (offset - before) * dtype.itemsize if offset is not before else 0
        else:
            moved = offset * dtype.itemsize - before * parent_dtype.itemsize
            if dtype.itemsize == self.dtype.itemsize:  # as this place lies, whatever the strides of the value
                size, stride, extent = self.size, self.stride, self.extent
        found = self.at(step, size, stride, self.offset + moved, dtype, self.bits ^ parent_bits ^ bits, extent)
        if found._value is None:
            found._value = value
        return found

    def lies_otherwise(self, value: Tensor) -> bool:
        """Whether the tensor here has other strides than `value`, as which a program has it."""
        size, stride, _, dtype, _, _ = geometry_of(value)
        return stride != self.stride and dtype is self.dtype and size == self.size and not self.is_symbolic()

    def at(
        self,
        step: ViewStep,
        size: tuple[Any, ...],
        stride: tuple[Any, ...],
        offset: Any,
        dtype: torch.dtype,
        bits: int,
        extent: Extent | None = None,
    ) -> Place:
        """The place with this geometry in the buffer; made from here through `step` when it is new."""
        buffer, key = self.buffer, (size, stride, offset, dtype, bits)
        found = buffer.places.get(key)
        if found is None:
            parent = self.regular() if step.op in PARTICULAR_VIEWS else self
            found = buffer.places[key] = Place(buffer, size, stride, offset, dtype, bits, parent, step, extent)
        return found

    def replanted(self, root: Place, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Place:
        """This view of another base, `root`, with the layout of its own; `change` says what step arguments become."""
        if self.parent is None or self.step is None:
            return root
        parent = self.parent.replanted(root, change)
        step = ViewStep(self.step.op, change(self.step.args))
        found = parent.at(step, self.size, self.stride, self.offset, self.dtype, self.bits, self.extent)
        found.suggest_value(self.value)
        return found

    def regular(self) -> Place:
        """This view, with `canonical` strides even where its value has others: what `PARTICULAR_VIEWS` ask for."""
        if 1 not in self.size or self.is_symbolic() or tuple(self.value.stride()) == self.stride:
            return self
        step = ViewStep("aten.as_strided.default", (list(self.size), list(self.stride)))
        return Place(self.buffer, self.size, self.stride, self.offset, self.dtype, self.bits, self, step, self.extent)

    @property
    def value(self) -> Any:
        """A fake tensor with this geometry; made from the parent's when no traced value had it."""
        if self._value is None:
            assert self.parent is not None and self.step is not None
            value = self._plain_value(self.parent)
            self._value = view_value(self.parent.value, self.step) if value is None else value
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value

    def _plain_value(self, parent: Place) -> Any:
        """The value, where numbers alone say what it is: no symbol, no change of dtype, no dim whose stride is open."""
        same = self.dtype == parent.dtype and self.bits == parent.bits
        if not same or 1 in self.size or self.is_symbolic() or parent.is_symbolic():
            return None
        start, moved = parent.value.storage_offset(), self.offset - parent.offset
        if type(start) is not int or moved % self.dtype.itemsize:
            return None
        return fake_view(parent.value, self.size, self.stride, start + moved // self.dtype.itemsize)

    def suggest_value(self, value: Any) -> None:
        """A fake tensor that has this geometry, in case none is known yet: saves making one."""
        if self._value is None:
            self._value = value

    @property
    def region(self) -> Region | None:
        """The exact bytes, or None when sizes are symbolic."""
        if self._region is False:
            self._region = self._static_region()
        return self._region  # type: ignore[return-value]

    def _static_region(self) -> Region | None:
        if self.is_symbolic():
            return None
        isize = self.dtype.itemsize
        whole = Region.of(self.size, self.stride, 0, isize)
        if self.offset == 0:
            return whole
        # the byte offset need not be a multiple of the item size (a view of bytes at an odd place)
        return Region.of((*self.size, isize), (*(s * isize for s in self.stride), 1), self.offset, 1)

    def is_symbolic(self) -> bool:
        """True when a size, a stride or the offset is not a plain int."""
        return type(self.offset) is not int or self.extent.symbolic

    def hull(self) -> tuple[int, int] | None:
        """First and one-past-last byte, or None when symbolic."""
        if self._hull is False:
            start, extent = self.offset, self.extent
            symbolic = type(start) is not int or extent.symbolic
            self._hull = None if symbolic else (start, start + extent.reach * self.dtype.itemsize)
        return self._hull  # type: ignore[return-value]

    def byte_count(self) -> int | None:
        """Distinct bytes addressed, or None when symbolic."""
        extent = self.extent
        if extent.symbolic:
            return None
        if extent.overlaps:
            region = self.region
            return None if region is None else byte_size(region)
        return extent.elements * self.dtype.itemsize

    def overlaps_itself(self) -> bool:
        """True unless proven that no two elements of the view share memory; symbolic: only a stride of 0 is seen."""
        return self.extent.overlaps

    def has_broadcast_dim(self) -> bool:
        """True when a dim of several elements has stride zero: the one self-overlap that eager refuses to write."""
        return self.extent.broadcast

    def box(self) -> tuple[Box, tuple[int, ...]] | None:
        """The part of the base, dim by dim, and which base dim each own dim runs along; None when not a box."""
        if self._box is False:
            self._box = self._compute_box()
        return self._box  # type: ignore[no-any-return]

    def _compute_box(self) -> tuple[Box, tuple[int, ...]] | None:
        if self.parent is None:
            return Box.whole(self.size), tuple(range(len(self.size)))
        inner = self.parent.box()
        step = self.step
        if inner is None or step is None or self.dtype != self.parent.dtype:
            return None
        return narrowed_box(inner, step, self.parent.size, self.size)


def view_value(parent: Tensor, step: ViewStep) -> Tensor:
    """The fake value of `step` applied to the fake value `parent`."""
    result = _viewed(parent, step)
    assert isinstance(result, Tensor)
    return result


def list_values(parent: Tensor, step: ViewStep) -> list[Tensor]:
    """The fake values of `step`, which makes several views, applied to the fake value `parent`."""
    return list(_viewed(parent, step))


def _viewed(parent: Tensor, step: ViewStep) -> Any:
    args = list(torch.fx.map_arg(tuple(step.args), lambda n: n.meta["val"]))
    with detect_fake_mode([parent]) or nullcontext():
        return operator_named(step.op)(parent, *args)


def _symbolic_argument(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    return expression(value)


def narrowed_box(
    inner: tuple[Box, tuple[int, ...]], step: ViewStep, before: tuple[Any, ...], after: tuple[Any, ...]
) -> tuple[Box, tuple[int, ...]] | None:
    """The box after one more view step; None when the step does not keep boxes."""
    box, dims = inner
    args = [_symbolic_argument(a) for a in step.args]
    rank = len(dims)
    if step.op == "aten.select.int":
        dim, index = args[0] % rank, args[1]
        if isinstance(index, int) and index < 0:
            index = index + before[dim]
        return box.select(dims[dim], index), dims[:dim] + dims[dim + 1 :]
    if step.op == "aten.slice.Tensor":
        dim = (args[0] if args else 0) % rank
        start = args[1] if len(args) > 1 and args[1] is not None else 0
        stride = args[3] if len(args) > 3 else 1
        if isinstance(start, int) and start < 0:
            start = start + before[dim]
        return box.slice(dims[dim], start, after[dim], stride), dims
    if step.op in ("aten.alias.default", "aten.detach.default"):
        return inner
    if step.op == "aten.permute.default":
        return box, tuple(dims[d % rank] for d in args[0])
    if step.op == "aten.transpose.int":
        order = list(dims)
        a, b = args[0] % rank, args[1] % rank
        order[a], order[b] = order[b], order[a]
        return box, tuple(order)
    if step.op == "aten.t.default":
        return box, dims[::-1]
    return None


def may_overlap(a: Place, b: Place) -> bool:
    """False only if proven that the two places share no byte. Places of different buffers never do."""
    if a.buffer is not b.buffer:
        return False
    if a is b or a.parent is None or b.parent is None:
        return a.extent.elements != 0 and b.extent.elements != 0
    span, other = a.hull(), b.hull()
    if span is not None and other is not None and (span[1] <= other[0] or other[1] <= span[0]):
        return False
    first, second = a.region, b.region
    if first is not None and second is not None:
        return not disjoint(first, second)
    return not _boxes_apart(a, b)


def _boxes_apart(a: Place, b: Place) -> bool:
    for outer in _outer_boxes(a):
        for other in _outer_boxes(b):
            if boxes_disjoint(outer, other, a.buffer.facts or IntegerFacts()):
                return True
    return False


def _outer_boxes(place: Place | None) -> list[Box]:
    """Boxes that contain the place: its own, or that of the nearest view below it that has one."""
    while place is not None:
        found = place.box()
        if found is not None:
            return [found[0]]
        place = place.parent
    return []


def covers(outer: Place, inner: Place) -> bool:
    """True only if proven that every byte of `inner` is in `outer`."""
    if outer is inner or (outer.buffer is inner.buffer and outer.is_root):
        return True
    if outer.buffer is not inner.buffer:
        return False
    first, second = outer.region, inner.region
    return first is not None and second is not None and contains(first, second)


def is_dense(place: Place) -> bool:
    """True when the elements fill their span without gaps or overlap, in any order of the dims."""
    expected: Any = 1
    pairs = [(s, n) for n, s in zip(place.size, place.stride, strict=True) if not (type(n) is int and n == 1)]
    for stride, size in sorted(pairs, key=_stride_order):
        if stride != expected:
            return False
        expected = expected * size
    return True


def _stride_order(pair: tuple[Any, Any]) -> tuple[int, int, str]:
    stride = pair[0]
    return (
        (0, stride, "")
        if type(stride) is int
        else (1, stride.count_ops() if hasattr(stride, "count_ops") else 0, str(stride))
    )


def layout_of(value: Tensor) -> Layout:
    """Size, strides (`canonical` ones) and storage offset in elements, symbolic integers as expressions.

    Kept on the fake tensor: every step asks again, and a traced value never changes its layout.
    """
    known: Layout | None = value.__dict__.get("_reink_layout")
    if known is None:
        known = _layout(value)
        value.__dict__["_reink_layout"] = known
    return known


def canonical(size: tuple[Any, ...], stride: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides with those of dims of one element, which have no meaning, as a contiguous tensor has them."""
    if 1 not in size:
        return stride
    found = list(stride)
    step: Any = 1
    for k in range(len(size) - 1, -1, -1):
        if size[k] == 1:
            found[k] = step
        step = found[k] * max(size[k], 1)
    return tuple(found)


def _layout(value: Tensor) -> Layout:
    size, stride, offset = tuple(value.size()), tuple(value.stride()), value.storage_offset()
    if not all(type(number) is int for number in (*size, *stride, offset)):
        size, stride = tuple(map(expression, size)), tuple(map(expression, stride))
        if not all(type(number) is int for number in (*size, *stride)):
            return size, stride, expression(offset)
    return size, canonical(size, stride), expression(offset)


def geometry_of(value: Tensor) -> Geometry:
    """The layout of a fake tensor, its dtype, its lazy bits and its extent; kept on the tensor like its layout."""
    known: Geometry | None = value.__dict__.get("_reink_geometry")
    if known is None:
        size, stride, offset = layout_of(value)
        known = (size, stride, offset, value.dtype, bits_of(value), extent_of(size, stride))
        value.__dict__["_reink_geometry"] = known
    return known


def bits_of(value: Tensor) -> int:
    """The lazy bits that change what the bytes mean: 1 conjugate, 2 negative."""
    known: int | None = value.__dict__.get("_reink_bits")
    if known is None:
        known = 2 * int(value.is_neg()) + (int(value.is_conj()) if value.is_complex() else 0)
        value.__dict__["_reink_bits"] = known
    return known
