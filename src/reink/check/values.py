"""What nodes stand for: tensors as looks at storages, other values by what makes them; what operators see of both."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from reink.check.contents import Contents
from reink.check.geometry import Geometries, Geometry, concrete, same_strides
from reink.check.operands import is_strided
from reink.check.terms import Number, Numbering, Undecided
from reink.core.opinfo import OpFacts
from reink.core.torch_internals import expression

Node = torch.fx.Node
Tensor = torch.Tensor


class Different(Exception):
    """The lowered program does what no reading of the pure one allows; the message is what a person reads."""


@dataclass(slots=True, eq=False)
class Storage:
    """Memory of its own: that of an ``input`` (number `index`), of a ``constant``, or ``fresh``."""

    kind: str
    name: str
    root: Geometry
    contents: Contents
    index: int = -1


@dataclass(slots=True, eq=False)
class View:
    """A tensor: a look at a storage."""

    storage: Storage
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class Known:
    """A value that is no strided tensor, by what makes it."""

    key: Hashable


@dataclass(slots=True)
class Shared:
    """What the evaluations of both graphs share. Not frozen: `age` and `likes` grow.

    `pure_forms`: the operators of the pure graph, by the in-place operator that carries them out. `likes`: a (fake)
    value like what a call returned, by the key of the call.
    """

    pure_forms: Mapping[Any, Any]
    numbering: Numbering = field(default_factory=Numbering)
    geometries: Geometries = field(default_factory=Geometries)
    likes: dict[Hashable, Any] = field(default_factory=dict)
    age: int = 0


class Values:
    """The values of one graph so far, and the memory that they lie in."""

    def __init__(self, shared: Shared) -> None:
        self.shared, self.numbering, self.geometries = shared, shared.numbering, shared.geometries
        self.values: dict[Node, Any] = {}
        self.inputs: list[Storage | None] = []
        self.constants: list[Storage] = []
        self.integers: dict[Node, int] = {}

    # -- memory ----------------------------------------------------------------------------------

    def load(self, view: View) -> Number:
        """The number of what a tensor shows now."""
        return self._seen(view.storage.contents.load(view.geometry), view.geometry)

    def store(self, view: View, number: Number) -> None:
        """Write `number` over all of a tensor."""
        self.shared.age += 1
        view.storage.contents.store(view.geometry, self._seen(number, view.geometry), self.shared.age)

    def _seen(self, number: Number, geometry: Geometry) -> Number:
        """Bytes of memory as a tensor with lazy bits shows them, and the reverse."""
        return self.numbering.flipped(number, geometry.bits, geometry.dtype) if geometry.bits else number

    def fresh(self, name: str, root: Geometry) -> View:
        contents = Contents(self.geometries, self.numbering)
        return View(Storage("fresh", name, root, contents), root)

    def source(self, node: Node, kind: str, index: int, *, donated: bool = False) -> Any:
        """An input or a constant: its bytes, gaps included, are a term. A `donated` input is the graph's own."""
        value = node.meta.get("val")
        key = (kind, index) if kind == "input" else (kind, node.target)
        if not is_strided(value):
            if kind == "input":
                self.inputs.append(None)
            return Known(key)
        root = self.geometries.root(value)
        owned = "fresh" if donated else kind
        storage = Storage(owned, node.name, root, Contents(self.geometries, self.numbering), index)
        if not root.is_empty:
            memory = self.geometries.interval(0, root.hi)
            storage.contents.store(memory, self.numbering.whole(key, root.hi, node.name), 0)
        if kind == "input":
            self.inputs.append(storage)
        else:
            self.constants.append(storage)
        return View(storage, root)

    def result(self, value: Any, key: tuple[Hashable, ...], name: str) -> Any:
        """A result like the (fake) `value`, made as `key` says: tensors in new memory."""
        self.shared.likes.setdefault(key, value)
        if isinstance(value, (list, tuple)):
            return tuple([self.result(v, ("part", key, k), name) for k, v in enumerate(value)])
        if value is None:
            return None
        if not is_strided(value):
            return Known(key)
        view = self.fresh(name, self.geometries.root(value))
        if not view.geometry.is_empty:
            self._fill(view, key)
        return view

    def _fill(self, view: View, key: tuple[Hashable, ...]) -> None:
        """New memory shows a term. One whose elements share memory is filled byte by byte."""
        root, name = view.geometry, view.storage.name
        if root.overlaps_itself:
            memory = self.geometries.interval(0, root.hi)
            view.storage.contents.store(memory, self.numbering.whole(key, root.hi, name), 0)
        else:
            self.store(view, self.numbering.whole(key, bytes_of(root), name))

    def copied(self, source: View, name: str, value: Any = None) -> View:
        """A tensor like `source`, or like the (fake) `value`, in memory of its own."""
        place = source.geometry
        if value is not None:
            root = self.geometries.root(value)
        else:
            root = self.geometries.new(place.size, place.stride, place.dtype, place.bits)
        made = self.fresh(name, root)
        if place is root and source.storage.root is root:
            made.storage.contents = source.storage.contents.copy()
        elif root.overlaps_itself and same_strides(root, place):
            memory = View(source.storage, self.geometries.interval(place.lo, place.hi))
            self.store(View(made.storage, self.geometries.interval(0, root.hi)), self.load(memory))
        elif not root.is_empty:
            self.store(made, self.load(source))
        return made

    # -- arguments -------------------------------------------------------------------------------

    def value_of(self, argument: Any) -> Any:
        """An argument with nodes replaced by their values, through lists, dicts and slices."""
        if isinstance(argument, Node):
            return self.values[argument]
        if isinstance(argument, (list, tuple)):
            return tuple([self.value_of(a) for a in argument])
        if isinstance(argument, dict):
            return {k: self.value_of(a) for k, a in argument.items()}
        if isinstance(argument, slice):
            return slice(*map(self.value_of, (argument.start, argument.stop, argument.step)))
        return argument

    def key_of(self, value: Any) -> Hashable:
        """What an operator can tell of an operand: numbers of tensors with size and dtype, constants as they are."""
        if isinstance(value, View):
            return ("tensor", self.load(value).index, value.geometry.size, value.geometry.dtype)
        if isinstance(value, Known):
            key = value.key
            return (type(key).__name__, key) if type(key) in (int, bool) else key
        if isinstance(value, (list, tuple)):
            return ("list", *map(self.key_of, value))
        if isinstance(value, dict):
            return ("dict", *((k, self.key_of(v)) for k, v in value.items()))
        if isinstance(value, slice):
            return ("slice", *map(self.key_of, (value.start, value.stop, value.step)))
        if isinstance(value, (float, complex)):
            return (type(value).__name__, repr(value))
        if isinstance(value, torch.SymInt):
            return ("symbolic", str(expression(value)))
        return (type(value).__name__, value if isinstance(value, Hashable) else id(value))

    def integers_of(self, argument: Any) -> Any:
        """The arguments of a view as numbers, symbolic ones at their hints."""
        if isinstance(argument, Node):
            known = self.integers.get(argument)
            return concrete(argument.meta["val"]) if known is None else known
        if isinstance(argument, (list, tuple)):
            return tuple([self.integers_of(a) for a in argument])
        return concrete(argument)

    def tensor(self, argument: Any) -> View:
        """The tensor that an argument is. Raises Undecided."""
        found = self.values.get(argument) if isinstance(argument, Node) else None
        if not isinstance(found, View):
            raise Undecided(f"{argument} is no strided tensor")
        return found


def parameters(facts: OpFacts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of a call in the order of the schema, defaults filled in; as they are where there is none."""
    if not facts.parameters:
        return [tuple(args), dict(kwargs)]
    return [args[p.position] if p.position < len(args) else kwargs.get(p.name, p.default) for p in facts.parameters]


def views_in(value: Any) -> Iterator[View]:
    """The tensors in a value, in order."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from views_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from views_in(item)


def bytes_of(geometry: Geometry) -> int:
    """How many bytes the elements of a tensor have."""
    return math.prod(geometry.size) * geometry.dtype.itemsize
