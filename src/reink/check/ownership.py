"""Does every read of the lowered program find the value that the pure program gave it?

Abstract interpretation: the lowered program runs over symbolic memory (`memory.py`), in its own order. Each
of its nodes names the pure node that it carries out, and is believed only if its operands hold that node's
operands. Pure nodes without code are proven when their turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
import torch.fx

from reink.check.geometry import UNKNOWN_SIZE, Geometry, same_strides, unknown_sizes_as
from reink.check.memory import WINDOW_OF, Buffer, Impossible, Memory, Refuted, SymbolicMemory
from reink.check.operands import Operands, is_strided
from reink.check.roles import MAIN, PROOFS, RULES, Interpreter
from reink.core.calls import CALLS
from reink.core.opinfo import Kind, facts_of
from reink.core.program import OutputKind, OutputSpec, Program
from reink.core.torch_internals import has_data_dependent_size, input_nodes, pytree
from reink.report import Verdict

Node = torch.fx.Node
Tensor = torch.Tensor

END = float("inf")
# Sizes that only the data decide are tried up to this one, and so many of them.
LARGEST_GUESS = 1024
MOST_GUESSES = 16
_VIEWS = (Kind.VIEW, Kind.VIEW_LIST, Kind.GETITEM)


class _Use(Enum):
    """What a target says about the uses of its operands."""

    PLAIN = "they are used when it is carried out"
    VIEW = "they are used as long as its result is"
    ORDERED = "it has an effect"
    PYTHON = "it has an effect if the operator that it calls does"


# Looked up once: reading a member of an Enum runs Python code.
_PLAIN, _VIEW, _ORDERED, _PYTHON = _Use.PLAIN, _Use.VIEW, _Use.ORDERED, _Use.PYTHON


def check_ownership(functional: Program, order: Sequence[Node], lowered: Program) -> Verdict:
    """Prove that `lowered` computes what `functional` says, each result in the memory it belongs in.

    `order` lists the pure nodes in the order in which they are carried out. Symbolic sizes are checked at
    their hints; those that only the data decide at some size for which the program can run. Graphs that calls run are
    taken for granted: each has a proof of its own. Fails, never raises: also on a program that it cannot follow.
    """
    try:
        return _checked(functional, order, lowered)
    except Impossible as impossible:
        found = Verdict("ownership", False, (str(impossible),))
    for size in _sizes_to_try(functional):
        try:
            with unknown_sizes_as(size):
                return _checked(functional, order, lowered)
        except Impossible:
            continue
    return found


def _sizes_to_try(functional: Program) -> list[int]:
    """What sizes that only the data decide may have to be: the program says so by the numbers in it."""
    values = (n.meta.get("val") for n in functional.graph.nodes)
    if not any(has_data_dependent_size(s) for v in values if isinstance(v, Tensor) for s in v.size()):
        return []
    numbers = {a for n in functional.graph.nodes for a in pytree.tree_leaves(n.args) if type(a) is int}
    near = {m for a in numbers for m in (a, a + 1) if UNKNOWN_SIZE < m <= LARGEST_GUESS}
    return [*sorted(near)[:MOST_GUESSES], 1, 0]


def _checked(functional: Program, order: Sequence[Node], lowered: Program) -> Verdict:
    """The verdict for sizes as they count now. Raises Impossible if the program cannot run with those."""
    try:
        _Ownership(functional, order, lowered).run()
    except Impossible:
        raise
    except Refuted as refuted:
        return Verdict("ownership", False, (str(refuted),))
    except Exception as error:  # a checker that cannot follow a program has not proven it
        return Verdict("ownership", False, (f"not followed: {type(error).__name__}: {error}",))
    return Verdict("ownership", True)


class _Ownership:
    def __init__(self, functional: Program, order: Sequence[Node], lowered: Program) -> None:
        self.functional, self.lowered, self.order = functional, lowered, order
        self.signature = functional.signature
        self.results = functional.results()
        self.final = {node: position for position, node in enumerate(order)}
        self.first = self.final
        if len(self.final) < len(order):
            self.first = {node: len(order) - 1 - k for k, node in enumerate(reversed(order))}
        writable, self.donated = frozenset(self.signature.mutated_inputs), self.signature.donated_inputs
        self.due: list[Node] = []
        self.views: set[Node] = set()
        self.memory = SymbolicMemory(self._last_uses(), self.views, writable)
        self.tensors = Interpreter(self.memory, self._results_by_node(), functional)
        self.inputs: list[Buffer | None] = []
        self.carried_out: set[Node] = set()
        self.effects: list[Node] = []
        self.cursor = 0
        self.turn: Node | None = None

    def _last_uses(self) -> dict[Node, float]:
        """Position of the last use of every value, through its views; results are used at the end.

        Lists the views and the nodes with an effect on the way.
        """
        last: dict[Node, float] = {}
        final, views, known = self.final, self.views, dict[int, _Use]()
        for node in reversed(self.functional.graph.nodes):
            used: float = END
            if node.op == "call_function":
                used = final.get(node, -1)
                target = node.target
                found = known.get(id(target))
                if found is None:
                    found = known[id(target)] = _use_of(target)
                if found is _VIEW:
                    views.add(node)
                    later = last.get(node, -1)
                    used = later if later > used else used
                elif found is _ORDERED or (found is _PYTHON and _has_effect(node)):
                    self.due.append(node)
            for value in input_nodes(node):
                if last.get(value, -1) < used:
                    last[value] = used
        self.due.reverse()
        self.effectful = frozenset(self.due)
        return last

    def _results_by_node(self) -> dict[Node, list[Node]]:
        found: dict[Node, list[Node]] = {}
        for result, node in zip(self.results, self.lowered.results(), strict=False):
            if isinstance(result, Node) and isinstance(node, Node):
                found.setdefault(node, []).append(result)
        return found

    # -- the walk ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Refuted at the first thing that is not as it should be."""
        given = iter(self.functional.placeholders())
        for node in self.lowered.graph.nodes:
            if node.op == "call_function":
                self._step(node)
            elif node.op == "placeholder":
                self._input(node, next(given))
            elif node.op == "get_attr":
                self._constant(node)
        self._advance(len(self.order))
        self.memory.now = END
        self._effects_in_order()
        self._boundary()

    def _step(self, node: Node) -> None:
        meta = node.meta
        pure, role = meta.get("reink_of"), meta.get("reink_role", "")
        if pure is None:
            self._advance(len(self.order))
        elif pure is not self.turn or role == "epilogue":
            self._turn_of(pure, role)
        rule = RULES.get(role)
        if rule is None or (pure is None and role in MAIN):
            raise Refuted(f"{node.name} carries out nothing of the pure program (role {role!r})")
        rule(self.tensors, node, pure)
        if role in MAIN and pure is not None:
            self.carried_out.add(pure)
            if pure in self.effectful:
                self.effects.append(pure)

    def _turn_of(self, pure: Node, role: str) -> None:
        """Move on to where `pure` stands in the order; a value that is copied back stands there again."""
        turn = self.first.get(pure)
        if turn is None:
            raise Refuted(f"{pure.name} is carried out and is not in the order")
        final = self.final[pure]
        self.turn = pure if turn == final else None
        if turn != final and (role == "epilogue" or pure in self.carried_out) and role != "result":
            turn = final
        if turn > self.cursor:
            self._advance(turn)
        self.memory.now = self.cursor

    def _advance(self, position: int) -> None:
        """Prove the nodes from the cursor up to `position` that have no code of their own."""
        memory, order, views = self.memory, self.order, self.views
        for cursor in range(self.cursor, position):
            pure = order[cursor]
            proof = PROOFS.get(id(pure.target))
            if proof is not None and pure not in memory.where:
                memory.now = cursor
                proof(self.tensors, pure)
            elif pure in views and self._waits(pure.args[0]):
                memory.now = cursor
                memory.hold_past(pure)
        self.cursor = memory.now = max(self.cursor, position)

    def _waits(self, parent: Any) -> bool:
        """Whether the parent of a view is a write that was left for later."""
        return parent not in self.memory.where and id(parent.target) in WINDOW_OF

    def _input(self, node: Node, pure: Node) -> None:
        index = len(self.inputs)
        kind = "fresh" if index in self.donated else "input"
        self.inputs.append(self._source(node, pure, kind, index))

    def _constant(self, node: Node) -> None:
        pure = node.meta.get("reink_of")
        if pure is None or pure.op != "get_attr" or pure.target != node.target:
            raise Refuted(f"{node.name} is not the constant that it stands for")
        self._source(node, pure, "constant", -1)

    def _source(self, node: Node, pure: Node, kind: str, index: int) -> Buffer | None:
        value = pure.meta.get("val")
        if not is_strided(value):
            self.tensors.scalars[node] = (pure,)
            return None
        buffer = Buffer(kind, pure.name, self.memory.geometries.root(value), index)
        self.tensors.at[node] = Memory(buffer, buffer.root)
        self.tensors.layouts.like[node] = pure
        self.memory.hold(pure, self.tensors.at[node])
        return buffer

    # -- the boundary ------------------------------------------------------------------------------------

    def _effects_in_order(self) -> None:
        """Every effect happens once, in the order of the pure graph or in that of capture."""
        expected = self.due
        if expected == self.effects:
            return
        for wanted in expected:
            if self.effects.count(wanted) != 1:
                raise Refuted(f"{wanted.name} has an effect and is carried out {self.effects.count(wanted)} times")
        known = [n.meta["reink_order"] for n in self.effects if "reink_order" in n.meta]
        if len(self.effects) != len(expected) or known != sorted(known):
            names = [[n.name for n in nodes] for nodes in (expected, self.effects)]
            raise Refuted(f"effects out of order: {names[0]} are due, {names[1]} happen")

    def _boundary(self) -> None:
        outputs, returned = self.signature.outputs, self.lowered.results()
        if len(returned) != len(outputs):
            raise Refuted(f"{len(returned)} results are returned instead of {len(outputs)}")
        owners: dict[int, int] = {}
        for k, spec in enumerate(outputs):
            self._returned(k, spec, returned, owners)
        for mutation in self.signature.mutations:
            self._mutated(mutation.input, self.results[mutation.result])

    def _returned(self, k: int, spec: OutputSpec, returned: list[Any], owners: dict[int, int]) -> None:
        output = self.lowered.output()
        result, given = self.results[k], returned[k]
        if spec.kind in (OutputKind.FRESH, OutputKind.OTHER):
            self.tensors.agree(result, given, Operands(output))
        memory = self.tensors.at.get(given) if isinstance(given, Node) else None
        if spec.kind is OutputKind.OTHER:
            return
        if memory is None:
            raise Refuted(f"result {k} is not a tensor")
        if spec.kind is OutputKind.INPUT_ALIAS:
            if not spec.steps and given is not self.lowered.placeholders()[spec.source]:
                raise Refuted(f"result {k} is {memory} and not input {spec.source} itself, which eager returns")
            buffer = self.inputs[spec.source]
            if (
                buffer is None
                or memory.buffer is not buffer
                or memory.geometry is not self.tensors.part(Memory(buffer, buffer.root), spec.steps)
            ):
                raise Refuted(f"result {k} is {memory} and not the view of input {spec.source} that eager returns")
            return
        owner = k if spec.kind is OutputKind.FRESH else spec.source
        if memory.buffer.kind != "fresh" or owners.setdefault(id(memory.buffer), owner) != owner:
            raise Refuted(f"result {k} shares {memory.buffer.name} with an input, a constant or another result")
        if spec.kind is OutputKind.GROUP_ALIAS:
            self._group_member(k, spec, memory)
        else:
            self._same_layout(k, memory.geometry, spec.like if spec.like is not None else result.meta["val"])

    def _same_layout(self, k: int, found: Geometry, value: Tensor) -> None:
        expected = self.memory.geometries.root(value)
        if not expected.is_empty and not same_strides(expected, found):
            raise Refuted(f"result {k} has strides {found.stride} where eager has {expected.stride}")

    def _group_member(self, k: int, spec: OutputSpec, memory: Memory) -> None:
        """A view of a base that several results share: some place holds the base, and this is its part."""
        base = self.results[spec.source]
        for fact, place in self.memory.located(base):
            home = Memory(fact.buffer, place)
            held = fact.buffer is memory.buffer and self.memory.holds(base, home)
            if held and self.tensors.part(home, spec.steps) is memory.geometry:
                return
        raise Refuted(f"result {k} in {memory} is not the view of {base.name} that eager returns")

    def _mutated(self, index: int, value: Any) -> None:
        buffer = self.inputs[index]
        if buffer is None or not isinstance(value, Node):
            raise Refuted(f"input {index} cannot be given its new value {value}")
        why = self.memory.why_not(value, Memory(buffer, buffer.root))
        if why:
            raise Refuted(f"input {buffer.name} does not end with its new value {value.name}: {why}")


def _use_of(target: Any) -> _Use:
    facts = facts_of(target)
    if facts.kind in _VIEWS:
        return _VIEW
    if facts.ordered:
        return _ORDERED
    return _PYTHON if facts.kind is Kind.PYTHON else _PLAIN


def _has_effect(node: Node) -> bool:
    """Whether a functional call wraps an operator with an effect."""
    return node.target in CALLS and facts_of(node.args[0]).ordered
