"""What each node of the lowered program does to memory, by the role that it plays for a pure node.

A role is a claim: a rule checks that the operator can play it and that the operands hold what they should,
then records what the memory holds afterwards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from reink.check.geometry import Geometry, same_strides, size_of
from reink.check.memory import WINDOW_OF, WINDOWS, Buffer, Fact, Impossible, Memory, Refuted, SymbolicMemory, numbers
from reink.check.operands import Operands, Reader, is_strided, named
from reink.check.results import ResultLayouts
from reink.core.aliasing import Place
from reink.core.calls import CALLS, V2_CALLS, result_count
from reink.core.opinfo import Kind, OpFacts, facts_of, hidden_writes
from reink.core.program import Program, ViewStep
from reink.core.subgraphs import FunctionalCall, functional_call, subgraph_call
from reink.core.torch_internals import OpOverload, operator_named

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

# A role that carries a pure node out, rather than preparing for it.
MAIN = frozenset({"run", "in place", "out", "write", "call"})
_WRITING = (Kind.CALL, Kind.IN_PLACE, Kind.METADATA)
# Kept at hand: to look up an operator or a kind by its path costs as much as a whole rule.
_VIEW, _VIEW_LIST, _GETITEM, _PYTHON = Kind.VIEW, Kind.VIEW_LIST, Kind.GETITEM, Kind.PYTHON
_COPY, _COPY_INTO, _AS_STRIDED = aten.copy.default, aten.copy_.default, aten.as_strided.default
_CLONE = aten.clone.default
_NEW_MEMORY = (_CLONE, aten.empty_like.default, aten.new_empty_strided.default)
_SIZE = aten.sym_size.int
_QUERIES = (_SIZE, aten.sym_stride.int, aten.sym_numel.default)


class Interpreter(Reader):
    """Runs lowered nodes over symbolic memory, for those of the pure `program`.

    `returned` lists the pure results that a lowered result is.
    """

    def __init__(self, memory: SymbolicMemory, returned: dict[Node, list[Node]], program: Program) -> None:
        super().__init__(memory)
        self.returned, self.program = returned, program
        self.parts: dict[tuple[Node, Any], Memory] = {}
        self.layouts = ResultLayouts(self.geometries.root, self.at, self.numbers_of)

    def _run(self, node: Node, pure: Node) -> None:
        """The same operator: equal operands, so an equal result, in new memory."""
        facts = facts_of(node.target)
        writes = facts.written or facts.kind in _WRITING
        if node.target is not pure.target or writes or (facts.kind is _PYTHON and node.target in CALLS):
            raise Refuted(f"{named(node)} is not {named(pure)}")
        if facts.kind in (_VIEW, _VIEW_LIST):
            raise Refuted(f"{named(node)} is a view and is said to make new memory")
        if node.target in _QUERIES:
            self._query(node, pure)
            return
        found = Operands(node)
        self._agree_arguments(pure, node, found)
        value = pure.meta.get("val")
        if not is_strided(value):
            self.scalars[node] = (pure,)
            return
        if facts.kind is _GETITEM:
            self._part_of(node, [pure], value)
            return
        self.memory.hold(pure, self.fresh(node, self.layouts.of(node, pure, found)))

    def _query(self, node: Node, pure: Node) -> None:
        """The size or stride of a tensor depends on its layout, not on what it holds."""
        value, memory = pure.args[0], self.memory_of(node.args[0], node)
        assert isinstance(value, Node)
        if node.args[1:] != pure.args[1:]:
            raise Refuted(f"{named(node)} asks for another dim than {named(pure)}")
        expected, found = self.geometries.root(value.meta["val"]), memory.geometry
        if expected.size != found.size or (node.target is not _SIZE and expected.stride != found.stride):
            raise Refuted(f"{named(node)} asks {memory}, which is not like {value.name}")
        self.scalars[node] = (pure,)

    def _part_of(self, node: Node, values: list[Node], value: Tensor) -> None:
        """One tensor of several results: the same memory each time that it is asked for."""
        key = (node.args[0], node.args[1])
        memory = self.parts.get(key)  # type: ignore[arg-type]
        if memory is None:
            memory = self.fresh(node, self.geometries.root(value))
            self.parts[key] = memory  # type: ignore[index]
        self.at[node] = memory
        for pure in values:
            self.memory.hold(pure, memory)

    def _in_place(self, node: Node, pure: Node) -> None:
        """The in-place twin: its first operand's memory then holds the result."""
        facts = facts_of(pure.target)
        if facts.in_place is None or facts.in_place is not node.target:
            raise Refuted(f"{named(node)} is not the in-place form of {named(pure)}")
        found = Operands(node)
        self._agree_arguments(pure, node, found)
        written = self.memory_of(node.args[0], node)
        for memory, _ in found.memories[1:]:
            if memory.buffer is written.buffer and (memory.geometry is not written.geometry or not facts.pointwise):
                self.refuse_overlap(node, written, memory)
        self._put(node, pure, written)

    def _out(self, node: Node, pure: Node) -> None:
        """The form that is given memory for its result, laid out as the result is."""
        facts, value = facts_of(pure.target), pure.meta["val"]
        if facts.out is None or facts.out is not node.target:
            raise Refuted(f"{named(node)} is not the out= form of {named(pure)}")
        found = Operands(node)
        self.agree_all(pure.args, node.args, found)
        self.agree(dict(pure.kwargs), {k: v for k, v in node.kwargs.items() if k != "out"}, found)
        written = self.memory_of(node.kwargs.get("out"), node)
        root = self.geometries.root(value)
        if written.geometry.dtype != value.dtype or written.geometry.bits != root.bits:
            raise Refuted(f"{named(node)} writes {value.dtype} into {written}")
        if written.geometry.size != root.size or not same_strides(root, written.geometry):
            raise Refuted(f"{named(node)} writes a result with strides {list(root.stride)} into {written}")
        for memory, _ in found.memories:
            self.refuse_overlap(node, written, memory)
        self._put(node, pure, written)

    def _agree_arguments(self, pure: Node, node: Node, found: Operands) -> None:
        self.agree_all(pure.args, node.args, found)
        kwargs, given = pure.kwargs, node.kwargs
        if kwargs or given:
            self.agree(kwargs, given, found)

    def _put(self, node: Node, kept: Node, written: Memory) -> None:
        """`node` writes the value `kept` over all of `written`, cast to its dtype."""
        value, geometry = kept.meta["val"], written.geometry
        if size_of(value) != geometry.size:
            raise Impossible(f"{named(node)} writes {list(value.size())} into {written}")
        if geometry.overlaps_itself:
            raise Refuted(f"{named(node)} writes {written}, whose elements share memory")
        self.memory.write(written, node)
        self.memory.hold(kept, written, value.dtype != geometry.dtype)
        self.at[node] = written

    def _write(self, node: Node, pure: Node) -> None:
        """`copy_` of a scatter's or a copy's source into the window."""
        if node.target is not _COPY_INTO or (id(pure.target) not in WINDOW_OF and pure.target is not _COPY):
            raise Refuted(f"{named(node)} is no way to carry out {named(pure)}")
        found = Operands(node)
        source = pure.args[1]
        self.agree(source, node.args[1], found)
        written = self.memory_of(node.args[0], node)
        for memory, _ in found.memories:
            if memory.geometry is not written.geometry:
                self.refuse_overlap(node, written, memory)
        whole = pure.target is _COPY
        if whole and written.geometry.dtype != pure.meta["val"].dtype:
            raise Refuted(f"{named(node)} writes {pure.meta['val'].dtype} into {written}")
        kept: Any = pure if whole else source
        self._put(node, kept, written)

    def _call(self, node: Node, pure: Node) -> None:
        """A mutable operator on the memory itself."""
        known = functional_call(self.program, pure)
        if known is not None:
            self._call_subgraph(node, pure, known)
            return
        wrapped, is_v2 = pure.args, pure.target in V2_CALLS
        op = wrapped[0]
        if (not is_v2 and pure.target not in CALLS) or node.target is not op or not isinstance(op, OpOverload):
            raise Refuted(f"{named(node)} is not the operator that {named(pure)} wraps")
        bases: Any = wrapped[3] if is_v2 else ()
        found = Operands(node, bases)
        facts = facts_of(op)
        written = self._written_operands(node, pure, facts, found)
        self._refuse_shared_operands(node, written, found)
        for k in written:
            self.memory.write(found.memories[k][0], node)
        count = len(facts.result_aliases)
        asked = _asked(pure)
        if is_v2:
            homes = found.homes
        else:
            homes = {k: [found.memories[w][0]] for k, w in enumerate(written)}
        for k, memories in homes.items():
            for value in asked.get(count + k, ()):
                for memory in memories:
                    self.memory.hold(value, memory)
        if count == 1 and 0 in asked:
            self._call_result(node, asked[0])

    def _call_subgraph(self, node: Node, pure: Node, known: FunctionalCall) -> None:
        """A call that runs graphs of its own. Each is proven by itself, for operands laid out as in the pure call."""
        given, expected = subgraph_call(node), known.call
        alike = node.target is pure.target and not node.kwargs
        if given is None or not alike or len(given.carried) != len(expected.carried):
            raise Refuted(f"{named(node)} is not {named(pure)}")
        self.agree_all(expected.head, given.head, Operands(node))
        if [g.target for g in given.graphs] != [g.target for g in expected.graphs]:
            raise Refuted(f"{named(node)} runs other graphs than {named(pure)}")
        found, shared = Operands(node), given.shared
        self.agree_all(expected.carried, given.carried, found)
        before = len(found.memories)
        self.agree_all(known.bases, shared[: len(known.bases)], found)
        written = list(range(before, len(found.memories)))
        self.agree_all(expected.shared, shared[len(known.bases) :], found)
        for (memory, _), value in zip(found.memories, found.values, strict=True):
            if value is not None and not same_strides(self.geometries.root(value.meta["val"]), memory.geometry):
                raise Refuted(f"{named(node)} is given {value.name} with strides {memory.geometry.stride}")
        self._refuse_shared_operands(node, written, found)
        asked = _asked(pure)
        for k, memory in enumerate(found.memories[w][0] for w in written):
            self.memory.write(memory, node)
            for value in asked.get(known.count + k, ()):
                self.memory.hold(value, memory)

    def _written_operands(self, node: Node, pure: Node, facts: OpFacts, found: Operands) -> list[int]:
        """Check every operand; the numbers of those that the call writes."""
        _, args, kwargs = pure.args[:3]
        given, given_kwargs = node.args, node.kwargs
        assert isinstance(args, (list, tuple)) and isinstance(kwargs, dict)
        if len(args) != len(given) or list(kwargs) != list(given_kwargs):
            raise Refuted(f"{named(node)} has not the arguments of {named(pure)}")
        writes = hidden_writes(facts, tuple(args), kwargs)
        written: list[int] = []
        for position, parameter in enumerate(facts.parameters):
            before = len(found.memories)
            if position < len(args):
                self.agree(args[position], given[position], found)
            elif parameter.name in kwargs:
                self.agree(kwargs[parameter.name], given_kwargs[parameter.name], found)
            if position in writes:
                written.extend(range(before, len(found.memories)))
        return written

    def _refuse_shared_operands(self, node: Node, written: list[int], found: Operands) -> None:
        """A written operand may meet another only where both are views of one base."""
        if len({id(m.buffer) for m, _ in found.memories}) == len(found.memories):
            return
        sharing: dict[int, list[int]] = {}
        for k, (memory, _) in enumerate(found.memories):
            sharing.setdefault(id(memory.buffer), []).append(k)
        for k in written:
            memory, base = found.memories[k]
            for other in sharing[id(memory.buffer)]:
                if other != k and (base < 0 or found.memories[other][1] != base):
                    self.refuse_overlap(node, memory, found.memories[other][0])

    def _call_result(self, node: Node, values: list[Node]) -> None:
        value = values[0].meta.get("val")
        if not is_strided(value):
            self.scalars[node] = tuple(values)
            return
        memory = self.fresh(node, self.geometries.root(value))
        for pure in values:
            self.memory.hold(pure, memory)

    def _result(self, node: Node, pure: Node) -> None:
        """One of several results of a mutable operator."""
        call = node.args[0]
        if node.target is not operator.getitem or not isinstance(call, Node):
            raise Refuted(f"{named(node)} is no result of {named(pure)}")
        if call.meta.get("reink_of") is not pure or call.meta.get("reink_role") != "call":
            raise Refuted(f"{named(node)} is no result of {named(pure)}")
        values = _asked(pure).get(node.args[1], [])
        known = functional_call(self.program, pure)
        count = known.count if known is not None else result_count(pure.args[0])
        if not values or node.args[1] >= count:  # type: ignore[operator]
            raise Refuted(f"{named(node)} is a result that nobody asked for")
        value = values[0].meta.get("val")
        if is_strided(value):
            self._part_of(node, values, value)
        else:
            self.scalars[node] = tuple(values)

    def _view(self, node: Node, pure: Node | None) -> None:
        """A view operator: another way to look at the same memory."""
        target = node.target
        kind = facts_of(target).kind
        if kind is _GETITEM:
            self.at[node] = self.lists[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if kind is not _VIEW and kind is not _VIEW_LIST:
            raise Refuted(f"{named(node)} is not a view")
        args = node.args
        memory, args = self.memory_of(args[0], node), self.numbers_of(args[1:])
        if node.kwargs or (target is _AS_STRIDED and len(args) > 2 and args[2] is not None):
            raise Refuted(f"{named(node)} counts from the start of the storage, which is not known")
        place = self.geometries.apply(target, memory.geometry, args)  # type: ignore[arg-type]
        if type(place) is Geometry:
            self.at[node] = Memory(memory.buffer, place)
        elif place is None:
            raise Impossible(f"{named(node)} cannot be a view of {memory}")
        else:
            self.lists[node] = [Memory(memory.buffer, p) for p in place]

    def _copy(self, node: Node, pure: Node | None) -> None:
        """A copy that reinplace added: the new memory holds what the old one does."""
        source = self.memory_of(node.args[0], node)
        if node.target is _COPY_INTO:
            self._copy_back(node, pure)
            return
        if node.target not in _NEW_MEMORY or node.kwargs:
            raise Refuted(f"{named(node)} is not a copy")
        place = self.geometries.apply(node.target, source.geometry, self.numbers_of(node.args[1:]))
        if place is None:
            raise Refuted(f"{named(node)} cannot copy {source}")
        memory = self.fresh(node, place)
        if node.target is _CLONE:
            self._carry(node, pure, source, memory)

    def _copy_back(self, node: Node, pure: Node | None) -> None:
        """`copy_` of one tensor into another of the same size and dtype."""
        if node.target is not _COPY_INTO:
            raise Refuted(f"{named(node)} is not a copy")
        written, source = self.memory_of(node.args[0], node), self.memory_of(node.args[1], node)
        if written.geometry.size != source.geometry.size or written.geometry.dtype != source.geometry.dtype:
            raise Refuted(f"{named(node)} copies {source} into {written}")
        if written.geometry.overlaps_itself:
            raise Refuted(f"{named(node)} writes {written}, whose elements share memory")
        self.refuse_overlap(node, written, source)
        self.memory.write(written, node)
        self._carry(node, pure, source, written)

    def _carry(self, node: Node, pure: Node | None, source: Memory, target: Memory) -> None:
        """Record at `target` the values that `source` holds. The plan's list is a hint, each is checked."""
        wanted = [f.value for f in source.buffer.facts if f.geometry is source.geometry]
        copy = node.meta.get("reink_copy")
        wanted += [value for value, _ in copy.moved] if copy is not None else []
        wanted += [pure, *pure.all_input_nodes] if pure is not None else []
        wanted += self.returned.get(node, ())
        wanted += self.returned.get(node.args[0], ())  # type: ignore[arg-type]
        for value in dict.fromkeys(wanted):
            if self.memory.holds(value, source):
                self.memory.hold(value, target)
        if source.geometry is target.geometry:  # what was partly overwritten is so in the copy
            for fact in [f for f in source.buffer.facts if f.geometry is source.geometry and f.damage]:
                if not self.memory.holds(fact.value, target):
                    self.memory.hold(fact.value, target, fact.converted, damage=fact.damage)
        for value, place in copy.moved if copy is not None else ():
            self._carry_part(value, place, source, target)

    def _carry_part(self, value: Node, hint: Place, source: Memory, target: Memory) -> None:
        """Record `value` at the views that lead to `hint` in `target` if it is at the same views of `source`."""
        steps: list[ViewStep] = []
        while hint.parent is not None and hint.step is not None:
            steps.append(hint.step)
            hint = hint.parent
        before: Any = source.geometry
        after: Any = target.geometry
        for step in reversed(steps):
            if type(before) is not Geometry or type(after) is not Geometry or step.op.endswith("]"):
                return  # a part of a list is left unproven
            view, args = operator_named(step.op), self.numbers_of(step.args)
            before, after = (self.geometries.apply(view, g, args) for g in (before, after))
        if type(before) is not Geometry or type(after) is not Geometry:
            return
        if steps and self.memory.holds(value, Memory(source.buffer, before)):
            self.memory.hold(value, Memory(target.buffer, after))

    def _size(self, node: Node, pure: Node | None) -> None:
        """The size or stride of a tensor, asked at run time."""
        if node.target not in _QUERIES or len(node.args) != 2:
            raise Refuted(f"{named(node)} carries out nothing of the pure program")
        memory, dim = self.memory_of(node.args[0], node), node.args[1]
        assert isinstance(dim, int)
        numbers = memory.geometry.size if node.target is _SIZE else memory.geometry.stride
        self.sizes[node] = numbers[dim]

    # -- pure nodes without code -------------------------------------------------------------------------

    def prove_scatter(self, pure: Node) -> None:
        """A scatter holds where its base is with the update in the window, but for what was overwritten."""
        base, update = pure.args[:2]
        memory = self.memory
        assert isinstance(base, Node) and isinstance(update, Node)
        view, args, note = WINDOW_OF[id(pure.target)], numbers(pure, 2), ""
        for fact, place in memory.located(base):
            part = None if fact.converted else memory.window(base, view, args, place)
            if part is None:
                continue
            if place.overlaps_itself:
                note = f"the elements of {base.name} share memory"
                continue
            inner = self._fact_at(update, fact.buffer, part)
            if inner is None:
                note = f"{update.name} is not in the window of {pure.name}, {fact.buffer.name} {part}"
                continue
            spoiled = memory.damage_outside(fact, place, part) if fact.damage else []
            if inner.damage:
                spoiled += memory.damage_within(inner, part)
            memory.hold(pure, Memory(fact.buffer, place), damage=spoiled)
        self._prove_full_scatter(pure, base, update, args)
        if pure not in memory.where:
            memory.notes[pure] = note or f"{base.name} is nowhere"

    def _prove_full_scatter(self, pure: Node, base: Node, update: Node, args: tuple[Any, ...]) -> None:
        """A scatter whose window is all of its base is the update itself."""
        view, memory, value = WINDOW_OF[id(pure.target)], self.memory, pure.meta["val"]
        size = size_of(value)
        if size_of(update.meta["val"]) != size:
            return
        for fact, place in memory.located(update):
            alike = place.size == size and place.dtype == value.dtype and not fact.converted
            if alike and memory.window(base, view, args, place) is place:
                memory.hold(pure, Memory(fact.buffer, place), damage=memory.damage_within(fact, place))

    def _fact_at(self, value: Node, buffer: Buffer, geometry: Geometry) -> Fact | None:
        """The fact that puts `value`, or its conversion to the dtype of the memory, exactly there."""
        for fact in self.memory.where.get(value, ()):
            if fact.geometry is geometry and fact.buffer is buffer:
                return fact
        for fact, place in self.memory.located(value):
            if place is geometry and fact.buffer is buffer:
                return fact
        return None

    def prove_copy(self, pure: Node) -> None:
        """A copy holds wherever its source is in the size and dtype of the result."""
        source, value = pure.args[1], pure.meta["val"]
        size = size_of(value)
        if not isinstance(source, Node):
            return
        for fact, place in self.memory.located(source):
            if place.size == size and place.dtype == value.dtype:
                spoiled = self.memory.damage_within(fact, place)
                self.memory.hold(pure, Memory(fact.buffer, place), damage=spoiled)
        if pure not in self.memory.where:
            self.memory.notes[pure] = f"{source.name} is nowhere in the size and dtype of {pure.name}"


def _asked(call: Node) -> dict[Any, list[Node]]:
    """The nodes that take a result of a pure call, by its number."""
    found: dict[Any, list[Node]] = {}
    for user in call.users:
        if user.target is operator.getitem:
            found.setdefault(user.args[1], []).append(user)
    return found


# What a node does by its role. Raises Refuted if it does not carry that out.
RULES: dict[str, Callable[[Interpreter, Node, Any], None]] = {
    "run": Interpreter._run,
    "in place": Interpreter._in_place,
    "out": Interpreter._out,
    "write": Interpreter._write,
    "call": Interpreter._call,
    "result": Interpreter._result,
    "view": Interpreter._view,
    "copy": Interpreter._copy,
    "epilogue": Interpreter._copy_back,
    "": Interpreter._size,
}

# How pure nodes without code are proven. By identity, because hashing an operator is slow.
PROOFS: dict[int, Callable[[Interpreter, Node], None]] = {
    **{id(scatter): Interpreter.prove_scatter for scatter in WINDOWS},
    id(_COPY): Interpreter.prove_copy,
}
