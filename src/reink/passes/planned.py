"""Memory that a code generator plans itself: it fuses pure operators, and what they make need not exist as a tensor.

A part of reinplace. Writes into such memory stay pure; inputs, and what calls are given, are written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

from reink.core.aliasing import Buffer, Place
from reink.core.calls import CALLS
from reink.core.opinfo import Kind, OpFacts

Node = torch.fx.Node
_VIEWS = frozenset({Kind.VIEW, Kind.VIEW_LIST, Kind.GETITEM})
Generated = Callable[[Node, bool], bool]


class PlannedMemory:
    """Which buffers a code generator plans.

    `generated` says of a value that it is a tensor in memory there whatever happens to it, and with False whether it
    would be if it were no result; None: there is no code generator, and nothing is planned. `facts` and `places` are
    those of the walk.
    """

    def __init__(self, generated: Generated | None, facts: Mapping[Node, OpFacts], places: Mapping[Node, Any]) -> None:
        self._generated, self._facts, self._places = generated, facts, places
        self._makers: dict[Buffer, Node] = {}
        self._known: dict[tuple[Buffer, bool], bool] = {}

    def __bool__(self) -> bool:
        return self._generated is not None

    def made(self, buffer: Buffer, node: Node) -> None:
        """A pure operator made this memory. That of copies and of calls is never planned."""
        self._makers[buffer] = node

    def holds(self, buffer: Buffer, *, returned: bool = True) -> bool:
        """Whether this memory is planned: a pure operator made it, and no call is given it.

        Unless `returned` says otherwise, a result of the program is a tensor in memory.
        """
        if self._generated is None or buffer.kind != "fresh":
            return False
        found = self._known.get((buffer, returned))
        if found is None:
            found = self._is_planned(self._makers.get(buffer), self._generated, returned)
            self._known[buffer, returned] = found
        return found

    def _is_planned(self, made: Node | None, generated: Generated, returned: bool) -> bool:
        if made is None or self._facts[made].kind is Kind.GETITEM or generated(made, returned):
            return False
        stack, seen = [made], {made}
        while stack:  # through all views
            for user in stack.pop().users:
                if user.target in CALLS:
                    return False
                facts = self._facts.get(user)
                if facts is not None and facts.kind in _VIEWS and user not in seen:
                    seen.add(user)
                    stack.append(user)
        return True

    def is_computed(self, value: Node, *, returned: bool = True) -> bool:
        """Whether generated code computes `value` where it is written to, so that nothing is copied.

        So it does for a view: of what is computed, it loads the elements that the view shows.
        """
        place = self._places.get(value)
        return isinstance(place, Place) and self.holds(place.buffer, returned=returned)
