"""Where a write goes when something still needs what it would destroy: hoist, save or detach, the cheapest.

A part of reinplace. A conflict is a live value in the bytes that the write touches, with a reader that comes
later. Moving the reader above the write is free; else the bytes that the reader needs are saved before the
write, or the write goes to a copy of its base, whichever copies less.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, SymbolFacts, is_dense
from reink.core.calls import CALLS
from reink.core.opinfo import Kind
from reink.core.plan import Choice, Copy, Step
from reink.core.program import Program
from reink.core.residents import Residents
from reink.core.torch_internals import detect_fake_mode
from reink.passes.needed import Needed
from reink.passes.order import is_ordered
from reink.passes.write_back import NOWHERE, WriteBack, WriteBacks, view_place

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

# How many nodes a hoisted reader may take along.
LARGEST_CONE = 16

Live = list[tuple[Node, Place]]


@dataclass(slots=True)
class Write:
    """One write to be placed: `node` would write `targets`, parts of `base`.

    `whole`: it covers all of `base`, so a copy needs memory but no content. `clash`: another operand of the same
    node lies where it writes. `optional`: the operator has a form that makes its result afresh. `may_wait`: it may be
    left for later, until something needs its value.
    """

    node: Node
    step: Step
    choice: Choice
    base: Place
    targets: list[Place]
    chain: WriteBack = NOWHERE
    whole: bool = False
    clash: bool = False
    optional: bool = False
    may_wait: bool = False


# Stands for a write that has no place yet: it waits until readers of the old value are done.
LATER = object()


class Placement:
    """The state of one walk: where each value lives, what is still to be read, and the decisions about writes.

    `visit` carries out a node of the walk out of turn, for hoisting. With `dice` chance decides instead of cost.
    """

    def __init__(
        self, program: Program, needed: Needed, visit: Callable[[Node], None], dice: random.Random | None = None
    ) -> None:
        self.dice, self.facts, self.inputs = dice, needed.facts, needed.inputs
        self.places: dict[Node, Any] = {}
        self.done, self.pending = needed.dropped, needed.pending
        self.residents = Residents(self.pending)
        self.write_backs = WriteBacks(program, needed, self.places)
        self._visit, self._output = visit, program.output()
        self._facts: SymbolFacts | None = None
        # a write is being decided that counts as carried out: what it reads is not free, and does not show
        self.hoisting = False

    def new_buffer(self, kind: str, node: Node, value: Tensor, index: int = -1) -> Buffer:
        """Memory that `node` brings into the program, with the layout of `value`."""
        buffer = Buffer(kind, node.name, value, index)
        if self._facts is None:
            mode = detect_fake_mode([value])
            self._facts = SymbolFacts(mode.shape_env if mode is not None else None)
        buffer.facts = self._facts
        return buffer

    # -- the decision ----------------------------------------------------------------------------

    def is_free(self, base: Place, targets: list[Place], chain: WriteBack) -> bool:
        """Whether nothing stands against a write into `targets`: it goes to its base, and `settle` need not decide."""
        if not self._is_ours(base, chain):
            return False
        for target in targets:
            for value, _ in self.residents.hit_by(target):
                if self.readers(value, chain):
                    return False
        return True

    def settle(self, write: Write) -> Any:
        """Where `write` goes: its base, after hoists and saves; the root of a copy; None, made afresh; or `LATER`."""
        choice, base = write.choice, write.base
        if not self._is_ours(base, write.chain):
            choice.reason, choice.do = _not_ours(base)
            return self._detach(write)
        live = self.conflicts(write.targets, write.chain)
        if live and self._prefers(True) and self._hoist(write.node, live, write.chain):
            choice.outcome, choice.reason = "hoisted", "the reader moved above the write"
            live = self.conflicts(write.targets, write.chain)
        if not live and not write.clash:
            return base
        if live and write.may_wait and self._prefers(True):
            return LATER
        if live:
            self._note_conflict(write, live)
        if write.clash and not live:
            choice.reason = "another operand of the same call lies where it writes"
            choice.do = "let the call read and write tensors that do not overlap"
            return base if write.whole else self._detach(write)
        roots = self.without_views(live)
        if self._prefers(_cheaper(self._detach_cost(write), _total([p.byte_count() for _, p in roots]), base)):
            return self._detach(write)
        self.save(write.step, roots, choice, live)
        return base

    def _prefers(self, best: bool) -> bool:
        """The `best` of two decisions, or either of them."""
        return best if self.dice is None else self.dice.random() < 0.5

    def _is_ours(self, base: Place, chain: WriteBack) -> bool:
        """Whether the memory may be written: it is fresh, or this value is a version of the input that it ends in."""
        kind = base.buffer.kind
        return kind == "fresh" or (kind == "input" and base.buffer.input_index in chain.homes)

    def conflicts(self, targets: list[Place], chain: WriteBack) -> Live:
        """Live values that a write into `targets` would destroy for a reader other than its own write-back."""
        found: dict[Node, Place] = {}
        for target in targets:
            for value, place in self.residents.hit_by(target):
                if value not in found and self.readers(value, chain):
                    found[value] = place
        return list(found.items())

    def readers(self, value: Node, chain: WriteBack) -> list[Node]:
        """Nodes that still read `value`, the output node last."""
        done, exempt, facts, waiting = self.done, chain.exempt, self.facts, 0
        readers: list[Node] = []
        for user in value.users:
            if user in done:
                continue
            if user in exempt:
                waiting += 1
            elif not facts[user].looks_at_shape:
                waiting += 1
                readers.append(user)
        if self.pending[value] > waiting:
            readers.append(self._output)
        return readers

    def count_reads(self, values: Iterable[Node]) -> None:
        """One read of each value is no longer to come; after the last one no write can destroy it."""
        pending = self.pending
        for value in values:
            left = pending[value] = pending[value] - 1
            if not left:
                self.residents.remove(value, self.places.get(value))

    def take_back(self, node: Node) -> None:
        """`node` is not carried out after all, and what it reads is still to be read."""
        self.done.discard(node)
        pending = self.pending
        for value in self.inputs[node]:
            pending[value] += 1
            place = self.places.get(value)
            if pending[value] == 1 and isinstance(place, Place):
                self.residents.add(value, place)

    def _note_conflict(self, write: Write, live: Live) -> None:
        choice, (value, place) = write.choice, live[0]
        readers = self.readers(value, write.chain)
        choice.needed, choice.written = place, tuple(write.targets)
        choice.definition, choice.reader = value, readers[0] if readers else None
        choice.reason = "a later read needs the old value"

    # -- hoist -----------------------------------------------------------------------------------

    def _hoist(self, write: Node, live: Live, chain: WriteBack) -> bool:
        """Move every late reader above `write` if nothing forbids it; whether any moved."""
        cones: list[list[Node]] = []
        for value, _ in live:
            for reader in self.readers(value, chain):
                cone = self._cone(reader, write)
                if cone is None:
                    return False
                cones.append(cone)
        outer, self.hoisting = self.hoisting, True
        for cone in cones:
            for reader in cone:
                if reader not in self.done:
                    self._visit(reader)
        self.hoisting = outer
        return bool(cones)

    def _cone(self, reader: Node, write: Node) -> list[Node] | None:
        """`reader` and what it still waits for, inputs first; None when it cannot move above `write`."""
        cone: list[Node] = []
        stack = [(reader, False)]
        seen: set[Node] = set()
        while stack:
            node, finished = stack.pop()
            if finished:
                cone.append(node)
                continue
            if node in seen or (node in self.done and node is not write):
                continue
            if node is write or len(seen) >= LARGEST_CONE or not self._may_move(node):
                return None
            seen.add(node)
            stack.append((node, True))
            stack.extend((i, False) for i in node.all_input_nodes if i not in self.done or i is write)
        return cone

    def _may_move(self, node: Node) -> bool:
        """Whether a reader may run earlier: it has no effect and writes nothing."""
        facts = self.facts.get(node)
        if facts is None or is_ordered(node) or facts.window:
            return False
        return node.target is not aten.copy.default and node.target not in CALLS and "reink_write" not in node.meta

    # -- save ------------------------------------------------------------------------------------

    def without_views(self, live: Live) -> Live:
        """The conflicts that are not views of another conflict: saving the base saves its views."""
        values = {v for v, _ in live}
        return [
            (v, p) for v, p in live if not any(a in values and is_dense(self.places[a]) for a in self._ancestors(v))
        ]

    def _ancestors(self, value: Node) -> list[Node]:
        """The values that `value` is a view of, nearest first."""
        found: list[Node] = []
        while (facts := self.facts.get(value)) is not None and facts.kind is Kind.VIEW:
            value = value.args[0]  # type: ignore[assignment]
            found.append(value)
        return found

    def save(self, step: Step, roots: Live, choice: Choice, live: Live | None = None) -> None:
        """Copy each value of `roots` before the write, for its readers after it; views among `live` move along."""
        for value, place in roots:
            copy = Copy(place, self._copy_of(value, value.meta["val"], exact=is_dense(place)))
            self._move(copy, value, place, copy.target)
            for view, at in live or []:
                if view is not value and is_dense(place) and value in self._ancestors(view):
                    self._move(copy, view, at, self._taken_again(view, value, copy.target))
            step.before = (*step.before, copy)
            count = place.byte_count()
            choice.bytes = None if count is None or choice.bytes is None else choice.bytes + count
        choice.outcome = "saved"
        if choice.reason:
            choice.do = choice.do or _less(roots, choice.written)
        else:
            choice.reason = "the same call still reads the old value"
            choice.do = "give the call only the part of the old value that it reads"
        _charge(choice)

    def _copy_of(self, node: Node, known: Tensor, exact: bool) -> Place:
        """New memory for a copy of a tensor like `known`, in its strides if `exact`."""
        mode = detect_fake_mode([known])
        if exact or mode is None:
            return self.new_buffer("fresh", node, known).root
        # A clone closes gaps and parts elements that share memory; torch itself says which strides that gives.
        with mode:
            closed = known.clone()
        return self.new_buffer("fresh", node, closed).root

    def _move(self, copy: Copy, value: Node, old: Place, new: Place) -> None:
        self.residents.remove(value, old)
        self.places[value] = new
        self.residents.add(value, new)
        copy.moved.append((value, new))

    def _taken_again(self, view: Node, base: Node, place: Place) -> Place:
        """Where `view` lies when `base`, of which it is a view, lies in `place`. What lies between may have no use."""
        steps = [view, *self._ancestors(view)]
        for node in reversed(steps[: steps.index(base)]):
            place = view_place(place, node, self.facts[node])
        return place

    # -- detach ----------------------------------------------------------------------------------

    def _detach_cost(self, write: Write) -> int | None:
        """Bytes that detaching copies: the base, and again the base when its end is an input."""
        own, whole = write.base.byte_count(), write.base.buffer.root.byte_count()
        if own is None or whole is None:
            return None
        back = own if write.chain.homes and write.base.buffer.kind == "input" else 0
        if write.optional:
            return (whole if write.chain.exempt else 0) + back
        return (0 if write.whole else own) + back

    def _detach(self, write: Write) -> Place | None:
        """Memory of its own: a copy of the base, empty when all of it is overwritten; None when made afresh."""
        choice, base = write.choice, write.base
        choice.outcome = "detached"
        choice.do = choice.do or "drop the later read, or read it before the write"
        if write.optional:
            choice.bytes = 0
            return None
        root = self._copy_of(write.node, base.value, exact=not base.overlaps_itself())
        write.step.before = (*write.step.before, Copy(base, root, filled=not write.whole, exact=True))
        choice.bytes = 0 if write.whole else root.byte_count()
        _charge(choice)
        return root


def _less(roots: Live, written: tuple[Place, ...]) -> str:
    """What to do for fewer bytes than those of `roots`, of which the write destroys the `written` ones."""
    saved, destroyed = _total([p.byte_count() for _, p in roots]), _total([p.byte_count() for p in written])
    if saved is not None and destroyed is not None and saved <= destroyed:
        return "read it before the write; reink already copies only the part that is needed"
    return "read the value before the write, or keep a copy of only the part that is needed"


def _charge(choice: Choice) -> None:
    """What is copied was not avoided."""
    if choice.avoided is not None:
        choice.avoided = max(0, choice.avoided - (choice.bytes or 0))


def _total(counts: list[int | None]) -> int | None:
    known = [c for c in counts if c is not None]
    return sum(known) if len(known) == len(counts) else None


def _cheaper(detach: int | None, save: int | None, base: Place) -> bool:
    """Whether detaching costs less than saving; unknown sizes: keep an input in place, detach anything else."""
    if detach is None or save is None:
        return base.buffer.kind != "input"
    return detach < save


def _not_ours(base: Place) -> tuple[str, str]:
    """Why memory may not be written, and what to do about it."""
    name = base.buffer.name
    if base.buffer.kind == "constant":
        return f"{name} is a constant of the graph", "pass the tensor as an argument"
    reason = f"{name} is an input that does not end with this value"
    return reason, "copy only the part of the input that is written, or let the input end with the new value"
