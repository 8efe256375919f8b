"""View operators: how a view is replayed, how a new value of a view is carried back, how a view is described.

One rule per operator in `WRITE_BACKS`; a view without a rule is described by its geometry instead, as
``as_strided`` relative to the base (`strided_place`), so no rule is ever guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, layout_of, view_value
from reink.core.opinfo import WINDOWS
from reink.core.program import ViewStep
from reink.core.torch_internals import OpOverload, operator_named

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

# Looked up once: reading an operator of torch.ops runs Python code.
_SELECT_SCATTER, _SLICE_SCATTER = aten.select_scatter.default, aten.slice_scatter.default

_AS_BYTES = ViewStep("aten.view.dtype", (torch.uint8,))

_operators: dict[str, OpOverload] = {}


class Emitter(Protocol):
    """What a write-back rule may do: add a node whose value is `value`, and name a size of a place."""

    def emit(self, target: Any, args: tuple[Any, ...], value: Any) -> Node: ...

    def sizes(self, place: Place) -> list[Any]: ...

    def strides(self, place: Place) -> list[Any]: ...


Parent = Callable[[], Node]
WriteBack = Callable[[Emitter, Place, Parent, Node], Node]


def step_operator(step: ViewStep) -> OpOverload:
    """The operator that a step names; cached."""
    found = _operators.get(step.op)
    if found is None:
        found = _operators[step.op] = operator_named(step.op)
    return found


def chain(place: Place) -> tuple[ViewStep, ...]:
    """The steps from the base to `place`, the one applied to the base first."""
    steps: list[ViewStep] = []
    while place.parent is not None:
        assert place.step is not None
        steps.append(place.step)
        place = place.parent
    return tuple(steps[::-1])


def _dim(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def _scattered(
    target: OpOverload, emitter: Emitter, place: Place, parent: Parent, update: Node, args: Sequence[Any]
) -> Node:
    """A new version of the outer tensor with `update` in it.

    A copy of flags makes each byte 0 or 1. Where flags are seen in other numbers, what lies between them may be
    anything, and is copied as bytes.
    """
    outer = _parent(place)
    if outer.dtype is not torch.bool or outer.buffer.root.dtype is torch.bool:
        return emitter.emit(target, (parent(), update, *args), outer.value)
    whole, part = (
        emitter.emit(aten.view.dtype, (node, torch.uint8), view_value(value, _AS_BYTES))
        for node, value in ((parent(), outer.value), (update, update.meta["val"]))
    )
    scattered = emitter.emit(target, (whole, part, *args), whole.meta["val"])
    scattered.meta["reink_window"] = view_value(place.value, _AS_BYTES)
    if "reink_write" in update.meta:
        scattered.meta["reink_carry"] = update.meta["reink_write"]
    return emitter.emit(aten.view.dtype, (scattered, torch.bool), outer.value)


def _select(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    return _scattered(_SELECT_SCATTER, emitter, place, parent, update, _args(place))


def _slice(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    return _scattered(_SLICE_SCATTER, emitter, place, parent, update, _args(place))


def _diagonal(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    return _scattered(aten.diagonal_scatter.default, emitter, place, parent, update, _args(place))


def _view(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    outer = _parent(place)
    return emitter.emit(aten.view.default, (update, emitter.sizes(outer)), outer.value)


def _permute(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    order = _args(place)[0]
    inverse = [0] * len(order)
    for position, dim in enumerate(order):
        inverse[_dim(dim, len(order))] = position
    return emitter.emit(aten.permute.default, (update, inverse), _parent(place).value)


def _transpose(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    return emitter.emit(step_operator(_step(place)), (update, *_args(place)), _parent(place).value)


def _unsqueeze(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    dim = _dim(_args(place)[0], len(place.size))
    return emitter.emit(aten.squeeze.dim, (update, dim), _parent(place).value)


def _view_dtype(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    outer = _parent(place)
    return emitter.emit(aten.view.dtype, (update, outer.dtype), outer.value)


def _real_of_complex(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    return emitter.emit(aten.view_as_complex.default, (update,), _parent(place).value)


def _complex_of_real(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    return emitter.emit(aten.view_as_real.default, (update,), _parent(place).value)


def _lazy_bit(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    """Conjugate and negative views: copying from the same lazy view of the update undoes the bit."""
    outer = _parent(place)
    undone = emitter.emit(step_operator(_step(place)), (update,), view_value(update.meta["val"], _step(place)))
    carried = emitter.emit(aten.copy.default, (parent(), undone), outer.value)
    carried.meta["reink_carry"] = "a write through a conjugate or negative view"
    return carried


def _strided(emitter: Emitter, place: Place, parent: Parent, update: Node) -> Node:
    args = emitter.sizes(place), emitter.strides(place)
    return _scattered(aten.as_strided_scatter.default, emitter, place, parent, update, args)


WRITE_BACKS: dict[str, WriteBack] = {
    "aten.select.int": _select,
    "aten.slice.Tensor": _slice,
    "aten.diagonal.default": _diagonal,
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "aten._reshape_alias.default": _view,
    "aten.squeeze.default": _view,
    "aten.squeeze.dim": _view,
    "aten.squeeze.dims": _view,
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _transpose,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.view.dtype": _view_dtype,
    "aten.view_as_real.default": _real_of_complex,
    "aten.view_as_complex.default": _complex_of_real,
    "aten._conj.default": _lazy_bit,
    "aten._neg_view.default": _lazy_bit,
    "aten.unfold.default": _strided,
    "aten.as_strided.default": _strided,
}

# Their inverse is the update itself, seen another way: it does not read the old base, and the update must
# already have the layout of the view.
BIJECTIVE = frozenset(
    {
        "aten.view.default",
        "aten._unsafe_view.default",
        "aten._reshape_alias.default",
        "aten.squeeze.default",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.permute.default",
        "aten.transpose.int",
        "aten.t.default",
        "aten.unsqueeze.default",
        "aten.view.dtype",
        "aten.view_as_real.default",
        "aten.view_as_complex.default",
    }
)

# A functional write of a part of a tensor, and the view that names the part.
SCATTERS: dict[Any, str] = {operator_named(name): view for name, view in WINDOWS.items()}


def has_write_back(place: Place) -> bool:
    """Whether every step of the chain can be carried back.

    Not through a view whose own elements share memory: writing one of them writes the others, which no
    scatter shows.
    """
    while (parent := place.parent) is not None:
        if _step(place).op not in WRITE_BACKS or parent.extent.overlaps:
            return False
        place = parent
    return True


def with_write_back(place: Place) -> Place | None:
    """The same view by a chain that can be carried back: its own, or by geometry from the base; None if neither."""
    if has_write_back(place):
        return place
    described = strided_place(place)
    if described is None or not has_write_back(described):
        return None
    described.value = place.value
    place.buffer.places[place.key()] = described
    return described


def is_whole(place: Place) -> bool:
    """Whether the view only rearranges its base, so that it has every element of it."""
    while place.parent is not None:
        if _step(place).op not in BIJECTIVE:
            return False
        place = place.parent
    return True


def needs_layout(place: Place) -> bool:
    """Whether a new value of this place must come in the place's own layout to be carried back."""
    return place.parent is None or _step(place).op in BIJECTIVE


def list_view_steps(
    name: str, args: Sequence[Any], count: int, sizes: Sequence[Any], number: Callable[[Any, Any, Any], Any]
) -> list[ViewStep] | None:
    """The single views that a list-returning view operator stands for; None for one without a rule.

    `sizes` are the sizes of the first argument; `number(function, a, b)` combines two of them, in the graph
    when one is symbolic.
    """
    rank = len(sizes)
    if name == "aten.unbind.int":
        dim = _dim(args[1] if len(args) > 1 else 0, rank)
        return [ViewStep("aten.select.int", (dim, k)) for k in range(count)]
    if name in ("aten.split.Tensor", "aten.unsafe_split.Tensor", "aten.chunk.default"):
        return _even_slices(name, args, count, sizes, number)
    if name in ("aten.split_with_sizes.default", "aten.unsafe_split_with_sizes.default", "aten.split.sizes"):
        dim, start, steps = _dim(args[2] if len(args) > 2 else 0, rank), 0, []
        for length in args[1]:
            end = number(torch.add, start, length)
            steps.append(ViewStep("aten.slice.Tensor", (dim, start, end)))
            start = end
        return steps
    return None


def _even_slices(
    name: str, args: Sequence[Any], count: int, sizes: Sequence[Any], number: Callable[[Any, Any, Any], Any]
) -> list[ViewStep] | None:
    dim, length = _dim(args[2] if len(args) > 2 else 0, len(sizes)), args[1]
    if name == "aten.chunk.default":
        if not isinstance(sizes[dim], int):
            return None
        length = -(-sizes[dim] // args[1])
    starts = [number(torch.mul, length, k) for k in range(count + 1)]
    return [ViewStep("aten.slice.Tensor", (dim, starts[k], starts[k + 1])) for k in range(count)]


def strided_place(place: Place) -> Place | None:
    """The same view described from the base by geometry alone; None when it starts before the base.

    ``as_strided`` without an offset starts where its tensor starts, so the description never mentions the
    storage offset of the base: flatten, slice to the first element, see it in the dtype, then stride; at last the
    conjugate and negative bit.
    """
    base = place.buffer.root
    item = base.dtype.itemsize
    if place.is_symbolic() or base.is_symbolic() or place.offset < 0 or place.offset % item:
        return None
    count = place.extent.reach * place.dtype.itemsize
    # an empty view may begin beyond the base
    start = place.offset // item if count else min(place.offset // item, base.extent.reach)
    reach = start - (-count // item)
    flat = base.at(ViewStep("aten.as_strided.default", ([reach], [1])), (reach,), (1,), 0, base.dtype, base.bits)
    if start:
        cut = ViewStep("aten.slice.Tensor", (0, start, reach))
        flat = flat.at(cut, (reach - start,), (1,), place.offset, base.dtype, base.bits)
    if place.dtype != base.dtype:
        typed = ViewStep("aten.view.dtype", (place.dtype,))
        length = (reach - start) * item // place.dtype.itemsize
        flat = flat.at(typed, (length,), (1,), flat.offset, place.dtype, base.bits)
    if flat.key() == place.key():
        return flat
    step = ViewStep("aten.as_strided.default", (list(place.size), list(place.stride)))
    geometry, buffer = (place.size, place.stride, start * item, place.dtype), place.buffer
    changed = place.bits ^ base.bits
    if not changed:
        return Place(buffer, *geometry, place.bits, flat, step)
    found = flat.at(step, *geometry, base.bits)
    for bit, view in ((1, "aten._conj.default"), (2, "aten._neg_view.default")):
        if changed & bit:
            found = Place(buffer, *geometry, found.bits ^ bit, found, ViewStep(view))
    return found


def place_by_geometry(buffer: Buffer, value: Tensor, bits: int) -> Place | None:
    """The place of a tensor in `buffer` that is traced as `value`, by layout alone; None where the base has not all
    of it.

    Offsets of traced values count from the start of the storage. The place of an empty tensor has none that could be
    counted from.
    """
    root, (size, stride, start) = buffer.root, layout_of(value)
    offset = start * value.element_size() - layout_of(root.value)[2] * root.value.element_size()
    probe = Place(buffer, size, stride, offset, value.dtype, bits, None, None)
    known = buffer.places.get(probe.key())
    if known is not None:
        return known
    described = strided_place(probe)
    if described is None or not lies_in(root, probe):
        return None
    if described.key() in buffer.places:  # the flat memory itself, which has strides of its own
        return described
    if described.step is not None and described.step.op == "aten.as_strided.default":
        # the very strides, also of dims of one element: layouts of results may follow them
        described.step = ViewStep(described.step.op, (list(size), [int(s) for s in value.stride()]))
    described.value = value
    buffer.places[described.key()] = described
    return described


def lies_in(root: Place, probe: Place) -> bool:
    """Whether the base, without a gap, has every byte that `probe` may reach."""
    outer, inner = root.hull(), probe.hull()
    if outer is None or inner is None:
        return False
    if not probe.extent.elements:
        return True
    return outer[0] <= inner[0] and inner[1] <= outer[1] and root.byte_count() == outer[1] - outer[0]


def single_step(place: Place) -> ViewStep | None:
    """The one view operator that makes a static `place` straight from its base, if there is one."""
    base = place.buffer.root
    if place.dtype != base.dtype or place.bits != base.bits or place.is_symbolic() or base.is_symbolic():
        return None
    if len(place.size) == len(base.size):
        return _as_slice(base, place) or _as_permute(base, place) or _as_view(base, place)
    return _as_select(base, place) or _as_view(base, place)


def _as_select(base: Place, place: Place) -> ViewStep | None:
    if len(place.size) != len(base.size) - 1:
        return None
    for dim, (count, stride) in enumerate(zip(base.size, base.stride, strict=True)):
        rest = (base.size[:dim] + base.size[dim + 1 :], base.stride[:dim] + base.stride[dim + 1 :])
        index, left = divmod(place.offset, stride * base.dtype.itemsize) if stride else (0, place.offset)
        if rest == (place.size, place.stride) and left == 0 and 0 <= index < count:
            return ViewStep("aten.select.int", (dim, index))
    return None


def _as_slice(base: Place, place: Place) -> ViewStep | None:
    changed = [d for d in range(len(base.size)) if (base.size[d], base.stride[d]) != (place.size[d], place.stride[d])]
    if len(changed) != 1 or not base.stride[changed[0]]:
        return None
    dim = changed[0]
    start, left = divmod(place.offset, base.stride[dim] * base.dtype.itemsize)
    step, uneven = divmod(place.stride[dim], base.stride[dim]) if place.size[dim] > 1 else (1, 0)
    end = start + (place.size[dim] - 1) * step + 1
    if left or uneven or step < 1 or start < 0 or place.size[dim] < 1 or end > base.size[dim]:
        return None
    return ViewStep("aten.slice.Tensor", (dim, start, end) if step == 1 else (dim, start, end, step))


def _as_permute(base: Place, place: Place) -> ViewStep | None:
    wanted = list(zip(place.size, place.stride, strict=True))
    have = list(zip(base.size, base.stride, strict=True))
    if place.offset or sorted(wanted) != sorted(have):
        return None
    order, left = [], dict(enumerate(have))
    for pair in wanted:
        dim = next(d for d, p in left.items() if p == pair)
        order.append(dim)
        del left[dim]
    return ViewStep("aten.permute.default", (order,))


def _as_view(base: Place, place: Place) -> ViewStep | None:
    if place.offset == 0 and is_contiguous(base) and is_contiguous(place) and _count(base) == _count(place):
        return ViewStep("aten.view.default", (list(place.size),))
    return None


def _count(place: Place) -> int:
    total = 1
    for n in place.size:
        total *= n
    return total


def is_contiguous(place: Place) -> bool:
    """Whether the elements of `place` follow each other in memory in the order of its dims."""
    return place.stride == contiguous_strides(place.size)


def contiguous_strides(size: Sequence[Any]) -> tuple[Any, ...]:
    """Strides in elements of a row-major tensor, as torch makes them (a size of 0 counts as 1)."""
    strides: list[Any] = []
    step: Any = 1
    for n in reversed(size):
        strides.append(step)
        step = step * (max(n, 1) if type(n) is int else n)
    return tuple(reversed(strides))


def _args(place: Place) -> tuple[Any, ...]:
    return _step(place).args


def _step(place: Place) -> ViewStep:
    assert place.step is not None
    return place.step


def _parent(place: Place) -> Place:
    assert place.parent is not None
    return place.parent
