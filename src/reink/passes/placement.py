"""Where a write goes when something still needs what it would destroy: hoist, save or detach, the cheapest.

A part of reinplace. A conflict is a live value in the bytes that the write touches, with a reader that comes
later. Moving the reader above the write is free; else the bytes that the reader needs are saved before the
write, or the write goes to a copy of its base, whichever copies less.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, SymbolFacts, geometry_of, is_dense
from reink.core.calls import CALLS
from reink.core.opinfo import Kind
from reink.core.plan import Choice, Copy, Step, total
from reink.core.program import Program
from reink.core.residents import Residents
from reink.core.torch_internals import detect_fake_mode, pytree
from reink.passes.needed import Needed
from reink.passes.optimum import Conflicts, Key
from reink.passes.order import is_ordered
from reink.passes.sharing import Live, byte_total, shared
from reink.passes.write_back import NOWHERE, WriteBack, WriteBacks, view_place

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

# How many nodes a hoisted reader may take along.
LARGEST_CONE = 16


@dataclass(slots=True)
class Write:
    """One write to be placed: `node` would write `targets`, parts of `base`.

    `whole`: it covers all of `base`, so a copy needs memory but no content. `clash`: another operand of the same
    node lies where it writes. `optional`: the operator has a form that makes its result afresh. `may_wait`: it may be
    left for later, until something needs its value. `number` counts the written operands of the node.
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
    number: int = 0

    @property
    def key(self) -> Key:
        """What the write is called among all."""
        return self.node, self.number


@dataclass(frozen=True, slots=True)
class Rules:
    """How a walk decides.

    `reorder` first restores the order of capture; needed when a pass may have moved nodes. With `dice` the writes are
    decided in the order that stands, and among the ways to resolve a conflict chance chooses: any such plan must be
    right, and only costs more. `generated` is for a code generator that plans the memory of pure operators itself: it
    says which values are tensors in memory there, whatever happens to them, and not part of a kernel. At most
    `max_extra_bytes` more are live because readers move up and writes wait; None: any number. `out`: operators may be
    given memory for their result.

    The writes `elsewhere` are detached, with `apart` those of small parts as well, and every other old value that is
    read late is saved: `reinplace` finds which.
    """

    reorder: bool = False
    dice: random.Random | None = None
    generated: Callable[[Node, bool], bool] | None = None
    max_extra_bytes: int | None = None
    out: bool = False
    elsewhere: frozenset[Key] = frozenset()
    apart: bool = False


AS_IT_STANDS = Rules()

# Stands for a write that has no place yet: it waits until readers of the old value are done.
LATER = object()


class Placement:
    """The state of one walk: where each value lives, what is still to be read, and the decisions about writes.

    `visit` carries out a node of the walk out of turn, for hoisting. `met` has what saving old values costs.
    """

    def __init__(self, program: Program, needed: Needed, visit: Callable[[Node], None], rules: Rules) -> None:
        self.dice, self.facts, self.inputs = rules.dice, needed.facts, needed.inputs
        self.elsewhere, self.apart, self.met = rules.elsewhere, rules.apart, Conflicts()
        self.left = rules.max_extra_bytes  # of the bytes that may be live longer
        self.places: dict[Node, Any] = {}
        self.done, self.pending = needed.dropped, needed.pending
        self.residents = Residents(self.pending)
        self.write_backs = WriteBacks(program, needed, self.places)
        # the memory that scatters still write although the value of their base was saved
        self.bases = self.write_backs.bases
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
        if write.key in self.elsewhere:
            choice.reason = "it costs less than to save what it and later writes destroy"
            if live:
                self._note_conflict(write, live)
            return self._detach(write)
        if live and self._prefers(True) and self._hoist(write.node, live, write.chain):
            choice.outcome, choice.reason = "hoisted", "the reader moved above the write"
            live = self.conflicts(write.targets, write.chain)
        if not live and not write.clash:
            if write.whole:
                self.note_whole(write.key, base, write.chain)
            return base
        if (
            live
            and write.may_wait
            and self._prefers(True)
            and self._affords(total(p.byte_count() for p in write.targets))
        ):
            return LATER
        if live:
            self._note_conflict(write, live)
        if write.clash and not live:
            choice.reason = "another operand of the same call lies where it writes"
            choice.do = "let the call read and write tensors that do not overlap"
            return base if write.whole else self._detach(write)
        roots = self.without_views(live)
        if self._goes_elsewhere(write, roots):
            return self._detach(write)
        self.save(write.step, roots, choice, write.chain)
        return base

    def _goes_elsewhere(self, write: Write, roots: Live) -> bool:
        """Whether `write` is detached and `roots` stay where they are; saving them is entered in `met`."""
        detach, save = self._detach_cost(write), byte_total(roots)
        if self.dice is not None:
            return self.dice.random() < 0.5
        if detach is None or save is None:  # keep an input in place, detach anything else
            return write.base.buffer.kind != "input"
        back, onward = self._back(write.base, write.chain), self._onward(write)
        if onward is None:
            return detach + back < save
        keys, more = onward
        small = not write.base.is_root and detach + (write.base.byte_count() or 0) < save
        if small:
            self.met.parts[write.key] = None
        if detach + more + back == 0 or (small and self.apart):
            return True
        self.met.write(write.base.buffer, keys, detach + more, back)
        self._enter(write.base.buffer, roots, bool(back))
        return False

    def _enter(self, buffer: Buffer, roots: Live, ends_here: bool) -> None:
        """Enter what saving `roots` costs: the part that each adds to those that came to be later.

        What the output needs is copied whatever is detached if the newest version `ends_here`, in the same memory.
        """
        spared = [(v, p) for v, p in roots if not (ends_here and self._is_returned(v))]
        spared.sort(key=lambda entry: -self.met.born(entry[0]))
        alone, known = len(shared(spared)) == len(spared), 0
        for k, (value, _) in enumerate(spared):
            together = (known if alone else 0) + (byte_total(spared[k if alone else 0 : k + 1]) or 0)
            self.met.keep(buffer, self.met.born(value), together - known)
            known = together

    def _is_returned(self, value: Node) -> bool:
        """Whether the output reads `value`."""
        return self._output in self.readers(value, NOWHERE)

    def _onward(self, write: Write) -> tuple[list[Key], int] | None:
        """The writes that are detached with `write` so that its storage stays as it is, and the bytes of the others.

        None where a part of the storage is written and it is not known what carries the part back.
        """
        base, keys, more = write.base, [write.key], 0
        if base.is_root or (write.optional and not write.chain.exempt):
            return keys, more
        carrying = [n for n in write.chain.exempt if self.facts[n].window and n.args[1] not in self.places]
        bases = [(n, self.base_of(n)) for n in carrying]
        known = [(n, into, into.byte_count()) for n, into in bases if into is not None]
        if not carrying or any(count is None for _, _, count in known):
            return None
        if known and not any(into.is_root for _, into, _ in known):
            return None
        window = base.byte_count() or 0
        return keys + [(n, 0) for n, _, _ in known], sum(window + (count or 0) for _, _, count in known) or window

    def base_of(self, node: Node) -> Place | None:
        """Where the base lives that a scatter writes."""
        place = self.bases.get(node) or self.places.get(node.args[0])  # type: ignore[arg-type]
        return place if isinstance(place, Place) else None

    def note_whole(self, key: Key, base: Place, chain: WriteBack) -> None:
        """A write overwrites all of `base`: were it detached, nothing would be copied but an input in the end."""
        if base.is_root and not base.is_symbolic() and self.dice is None:
            self.met.write(base.buffer, (key,), 0, self._back(base, chain))

    def _back(self, base: Place, chain: WriteBack) -> int:
        """What is copied in the end if the newest version of an input is in other memory."""
        return (base.buffer.root.byte_count() or 0) if chain.homes and base.buffer.kind == "input" else 0

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
        moved = dict.fromkeys(n for cone in cones for n in cone if self.facts[n].kind is not Kind.VIEW)
        if cones and not self._affords(_made_by(moved)):
            return False
        outer, self.hoisting = self.hoisting, True
        for cone in cones:
            for reader in cone:
                if reader not in self.done:
                    self._visit(reader)
        self.hoisting = outer
        return bool(cones)

    def _affords(self, count: int | None) -> bool:
        """Whether `count` bytes more may be live for longer, which they then are."""
        if self.left is None:
            return True
        if count is None or count > self.left:
            return False
        self.left -= count
        return True

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

    def save(self, step: Step, roots: Live, choice: Choice, chain: WriteBack = NOWHERE) -> None:
        """Copy the values of `roots` before the write, for their readers after it; views of them move along.

        What carries the written value back (`chain`) still writes the memory that the values had.
        """
        for share in shared(roots):
            first, cover = share.members[0], share.cover
            known = first[0].meta["val"] if cover is first[1] else cover.value
            asked = cover.is_symbolic() or any(self._goes_into_graph(v) for v, _ in share.members)
            as_it_lies = asked and not cover.overlaps_itself()
            copy = Copy(cover, self._copy_of(first[0], known, exact=as_it_lies or is_dense(cover)))
            for value, place in share.members:
                to = share.place_in(copy.target, place)
                self._move(copy, value, place, to, chain)
                for view in self._views_of(value) if is_dense(place) else ():
                    self._move(copy, view, self.places[view], self._taken_again(view, value, to), chain)
            step.before = (*step.before, copy)
            count = cover.byte_count()
            choice.bytes = None if count is None or choice.bytes is None else choice.bytes + count
        choice.outcome = "saved"
        if choice.reason:
            choice.do = choice.do or _less(roots, choice.written)
        else:
            choice.reason = "the same call still reads the old value"
            choice.do = "give the call only the part of the old value that it reads"
        _charge(choice)

    def _goes_into_graph(self, value: Node) -> bool:
        """Whether a call runs a graph on `value`: that was traced for its strides."""
        return any(u in self.facts and self.facts[u].kind is Kind.SUBGRAPH for u in value.users)

    def _views_of(self, value: Node) -> Iterator[Node]:
        """The views of `value` that are known and still needed, each after what it is a view of."""
        for user in value.users:
            facts = self.facts.get(user)
            if facts is None or facts.kind is not Kind.VIEW or user.args[0] is not value:
                continue
            if isinstance(self.places.get(user), Place):
                if self.pending.get(user, 0) > 0:
                    yield user
                yield from self._views_of(user)

    def _copy_of(self, node: Node, known: Tensor, exact: bool) -> Place:
        """New memory for a copy of a tensor like `known`, in its strides if `exact`."""
        mode = detect_fake_mode([known])
        if exact or mode is None:
            return self.new_buffer("fresh", node, known).root
        # A clone closes gaps and parts elements that share memory; torch itself says which strides that gives.
        with mode:
            closed = known.clone()
        return self.new_buffer("fresh", node, closed).root

    def _move(self, copy: Copy, value: Node, old: Place, new: Place, chain: WriteBack) -> None:
        for user in value.users:
            if user in chain.exempt and user.args[0] is value:
                self.bases.setdefault(user, old)
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
        """Bytes that detaching copies at once."""
        own, whole = write.base.byte_count(), write.base.buffer.root.byte_count()
        if own is None or whole is None:
            return None
        if write.optional:
            return whole if write.chain.exempt and write.base.is_root else 0
        return 0 if write.whole else own

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


def _made_by(nodes: Iterable[Node]) -> int | None:
    """The bytes of the tensors that `nodes` make; None when symbolic."""
    values = [v for n in nodes for v in pytree.tree_leaves(n.meta.get("val")) if isinstance(v, Tensor)]
    extents = [(geometry_of(v)[5], v.element_size()) for v in values]
    return total(None if e.symbolic else e.elements * size for e, size in extents)


def _less(roots: Live, written: tuple[Place, ...]) -> str:
    """What to do for fewer bytes than those of `roots`, of which the write destroys the `written` ones."""
    saved, destroyed = byte_total(roots), total(p.byte_count() for p in written)
    if saved is not None and destroyed is not None and saved <= destroyed:
        return "read it before the write; reink already copies only the part that is needed"
    return "read the value before the write, or keep a copy of only the part that is needed"


def _charge(choice: Choice) -> None:
    """What is copied was not avoided."""
    if choice.avoided is not None:
        choice.avoided = max(0, choice.avoided - (choice.bytes or 0))


def _not_ours(base: Place) -> tuple[str, str]:
    """Why memory may not be written, and what to do about it."""
    name = base.buffer.name
    if base.buffer.kind == "constant":
        return f"{name} is a constant of the graph", "pass the tensor as an argument"
    reason = f"{name} is an input that does not end with this value"
    return reason, "copy only the part of the input that is written, or let the input end with the new value"
