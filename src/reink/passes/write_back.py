"""Where a write leads: the views and scatters that carry a new value back into its base, and the input it ends in.

A part of reinplace.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Place
from reink.core.calls import CALLS, written_arguments
from reink.core.opinfo import WAITS, Kind, OpFacts, facts_of, positional
from reink.core.placement_rules import scatter_window
from reink.core.program import Program, ViewStep
from reink.core.subgraphs import functional_call
from reink.core.views import is_whole
from reink.passes.needed import Needed

Node = torch.fx.Node
aten = torch.ops.aten

# How many nodes a write-back may pass through on its way to the base.
LONGEST_WRITE_BACK = 64

# Looked up once: reading a member of an Enum, or an operator of torch.ops, runs Python code.
_COPY = aten.copy.default
_VIEW, _GETITEM = Kind.VIEW, Kind.GETITEM


class WriteBack:
    """Where one value is carried: the nodes that do it (`exempt`), and the inputs in whose new value it ends.

    The exempt nodes are no conflict for the write: they carry the very value back that was written.
    """

    __slots__ = ("exempt", "homes")

    def __init__(self, exempt: Set[Node], homes: Set[int]) -> None:
        self.exempt, self.homes = exempt, homes


NOWHERE = WriteBack(frozenset(), frozenset())


class WriteBacks:
    """Follows written values through the graph. `places` and `needed.dropped` change with the walk: where a value
    lives, and which nodes are no longer to come; and so do `bases`, where scatters write although the value of their
    base has moved."""

    def __init__(self, program: Program, needed: Needed, places: dict[Node, Any]) -> None:
        self._facts, self._done, self._places = needed.facts, needed.dropped, places
        self._homes = versions_of_inputs(program, needed.facts)
        self.bases: dict[Node, Place] = {}

    def follow(self, node: Node, place: Place) -> WriteBack:
        """Follow `node`, whose value would live in `place`, through views and scatters of exactly that place."""
        exempt: set[Node] = set()  # not set[Node](), which costs ten times as much
        passed: list[Node] = []
        homes, done, known = NOWHERE.homes, self._done, self._facts
        stack: list[tuple[Node, Place]] = [(node, place)]
        steps = 0
        while stack and steps < LONGEST_WRITE_BACK:
            current, at = stack.pop()
            steps += 1
            ends = self._homes.get(current)
            if ends is not None and is_whole(at):
                homes = homes | ends if homes else ends
            for user in current.users:
                if user in done:
                    continue
                onward = self._carried(user, known[user], current, at, exempt, passed)
                if onward is not None:
                    stack.append((user, onward))
        # a base that has taken the value in already shows it to every reader
        if passed:
            passed = [p for p in passed if p not in exempt]
            exempt.update(passed)
            if not all(self._is_only_carried(p, exempt) for p in passed):
                return NOWHERE
        return WriteBack(exempt, homes)

    def carrier(self, node: Node) -> tuple[Node, Place] | None:
        """The scatter or copy that is all that reads `node`, and the memory that it carries it to.

        Another reader could be returned, or a later version of `node`: they need memory of their own.
        """
        if len(node.users) != 1:
            return None
        found: Node | None = None
        for user in node.users:
            facts = self._facts.get(user)
            if facts is None:
                return None
            if found is None and (facts.window or user.target is _COPY) and user.args[1] is node:
                found = user
        if found is None or found in self._done:
            return None
        written = found.args[0]
        others = [i for i in found.all_input_nodes if i is not written and i is not node]
        if written is node or any(i not in self._done for i in others):
            return None
        base = self.bases.get(found) or self._expected(written, [])  # type: ignore[arg-type]
        if base is None or base.is_symbolic():
            return None
        return found, scatter_window(base, found) if self._facts[found].window else base

    def _carried(
        self, user: Node, facts: OpFacts, update: Node, at: Place, exempt: set[Node], passed: list[Node]
    ) -> Place | None:
        """Where `user` lives if it only carries `update` (in `at`) back; None if it does anything else.

        The nodes that carry it are added to `exempt`, and scatters that are still to make their base to `passed`.
        """
        if facts.kind is _VIEW:
            # a view of the whole base is a replay: the value has arrived
            onward = at.parent is not None and user.args[0] is update and _only_sizes(user, update)
            return view_place(at, user, facts) if onward else None
        if facts.window:
            if user.args[1] is not update:
                return None
            coming: list[Node] = []
            base = self.bases.get(user) or self._expected(user.args[0], coming)  # type: ignore[arg-type]
            if base is None or base.buffer is not at.buffer or base.extent.overlaps:
                return None
            if scatter_window(base, user, at) is not at:
                return None
            exempt.add(user)
            passed.extend(coming)
            return base
        if user.target is _COPY and user.args[1] is update:
            carries = (self.bases.get(user) or self._places.get(user.args[0])) is at  # type: ignore[arg-type]
            if carries:
                exempt.add(user)
            return at if carries else None
        # the next write of the same memory: it reads the value, and what it makes is carried back in its stead
        if facts.in_place is None or user.args[0] is not update:
            return None
        follows = ("reink_write" in user.meta and at.parent is not None) or facts.name in WAITS
        return at if follows else None

    def _expected(self, base: Node, passed: list[Node]) -> Place | None:
        """Where a base lives, or will live if the scatters that make it, which are put in `passed`, go in place."""
        place = self._places.get(base)
        if place is not None:
            return place if isinstance(place, Place) else None
        facts = self._facts.get(base)
        if facts is None or len(passed) >= LONGEST_WRITE_BACK or not (facts.window or facts.kind is _VIEW):
            return None
        inner = self.bases.get(base) or self._expected(base.args[0], passed)  # type: ignore[arg-type]
        if inner is None or not facts.window:
            return None if inner is None else view_place(inner, base, facts)
        passed.append(base)
        return inner

    def _is_only_carried(self, value: Node, exempt: set[Node]) -> bool:
        """Whether nothing reads `value` or a view of it but the write-back itself.

        Then it does not matter that bytes written by the present node are not part of `value` yet.
        """
        for user in value.users:
            if user in self._done or user in exempt:
                continue
            if self._facts[user].kind is not _VIEW:
                return False
            if not self._is_only_carried(user, exempt):
                return False
        return True


def _only_sizes(view: Node, operand: Node) -> bool:
    """Whether everything but `operand` that a view takes is a number."""
    inputs = view.all_input_nodes
    return len(inputs) == 1 or not any(isinstance(i.meta.get("val"), torch.Tensor) for i in inputs if i is not operand)


def view_place(parent: Place, node: Node, facts: OpFacts) -> Place:
    """The place of a view node when its operand lives in `parent`."""
    step = ViewStep(facts.name, positional(facts, node, 1))
    return parent.child(step, node.args[0].meta["val"], node.meta["val"])  # type: ignore[union-attr]


def versions_of_inputs(program: Program, facts: dict[Node, OpFacts]) -> dict[Node, frozenset[int]]:
    """For each value, the written inputs that it is a version of on the way to their new value."""
    results, homes = program.results(), dict[Node, frozenset[int]]()
    for mutation in program.signature.mutations:
        node: Any = results[mutation.result]
        home = frozenset((mutation.input,))
        while isinstance(node, Node):
            known = homes.get(node)
            if known is None:
                homes[node] = home
            elif mutation.input in known:
                break
            else:
                homes[node] = known | home
            known_facts = facts.get(node)
            node = _previous_version(program, node, known_facts) if known_facts is not None else None
    return homes


def _previous_version(program: Program, node: Node, facts: OpFacts) -> Any:
    """The older version of the storage that `node` is a version of, through the write that made it."""
    if facts.window or facts.kind is _VIEW or (facts.in_place is not None and node.args):
        return node.args[0]
    if facts.kind is _GETITEM:
        return _base_of_call(program, node.args[0], node.args[1])
    return None


def _base_of_call(program: Program, call: Any, index: Any) -> Any:
    if not isinstance(call, Node):
        return None
    known = functional_call(program, call)
    if known is not None:
        return known.bases[index - known.count] if index >= known.count else None
    if call.target not in CALLS:
        return None
    op, args, kwargs, *rest = call.args
    k = index - len(facts_of(op).result_aliases)
    if k < 0:
        return None
    if rest:
        return rest[0][k]  # type: ignore[index]
    return written_arguments(op, args, kwargs)[k][1]  # type: ignore[arg-type]
