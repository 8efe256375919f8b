"""Adding nodes to a functional graph, and what a pure twin's result will look like."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Place, layout_of
from reink.core.torch_internals import append_node, detect_fake_mode

Node = torch.fx.Node
aten = torch.ops.aten
log = logging.getLogger("reink")


class GraphEmitter:
    """Adds nodes to the functional graph on behalf of one captured node at a time.

    Every node gets the source line of that node and its place in the order of capture. `read` gives the newest
    node for a place; it is needed only to ask for symbolic sizes.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.read: Callable[[Place], Node] | None = None
        self.stack_trace: str | None = None
        self._order = 0

    def emit(self, target: Any, args: tuple[Any, ...], value: Any, kwargs: dict[str, Any] | None = None) -> Node:
        """A new node whose value looks like `value`."""
        node = append_node(self.graph, target, args, kwargs)
        meta = node.meta
        meta["val"] = value
        if self.stack_trace is not None:
            meta["stack_trace"] = self.stack_trace
        meta["reink_order"] = self._order
        self._order += 1
        return node

    def sizes(self, place: Place) -> list[Any]:
        """The sizes of a place as arguments: ints, and nodes for symbolic ones."""
        return self._numbers(place, place.size, place.value.size(), aten.sym_size.int)

    def strides(self, place: Place) -> list[Any]:
        """The strides of a place as arguments, in elements."""
        return self._numbers(place, place.stride, place.value.stride(), aten.sym_stride.int)

    def _numbers(self, place: Place, known: tuple[Any, ...], values: Sequence[Any], asked: Any) -> list[Any]:
        if all(type(n) is int for n in known):
            return list(known)
        assert self.read is not None
        tensor = self.read(place)
        pairs = enumerate(zip(known, values, strict=True))
        return [n if type(n) is int else self.emit(asked, (tensor, d), v) for d, (n, v) in pairs]


class TwinLayouts:
    """The dtype and strides that a pure twin gives, asked of torch once for each kind of operands."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[torch.dtype, tuple[Any, ...]] | None] = {}

    def of(
        self, twin: Any, node: Node, filled: dict[str, Any], places: Callable[[Any], Any]
    ) -> tuple[torch.dtype, tuple[Any, ...]] | None:
        """What `twin` returns for the operands of `node`, whose places `places` tells; None if torch cannot say."""
        # operators live as long as torch, and hashing one runs Python code
        key = (id(twin), *[self._key(a, places) for a in (*node.args, *node.kwargs.values())])
        if key not in self._known:
            self._known[key] = _ask(twin, node, filled)
        return self._known[key]

    def _key(self, argument: Any, places: Callable[[Any], Any]) -> Any:
        if isinstance(argument, Node):
            place = places(argument)
            if isinstance(place, Place):
                return (place.size, place.stride, place.dtype, place.bits)
            return type(argument.meta.get("val"))
        if isinstance(argument, (list, tuple)):
            return tuple(self._key(a, places) for a in argument)
        return argument if isinstance(argument, (str, bool, torch.dtype)) else type(argument)


def _ask(twin: Any, node: Node, filled: dict[str, Any]) -> tuple[torch.dtype, tuple[Any, ...]] | None:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    kwargs = {**kwargs, **filled}
    mode = detect_fake_mode([n.meta["val"] for n in node.all_input_nodes])
    try:
        with mode if mode is not None else contextlib.nullcontext():
            result = twin(*args, **kwargs)
    except RuntimeError:  # the fake kernel of the in-place operator took these operands, that of its twin does not
        log.debug("no layout for %s of %s", twin, node, exc_info=True)
        return None
    return result.dtype, layout_of(result)[1]
