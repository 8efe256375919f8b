"""The checker's own account of where tensors lie: views are run on meta tensors, byte sets compared by force.

Shares nothing with `core.region`, so that a fault there cannot vouch for itself. A byte set is compared digit
by digit where the strides of both nest, else as a bit mask in one Python integer; where neither can be done
the answer is the careful one (may overlap, not inside).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx

from reink.check.layouts import Layout, layout_of_view
from reink.core.torch_internals import expression

Tensor = torch.Tensor
Dims = tuple[tuple[int, int], ...]

# Bits of the largest mask: 2**24 elements take 2 MiB.
LARGEST_MASK = 1 << 24
_AS_STRIDED = torch.ops.aten.as_strided.default
# Stands for what was not looked up yet, where None is an answer.
_UNKNOWN: Any = object()
# What a size counts as that only the data decide, unless `unknown_sizes_as` says otherwise.
UNKNOWN_SIZE = 2
_unknown_size = ContextVar("unknown_size", default=UNKNOWN_SIZE)


class Geometry:
    """A tensor's place in a buffer: size, strides and offset from the buffer's base. Unique per `Geometries`.

    `lo` and `hi` are the first and one-past-last byte; `is_solid`: every byte between them is one of its own.
    """

    __slots__ = (
        "_dims",
        "_overlaps_itself",
        "_tensor",
        "bits",
        "dtype",
        "hi",
        "holder",
        "is_empty",
        "is_solid",
        "layout",
        "lo",
        "offset",
        "size",
        "stride",
    )

    def __init__(self, layout: Layout, holder: Tensor, dtype: torch.dtype, bits: int) -> None:
        """`holder` is some meta tensor of this dtype and these bits in the same storage."""
        self.layout = layout
        self.size, self.stride, self.offset = size, stride, offset = layout
        self.dtype, self.bits, self.holder = dtype, bits, holder
        self._tensor: Tensor | None = None
        item = dtype.itemsize
        lo = self.lo = offset * item
        self.is_solid, self.is_empty = True, 0 in size
        self._overlaps_itself: bool | None = False
        self._dims: Dims | None = None
        count = 1  # of elements, as long as they follow each other in row-major order
        for n, s in zip(size[::-1], stride[::-1], strict=True):
            if s != count and n != 1:
                break
            count *= n
        else:
            self.hi = lo + count * item
            return
        if self.is_empty:
            self.hi = lo
            return
        reach = item
        for count, step in reversed(self.dims[:-1]):
            self.is_solid = self.is_solid and step <= reach
            if step < reach:
                self._overlaps_itself = None
            reach += (count - 1) * step
        self.hi = lo + reach
        if any(s == 0 and n > 1 for n, s in zip(size, stride, strict=True)):
            self._overlaps_itself = True

    @property
    def tensor(self) -> Tensor:
        """A meta tensor that lies here, for operators to be run on."""
        if self._tensor is None:
            self._tensor = torch.as_strided(self.holder, self.size, self.stride, self.offset)
        return self._tensor

    @property
    def overlaps_itself(self) -> bool:
        """False only if no two elements share a byte."""
        if self._overlaps_itself is None:
            wanted = math.prod(self.size) * self.dtype.itemsize
            small = self.hi - self.lo <= LARGEST_MASK
            self._overlaps_itself = not small or _mask((self.lo, self.dims), self.lo, 1).bit_count() != wanted
        return self._overlaps_itself

    @property
    def dims(self) -> Dims:
        """The byte set as (count, byte stride) from the widest to the bytes of one element."""
        if self._dims is None:
            item = self.dtype.itemsize
            pairs = zip(self.size, self.stride, strict=True)
            dims = sorted(((n, s * item) for n, s in pairs if n > 1 and s), key=_stride, reverse=True)
            self._dims = (*dims, (item, 1))
        return self._dims

    def __str__(self) -> str:
        return f"{list(self.size)} strides {list(self.stride)} at byte {self.lo}"


def _stride(dim: tuple[int, int]) -> int:
    return dim[1]


class Geometries:
    """Makes geometries and compares them; remembers both."""

    def __init__(self) -> None:
        self._interned: dict[Any, Geometry] = {}
        self._roots: dict[Any, Geometry] = {}
        self._views: dict[Any, Any] = {}
        self._overlap: dict[tuple[Geometry, Geometry], bool] = {}
        self._inside: dict[tuple[Geometry, Geometry], bool] = {}

    def of(self, tensor: Tensor) -> Geometry:
        """The geometry of a meta tensor."""
        layout = tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset())
        return self._at(layout, tensor, tensor.dtype, bits_of(tensor))

    def _at(self, layout: Layout, holder: Tensor, dtype: torch.dtype, bits: int) -> Geometry:
        """The one geometry of this layout. Strides of dims of one element do not count."""
        size, stride, offset = layout
        if 1 in size:
            stride = _meaningful(size, stride)
            layout = size, stride, offset
        if 0 in size:
            stride, offset = (), 0
        key = (dtype, bits, size, stride, offset)
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = Geometry(layout, holder, dtype, bits)
        return found

    def root(self, value: Tensor) -> Geometry:
        """The geometry of new memory that holds a tensor like the (fake) `value`."""
        return self.new(value.size(), value.stride(), value.dtype, bits_of(value))

    def new(self, size: tuple[Any, ...], stride: tuple[Any, ...], dtype: torch.dtype, bits: int = 0) -> Geometry:
        """The geometry of new memory of this layout."""
        key = (size, stride, dtype, bits)
        try:
            return self._roots[key]
        except (KeyError, TypeError):  # a symbolic integer has no hash
            size, stride = concrete(tuple(size)), concrete(tuple(stride))
            key = (size, stride, dtype, bits)
        found = self._roots.get(key)
        if found is None:
            found = self._roots[key] = self.of(new_tensor(size, stride, dtype, bits))
        return found

    def interval(self, lo: int, hi: int) -> Geometry:
        """The bytes from `lo` to `hi`."""
        return self.of(torch.empty_strided((hi,), (1,), dtype=torch.uint8, device="meta")[lo:])

    def cover(self, geometry: Geometry) -> Geometry:
        """All bytes of a tensor, each once as far as strides can say it."""
        run, outer = 1, list[tuple[int, int]]()
        for count, step in reversed(geometry.dims):
            if step <= run and not outer:
                run += (count - 1) * step
            else:
                outer.insert(0, (count, step))
        size, stride = ((*(d[k] for d in outer), last) for k, last in ((0, run), (1, 1)))
        flat = torch.empty_strided((geometry.hi,), (1,), dtype=torch.uint8, device="meta")
        return self.of(flat.as_strided(size, stride, geometry.lo))

    def apply(self, target: Callable[..., Any], parent: Geometry, args: tuple[Any, ...]) -> Any:
        """What `target` makes of a tensor in `parent`: a geometry, a tuple of them, or None if it cannot be.

        `args` are the arguments after the tensor, numbers only.
        """
        key = (id(target), parent, args)  # an operator lives for ever, and its hash is slow
        found: Any = self._views.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            layout = layout_of_view(target, parent.layout, args)
            if layout is not None:
                found = self._at(layout, parent.holder, parent.dtype, parent.bits)
            else:
                found = self._run(target, parent.tensor, args)
            if found is None and parent.is_empty and not parent.bits:  # strides without meaning stand in the way
                found = next((f for e in _empties(parent) if (f := self._run(target, e, args)) is not None), None)
            self._views[key] = found
        return found

    def _run(self, target: Callable[..., Any], parent: Tensor, args: tuple[Any, ...]) -> Any:
        """`apply`, by running the operator."""
        try:
            made = target(parent, *(list(a) if type(a) is tuple else a for a in args))
        except (RuntimeError, IndexError, ValueError, TypeError):
            return None
        if isinstance(made, Tensor):
            return self.of(made)
        return tuple(self.of(t) for t in made) if isinstance(made, (list, tuple)) else None

    def strided(self, parent: Geometry, size: Sequence[int], stride: Sequence[int], moved: int) -> Geometry | None:
        """`as_strided` of the tensor in `parent`, starting `moved` elements after its start."""
        offset = parent.offset + moved
        return self.apply(_AS_STRIDED, parent, (tuple(size), tuple(stride), offset))  # type: ignore[no-any-return]

    def overlap(self, a: Geometry, b: Geometry) -> bool:
        """False only if the two share no byte."""
        if a.is_empty or b.is_empty or a.hi <= b.lo or b.hi <= a.lo:
            return False
        if a is b or (a.is_solid and (b.is_solid or a.lo <= b.lo)) or (b.is_solid and b.lo <= a.lo):
            return True
        key = (a, b)
        found = self._overlap.get(key)
        if found is None:
            found = self._overlap[key] = _overlap(a, b)
        return found

    def inside(self, a: Geometry, b: Geometry) -> bool:
        """True only if every byte of `a` is one of `b`."""
        if a is b or a.is_empty:
            return True
        if b.is_empty or a.lo < b.lo or a.hi > b.hi:
            return False
        if b.is_solid:
            return True
        key = (a, b)
        found = self._inside.get(key)
        if found is None:
            found = self._inside[key] = _inside(a, b)
        return found


def _empties(geometry: Geometry) -> Iterator[Tensor]:
    """An empty tensor as it is new, and one with strides of which a view of a wider dtype can be taken."""
    yield torch.empty(geometry.size, dtype=geometry.dtype, device="meta")
    strides = (*(64 for _ in geometry.size[1:]), 1)
    yield torch.empty_strided(geometry.size, strides, dtype=geometry.dtype, device="meta")


def new_tensor(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, bits: int) -> Tensor:
    """A meta tensor of this layout, with the lazy bits of `bits_of`."""
    tensor = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    if bits & 1:
        tensor = torch.ops.aten._conj.default(tensor)
    if bits & 2:
        tensor = torch.ops.aten._neg_view.default(tensor)
    return tensor


def _meaningful(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """`stride` with that of dims of one element as in a row-major tensor, where views of another dtype accept it."""
    strides, step = [], 1
    for count, own in zip(reversed(size), reversed(stride), strict=True):
        strides.append(step if count == 1 else own)
        step = strides[-1] * max(count, 1)
    return tuple(strides[::-1])


def same_strides(a: Geometry, b: Geometry) -> bool:
    """Whether two geometries of one size have one stride in each dim of several elements."""
    return a.stride == b.stride or all(n == 1 or s == t for n, s, t in zip(a.size, a.stride, b.stride, strict=True))


def bits_of(value: Tensor) -> int:
    """The lazy bits of a tensor: 1 conjugate, 2 negative."""
    return (1 if value.dtype.is_complex and value.is_conj() else 0) + (2 if value.is_neg() else 0)


def size_of(value: Tensor) -> tuple[int, ...]:
    """The size of a (fake) tensor, symbolic integers at their hint."""
    return _at_hints(tuple(value.size()))


def stride_of(value: Tensor) -> tuple[int, ...]:
    """The strides of a (fake) tensor, symbolic integers at their hint."""
    return _at_hints(tuple(value.stride()))


def _at_hints(numbers: tuple[Any, ...]) -> tuple[int, ...]:
    found: tuple[int, ...] = numbers if are_integers(numbers) else concrete(numbers)
    return found


def are_integers(values: tuple[Any, ...]) -> bool:
    """Whether all are plain integers; most arguments are, and need no conversion."""
    for value in values:  # noqa: SIM110 - a generator costs more than all the comparisons
        if type(value) is not int:
            return False
    return True


def concrete(value: Any) -> Any:
    """`value` with symbolic integers at their hint, lists as tuples, so that it can be run and hashed."""
    kind = type(value)
    if kind is int or kind is bool or value is None:
        return value
    if kind is list or kind is tuple:
        return tuple([v if type(v) is int else concrete(v) for v in value])
    if isinstance(value, torch.SymInt):
        return _hint(value)
    return value


def _hint(value: torch.SymInt) -> int:
    found = expression(value)
    if not hasattr(found, "free_symbols"):
        return int(found)
    environment = value.node.shape_env
    known = getattr(environment, "backed_var_to_val", {})
    ranges = getattr(environment, "var_to_range", {})
    return int(found.xreplace({s: known[s] if s in known else _unknown(ranges.get(s)) for s in found.free_symbols}))


def _unknown(range: Any) -> int:
    """A size that only the data decide, within what is known of it."""
    size = _unknown_size.get()
    lower, upper = (range.lower, range.upper) if range is not None else (size, size)
    if lower > size:
        return int(lower)
    return int(upper) if upper < size else size


@contextmanager
def unknown_sizes_as(size: int) -> Iterator[None]:
    """Sizes that only the data decide count as `size` inside."""
    token = _unknown_size.set(size)
    try:
        yield
    finally:
        _unknown_size.reset(token)


# -- byte sets ---------------------------------------------------------------------------------------------


def _overlap(a: Geometry, b: Geometry) -> bool:
    pair = _peel(a, b, _intervals_meet)
    if isinstance(pair, bool):
        return pair
    masks = _masks(*pair)
    return True if masks is None else masks[0] & masks[1] != 0


def _inside(a: Geometry, b: Geometry) -> bool:
    pair = _peel(a, b, _interval_inside)
    if isinstance(pair, bool):
        return pair
    masks = _masks(*pair)
    return False if masks is None else masks[0] & ~masks[1] == 0


def _intervals_meet(first: int, count: int, other: int, other_count: int) -> bool:
    return first < other + other_count and other < first + count


def _interval_inside(first: int, count: int, other: int, other_count: int) -> bool:
    return other <= first and first + count <= other + other_count


Part = tuple[int, Dims]


def _peel(a: Geometry, b: Geometry, compare: Callable[[int, int, int, int], bool]) -> bool | tuple[Part, Part]:
    """Compare two byte sets stride by stride from the widest, each a digit that the rest cannot carry into.

    A set is then a product of intervals, one for each digit. Returns the answer, or the rests that remain.
    """
    lo_a, dims_a, lo_b, dims_b = a.lo, a.dims, b.lo, b.dims
    while dims_a or dims_b:
        step = max(dims_a[0][1] if dims_a else 0, dims_b[0][1] if dims_b else 0)
        dims_a, dims_b = _split(dims_a, step), _split(dims_b, step)
        count_a, rest_a = _digit(dims_a, step)
        count_b, rest_b = _digit(dims_b, step)
        start = _start_without_carry((lo_a, _span(rest_a)), (lo_b, _span(rest_b)), step)
        if start is None:
            return (lo_a, dims_a), (lo_b, dims_b)
        digit_a, lo_a = divmod(lo_a - start, step)
        digit_b, lo_b = divmod(lo_b - start, step)
        if not compare(digit_a, count_a, digit_b, count_b):
            return False
        dims_a, dims_b = rest_a, rest_b
    return lo_a == lo_b


def _split(dims: Dims, step: int) -> Dims:
    """`dims` with a widest dim that runs past `step` cut in two at `step`, if it comes out even."""
    if not dims or dims[0][1] >= step:
        return dims
    count, stride = dims[0]
    inner = step // stride
    if step % stride or inner >= count or count % inner:
        return dims
    return ((count // inner, step), (inner, stride), *dims[1:])


def _digit(dims: Dims, step: int) -> tuple[int, Dims]:
    return (dims[0][0], dims[1:]) if dims and dims[0][1] == step else (1, dims)


def _span(dims: Dims) -> int:
    return 1 + sum((n - 1) * s for n, s in dims)


def _start_without_carry(a: tuple[int, int], b: tuple[int, int], step: int) -> int | None:
    for start in (a[0], b[0]):
        if (a[0] - start) % step + a[1] <= step and (b[0] - start) % step + b[1] <= step:
            return start
    return None


def _masks(a: Part, b: Part) -> tuple[int, int] | None:
    """Both sets as bit masks from a common start, in the largest unit that divides all; None if too long."""
    low = min(a[0], b[0])
    unit = 0
    for lo, dims in (a, b):
        unit = math.gcd(unit, lo - low, *(s for _, s in dims if s > 1), *(n for n, s in dims if s == 1))
    unit = unit or 1
    if any(all(s != 1 for _, s in dims) for _, dims in (a, b)):
        unit = 1
    if max(lo - low + _span(dims) for lo, dims in (a, b)) > LARGEST_MASK * unit:
        return None
    return _mask(a, low, unit), _mask(b, low, unit)


def _mask(part: Part, low: int, unit: int) -> int:
    lo, dims = part
    mask = 1
    for count, stride in reversed(dims):
        if stride == 1:
            count, stride = count // unit, unit
        mask = _repeat(mask, count, stride // unit)
    return mask << ((lo - low) // unit)


def _repeat(mask: int, count: int, shift: int) -> int:
    """`mask` at 0, shift, ..., (count - 1) * shift, by doubling."""
    made = 1
    while made * 2 <= count:
        mask |= mask << (made * shift)
        made *= 2
    return mask | mask << ((count - made) * shift)
