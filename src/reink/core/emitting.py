"""Adding nodes to a functional graph, and what a pure twin's result will look like."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Place, layout_of
from reink.core.fakes import fake_result
from reink.core.torch_internals import NodeAppender, detect_fake_mode

Node = torch.fx.Node
aten = torch.ops.aten
log = logging.getLogger("reink")

Layout = tuple[torch.dtype, tuple[Any, ...]]  # dtype and strides
_NEVER: Any = object()  # nothing is known yet, which is not that torch cannot say


class GraphEmitter:
    """Adds nodes to the functional graph on behalf of one captured node at a time.

    Every node gets that node (`origin`), its source line, and its place in the order of capture. `read` gives the
    newest node for a place; it is needed only to ask for symbolic sizes.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._append = NodeAppender(graph).append
        self.read: Callable[[Place], Node] | None = None
        self.stack_trace: str | None = None
        self.origin: Node | None = None
        self._order = 0

    def emit(self, target: Any, args: tuple[Any, ...], value: Any, kwargs: dict[str, Any] | None = None) -> Node:
        """A new node whose value looks like `value`."""
        node = self._append(target, args, kwargs)
        meta = node.meta
        meta["val"] = value
        if self.stack_trace is not None:
            meta["stack_trace"] = self.stack_trace
        meta["reink_order"] = self._order
        meta["reink_from"] = self.origin
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
        self._known: dict[Any, Layout | None] = {}

    def of(self, twin: Any, node: Node, filled: dict[str, Any], places: Mapping[Node, Any]) -> Layout | None:
        """What `twin` returns for the operands of `node`, which lie in `places`; None if torch cannot say."""
        # operators live as long as torch, and hashing one runs Python code
        key = (id(twin), *self._keys(node.args, places))
        if node.kwargs:
            key += self._keys(node.kwargs.values(), places)
        found: Layout | None = self._known.get(key, _NEVER)
        if found is _NEVER:
            found = self._known[key] = _ask(twin, node, filled)
        return found

    def _keys(self, arguments: Iterable[Any], places: Mapping[Node, Any]) -> tuple[Any, ...]:
        """What the layout of a result may depend on, for each of `arguments`."""
        keys: list[Any] = []
        for argument in arguments:
            if isinstance(argument, Node):
                place = places.get(argument)
                if type(place) is Place:
                    keys.append((place.size, place.stride, place.dtype, place.bits))
                else:
                    keys.append(type(argument.meta.get("val")))
            elif isinstance(argument, (list, tuple)):
                keys.append(self._keys(argument, places))
            else:
                keys.append(argument if isinstance(argument, (str, bool, torch.dtype)) else type(argument))
        return tuple(keys)


def _ask(twin: Any, node: Node, filled: dict[str, Any]) -> Layout | None:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    kwargs = {**kwargs, **filled}
    mode = detect_fake_mode([n.meta["val"] for n in node.all_input_nodes])
    try:
        result = fake_result(twin, args, kwargs, mode)
    except RuntimeError:  # the fake kernel of the in-place operator took these operands, that of its twin does not
        log.debug("no layout for %s of %s", twin, node, exc_info=True)
        return None
    return result.dtype, layout_of(result)[1]
