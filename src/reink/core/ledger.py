"""The ledger: which version of which storage each value of the program has last seen.

A write through a view is carried back into the base at once; a view is replayed from the newest base when it
is next read, once per version.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.fx

from reink.core.aliasing import PARTICULAR_VIEWS, Buffer, Place
from reink.core.views import WRITE_BACKS, Emitter, step_operator

Node = torch.fx.Node
Record = Callable[[str, Place, int, str], None]

# Looked up once: reading an operator of torch.ops runs Python code.
_AS_STRIDED = torch.ops.aten.as_strided.default


class Ledger:
    """Versions per buffer. `emitter` adds nodes to the functional graph; `record` hears every entry."""

    def __init__(self, emitter: Emitter, record: Record) -> None:
        self._emitter, self._record = emitter, record
        self._base: dict[Buffer, Node] = {}
        self._version: dict[Buffer, int] = {}
        self._replayed: dict[Place, tuple[int, Node]] = {}

    def open(self, buffer: Buffer, node: Node) -> None:
        """Enter a new storage; its first version is `node`."""
        self._base[buffer], self._version[buffer] = node, 0
        self._record("input" if buffer.kind == "input" else "birth", buffer.root, 0, node.name)

    def version(self, buffer: Buffer) -> int:
        """How often the storage has been written."""
        return self._version[buffer]

    def newest(self, buffer: Buffer) -> Node:
        """The node that is the newest version of the whole storage."""
        return self._base[buffer]

    def read(self, place: Place) -> Node:
        """The node for the newest content of `place`; replays the views that are stale."""
        if place.parent is None:
            return self._base[place.buffer]
        version = self._version[place.buffer]
        known = self._replayed.get(place)
        if known is not None and known[0] == version:
            return known[1]
        step = place.step
        assert step is not None
        base = self.read(place.parent)
        if version and step.op in PARTICULAR_VIEWS:
            base = self._regular(base, place.parent)
        node = self._emitter.emit(step_operator(step), (base, *step.args), place.value)
        self._replayed[place] = (version, node)
        self._record("replay" if version else "view", place, version, node.name)
        return node

    def _regular(self, tensor: Node, place: Place) -> Node:
        """`tensor`, a later version of what lies in `place`, with the strides for dims of one element that it had."""
        strided = place.step is not None and place.step.op == "aten.as_strided.default"
        if strided or 1 not in place.size or place.is_symbolic():
            return tensor
        return self._emitter.emit(_AS_STRIDED, (tensor, list(place.size), list(place.stride)), place.value)

    def write(self, place: Place, update: Node) -> None:
        """Make `update` the content of `place`: carry it back, view by view, into a new version of the base."""
        at: Place = place
        while at.parent is not None:
            parent = at.parent
            assert at.step is not None
            update = WRITE_BACKS[at.step.op](self._emitter, at, partial(self.read, parent), update)
            update.meta["reink_window"] = at.value
            at = parent
        self.bind(place.buffer, update, place)

    def bind(self, buffer: Buffer, node: Node, written: Place | None = None) -> None:
        """`node` is the next version of the whole storage, of which `written`, or who knows what, has changed."""
        self._base[buffer] = node
        self._version[buffer] += 1
        place = written or buffer.root
        self._record("write" if place.parent is None else "write-back", place, self._version[buffer], node.name)

    def written(self) -> list[Buffer]:
        """The storages that have been written at least once, in the order they were opened."""
        return [b for b, v in self._version.items() if v]


def ignore(kind: str, place: Place, version: int, node: str) -> Any:
    """A `record` that keeps nothing."""
