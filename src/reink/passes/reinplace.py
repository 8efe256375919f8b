"""Giving every write its old home back where that is provably safe.

One walk over the pure graph in a good order. For each write it asks which values live where it would write and
are still needed. None: the write goes in place. Otherwise `placement` resolves the conflict. Nothing is
rewritten here: the result is a `Plan`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, list_values, may_overlap
from reink.core.calls import (
    V2_CALLS,
    auto_functionalized,
    base_views,
    call_of,
    called,
    operand_nodes,
    result_nodes,
    written_arguments,
    written_views,
)
from reink.core.opinfo import WRITES_IN_PART, Kind, OpFacts, facts_of
from reink.core.placement_rules import base_view_place, scatter_window
from reink.core.plan import Action, Choice, Copy, Plan, Step
from reink.core.program import Form, Program, ViewStep
from reink.core.subgraphs import FunctionalCall, functional_call
from reink.passes.by_value import with_calls_taken_apart
from reink.passes.in_place import fits, is_alike, makes_memory, reads_itself, shares_elements
from reink.passes.needed import Needed
from reink.passes.optimum import Conflicts, cheapest_plan
from reink.passes.order import in_capture_order
from reink.passes.out_forms import destination
from reink.passes.placement import AS_IT_STANDS, LATER, Placement, Rules, Write
from reink.passes.planned import PlannedMemory
from reink.passes.results import Results
from reink.passes.waiting import may_wait, seen_past
from reink.passes.write_back import NOWHERE, view_place

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

# Looked up once: reading a member of an Enum, or an operator of torch.ops, runs Python code.
_COPY = aten.copy.default
_VIEW, _VIEW_LIST, _GETITEM, _PURE, _SUBGRAPH = Kind.VIEW, Kind.VIEW_LIST, Kind.GETITEM, Kind.PURE, Kind.SUBGRAPH
_NOTHING, _RUN, _IN_PLACE, _CALL = Action.NOTHING, Action.RUN, Action.IN_PLACE, Action.CALL


def reinplace(program: Program, rules: Rules = AS_IT_STANDS) -> Plan:
    """Decide for every write of a functional `program` whether it goes in place, and what is copied if not."""
    assert program.form is Form.FUNCTIONAL

    def decide() -> Plan:
        if rules.dice is not None:
            return decided(program, rules)[0]
        return cheapest_plan(
            lambda elsewhere, apart: decided(program, replace(rules, elsewhere=elsewhere, apart=apart)),
            len(program.graph.nodes),
        )

    plan = with_calls_taken_apart(decide, rules.dice)
    plan.subgraphs = {name: reinplace(inner, rules) for name, inner in program.subgraphs.items()}
    return plan


def decided(program: Program, rules: Rules) -> tuple[Plan, Conflicts]:
    """One plan for a functional `program` as it stands, its inner graphs left out, and what stood in the way."""
    walk = _Reinplacer(program, rules)
    return walk.run(), walk.state.met


class _Reinplacer:
    def __init__(self, program: Program, rules: Rules) -> None:
        self.program, self.reorder, self.dice = program, rules.reorder, rules.dice
        self.out = rules.out and rules.generated is None
        self.needed = needed = Needed(program)
        self.facts, self.inputs_of = needed.facts, needed.inputs
        self.state = Placement(program, needed, self._visit, rules)
        self.places, self.done = self.state.places, self.state.done
        self.steps: list[Step] = []
        self.choices: list[Choice] = []
        self.inputs: list[Place | None] = []
        # operators that could have written in place, and were made elsewhere for a late reader
        self.made_elsewhere: set[Any] = set()
        self.donated = program.signature.donated_inputs
        # memory that nobody else knows, whatever the schema of a custom operator may keep to itself
        self.own: set[Buffer] = set()
        self.planned = PlannedMemory(rules.generated, self.facts, self.places)
        # writes may wait until something needs their value, so that readers of the old one come first; some do
        self.waits, self.late = True, False

    # -- the walk --------------------------------------------------------------------------------

    def run(self) -> Plan:
        nodes = self.needed.nodes
        body = [n for n in nodes if n.op == "call_function"]
        if self.reorder and self.dice is None:
            body = in_capture_order(body)
        for node in nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "get_attr":
                self._source(node, "constant")
        for node in body:
            if node not in self.done:
                self._come_to(node)
        self.waits = False
        for node in body:
            if node not in self.done:
                self._visit(node)
        constants = {n: p for n in nodes if n.op == "get_attr" and isinstance(p := self.places.get(n), Place)}
        plan = Plan(self.program, self.steps, self.inputs, constants, self.choices)
        Results(self.program, self.state, self.inputs, self.planned.is_computed).finish(plan)
        return plan

    def _placeholder(self, node: Node) -> None:
        given = len(self.inputs) in self.donated
        self._source(node, "fresh" if given else "input", len(self.inputs))
        place = self.places.get(node)
        if given and isinstance(place, Place):
            self.own.add(place.buffer)
        self.inputs.append(place if isinstance(place, Place) else None)

    def _source(self, node: Node, kind: str, index: int = -1) -> None:
        value = node.meta.get("val")
        self.done.add(node)
        if isinstance(value, Tensor):
            self._define(node, self.state.new_buffer(kind, node, value, index).root)

    def _define(self, node: Node, place: Place) -> None:
        """`node` lives in `place`; its views are known at once, since a view costs nothing and reads nothing."""
        self.places[node] = place
        self.state.residents.add(node, place)
        self.state.met.define(node, place.buffer)
        if node not in self.needed.viewed:
            return
        done, facts = self.done, self.facts
        for user in node.users:
            if user in done or facts[user].kind is not _VIEW or user.args[0] is not node:
                continue
            if all(i in done for i in self.inputs_of[user] if i is not node):
                self._visit(user)

    def _come_to(self, node: Node) -> None:
        """Carry `node` out, which is next, and before it the writes that it depends on and that were left for later.

        What only carries on the value of such a write waits along with it.
        """
        if self.late and any(i not in self.done for i in self.inputs_of[node]):
            seen = seen_past(node, self.state)
            if seen is not None:
                self.done.add(node)
                self.state.count_reads(self.inputs_of[node])
                self._nothing(node, seen)
                return
            if may_wait(node, self.facts[node]):
                return
            self._catch_up(node)
        self._visit(node)

    def _catch_up(self, node: Node) -> None:
        """Carry out what `node` depends on and was left for later."""
        waits, self.waits = self.waits, False
        stack = [(i, False) for i in self.inputs_of[node]]
        while stack:
            current, ready = stack.pop()
            if current in self.done:
                continue
            if ready:
                self._visit(current)
                continue
            stack.append((current, True))
            stack.extend((i, False) for i in self.inputs_of[current])
        self.waits = waits

    def _visit(self, node: Node) -> None:
        """Carry `node` out, or leave it for later."""
        facts = self.facts[node]
        self.done.add(node)
        if not facts.looks_at_shape:
            self.state.count_reads(self.inputs_of[node])
        kind, target = facts.kind, node.target
        if kind is _VIEW:
            self._view(node, facts)
        elif facts.window:
            self._scatter(node)
        elif target is _COPY:
            self._copy(node)
        elif kind is _PURE:
            if not self._is_computed_there(node, facts) and not self._goes_in_place(node, facts):
                self._run(node)
        else:
            self._visit_special(node, kind)

    def _visit_special(self, node: Node, kind: Kind) -> None:
        """Carry out a call with several results, or of something that is no operator."""
        if kind is _VIEW_LIST:
            self._view_list(node)
        elif kind is _GETITEM and isinstance(self.places.get(node.args[0]), tuple):  # type: ignore[arg-type]
            self._nothing(node, self.places[node.args[0]][node.args[1]])  # type: ignore[index]
        elif node.target in V2_CALLS:
            self._call_v2(node)
        elif node.target is auto_functionalized:
            self._call_v1(node)
        elif kind is _SUBGRAPH and (known := functional_call(self.program, node)) is not None:
            self._call_subgraph(node, known)
        else:
            self._run(node)

    # -- values that are not writes --------------------------------------------------------------

    def _view(self, node: Node, facts: OpFacts) -> None:
        parent = self.places.get(node.args[0])  # type: ignore[arg-type]
        if isinstance(parent, Place):
            self._nothing(node, view_place(parent, node, facts))
        else:
            self._run(node)

    def _run(self, node: Node, before: tuple[Copy, ...] = ()) -> None:
        step = Step(node, _RUN, before=before)
        self.steps.append(step)
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            root = self.state.new_buffer("fresh", node, value).root
            self.planned.made(root.buffer, node)
            if makes_memory(node):
                self.own.add(root.buffer)
            self._defined(step, node, root)

    def _nothing(self, node: Node, place: Place) -> None:
        self.steps.append(Step(node, _NOTHING, defines=((node, place),)))
        self._define(node, place)

    def _defined(self, step: Step, node: Node, place: Place) -> None:
        step.defines = (*step.defines, (node, place))
        self._define(node, place)

    def _view_list(self, node: Node) -> None:
        """A list of views stays a call; each part is a place that lower takes out of the list."""
        parent = self.places[node.args[0]]  # type: ignore[index]
        before, parts, name = node.args[0].meta["val"], node.meta["val"], self.facts[node].name  # type: ignore[union-attr]
        if parent.lies_otherwise(before):
            before, parts = parent.value, list_values(parent.value, ViewStep(name, tuple(node.args[1:])))
        steps = [ViewStep(f"{name}[{k}]", tuple(node.args[1:])) for k in range(len(parts))]
        self.places[node] = tuple(parent.child(s, before, v) for s, v in zip(steps, parts, strict=True))
        self.steps.append(Step(node, _NOTHING))
        for user in list(node.users):
            if user not in self.done:
                self._visit(user)

    # -- writes ----------------------------------------------------------------------------------

    def _scatter(self, node: Node) -> None:
        written, source = node.args[:2]
        base = self.state.bases.get(node) or self.places[written]  # type: ignore[index]
        if self.planned.holds(base.buffer):
            return self._run(node)
        if not shares_elements(written):
            return self._write_into(node, base, scatter_window(base, node), source)
        choice = self._choice(node, "aten.copy_.default", "self", base)
        self._run(node)
        choice.outcome, choice.bytes, choice.avoided = "detached", self.places[node].byte_count(), 0
        choice.reason = f"elements of {base.buffer.name} share memory, and not all of them are written"
        choice.do = "write a tensor that is not expanded, or only the part that is needed"

    def _copy(self, node: Node) -> None:
        written, source = node.args[:2]
        base = self.state.bases.get(node) or self.places[written]  # type: ignore[index]
        if self.planned.holds(base.buffer):
            self._run(node)
        else:
            self._write_into(node, base, base, source)

    def _write_into(self, node: Node, base: Place, window: Place, source: Any) -> None:
        """Write the value of `source` into `window` of `base`: nothing to do, in place, or into a copy of `base`."""
        update = self.places.get(source)
        if update is window:
            self._nothing(node, base)
            return
        step = Step(node, Action.COPY_INTO, None, source)
        chain = self.state.write_backs.follow(node, base)
        choice = Choice(node, "aten.copy_.default", "self", "in place", 0, base.byte_count(), base)
        clash = update is not None and may_overlap(update, window)
        write = Write(node, step, choice, base, [window], chain, base is window, clash, may_wait=self.waits)
        home = self.state.settle(write)
        assert home is not None
        if home is LATER:
            self.late = True
            self.state.take_back(node)
            return
        if "reink_joins" not in node.meta or choice.outcome != "in place":
            self.choices.append(choice)
        if write.clash and home is base and update is not None:
            self.state.save(step, [(source, update)], write.choice, chain)
        step.place = window if home is base else _window(home, node)
        self._count_lost_twin(node, source, window, write.choice)
        self._carry_out(step, node, home)

    def _count_lost_twin(self, node: Node, update: Any, window: Place, choice: Choice) -> None:
        """What ran out of place although the user wrote in place costs a copy here that the user did not write."""
        call = call_of(update)
        written = update.meta.get("reink_write") if isinstance(update, Node) else None
        asked = node.meta.get("reink_carry", called(call).name if call is not None else written)
        if (
            asked is None
            or asked == "aten.copy_.default"
            or (isinstance(update, Node) and self.planned.is_computed(update))
        ):
            return
        count = window.byte_count()
        choice.bytes = None if count is None or choice.bytes is None else choice.bytes + count
        if choice.outcome not in ("in place", "hoisted"):
            return
        choice.outcome, choice.reason = "copied back", f"{asked} could not run in place"
        choice.do = "give the operator operands that do not overlap what it writes, of the same dtype"
        if call is not None or update in self.made_elsewhere:
            choice.reason, choice.do = (
                f"{asked} wrote a copy",
                "change what made it write a copy: it has a line of its own",
            )

    def _carry_out(self, step: Step, node: Node, place: Place) -> None:
        self.steps.append(step)
        self._defined(step, node, place)

    def _is_computed_there(self, node: Node, facts: OpFacts) -> bool:
        """Carry out an operator by its form with ``out``, on memory that its result is copied into, if that is free."""
        found = destination(node, facts, self.state) if self.out and facts.out is not None else None
        if found is None:
            return False
        carrier, place, chain = found
        self.state.note_whole((node, 0), place, chain)
        if "reink_joins" not in carrier.meta:
            self.choices.append(Choice(carrier, "aten.copy_.default", "self", "in place", 0, place.byte_count(), place))
        self._carry_out(Step(node, Action.OUT, place), node, place)
        return True

    def _goes_in_place(self, node: Node, facts: OpFacts) -> bool:
        """Carry out an operator by its in-place twin on the memory of its first operand, if that is safe."""
        if facts.in_place is None or (self.planned and facts.name not in WRITES_IN_PART):
            return False
        operand = node.args[0] if node.args else None
        place = self.places.get(operand) if isinstance(operand, Node) else None
        value = node.meta.get("val")
        if not isinstance(place, Place) or not isinstance(value, Tensor) or self.state.hoisting:
            return False
        chain, asked = self.state.write_backs.follow(node, place), "reink_write" in node.meta
        if self.planned.holds(place.buffer) and (chain.exempt or not place.is_root):
            return False  # the scatter stays pure
        if not (asked or chain.exempt or chain.homes):
            return self._reuses(node, value, place, facts)
        if not fits(node, value, place, chain) or reads_itself(node, place, facts, self.inputs_of[node], self.places):
            return False
        step = Step(node, _IN_PLACE, place)
        choice = Choice(node, facts_of(facts.in_place).name, "self", "in place", 0, place.byte_count(), place)
        key = (node, 0)
        free = key not in self.state.elsewhere and self.state.is_free(place, [place], chain)
        if free:
            self.state.note_whole(key, place, chain)
        elif self.state.settle(Write(node, step, choice, place, [place], chain, optional=True)) is None:
            if asked:
                self.choices.append(choice)
            self.made_elsewhere.add(node)
            self._run(node, step.before)
            return True
        self.choices.append(choice)
        self._carry_out(step, node, place)
        return True

    def _reuses(self, node: Node, value: Tensor, place: Place, facts: OpFacts) -> bool:
        """Carry out an operator, which no user asked to write, in own memory, if not empty, that it reads last."""
        mine = place.buffer in self.own and place.is_root and is_alike(value, place)
        if not mine or place.extent.elements == 0 or not self.state.is_free(place, [place], NOWHERE):
            return False
        if reads_itself(node, place, facts, self.inputs_of[node], self.places):
            return False
        self._carry_out(Step(node, _IN_PLACE, place), node, place)
        return True

    def _call_v2(self, node: Node) -> None:
        op, args, kwargs, bases = node.args
        known = node.meta.get("reink_views") or {} if not self.reorder else {}
        places: list[Place] = [self.places[b] for b in bases]  # type: ignore[union-attr, index]
        views = [
            (v, base_view_place(places[v.base], v, known.get(k))) for k, v in enumerate(base_views((args, kwargs)))
        ]
        names, written = written_views(op, args, kwargs)
        step, results, count = Step(node, _CALL), result_nodes(node), len(facts_of(op).result_aliases)
        plain = dict.fromkeys(operand_nodes(args, kwargs))
        homes: list[Place] = []
        for k, base in enumerate(places):
            targets: list[Place] = []
            others: list[Place] = []
            for view, place in views:
                if view.base != k:
                    others.append(place)
                elif id(view) in written:
                    targets.append(place)
            name, result = ", ".join(names.get(k, ())), results.get(count + k)
            homes.append(self._settle_operand(node, k, step, base, targets, others, result, name, plain))
        step.places = tuple(homes)
        step.views = tuple(
            p if homes[v.base] is places[v.base] else base_view_place(homes[v.base], v, known.get(k))
            for k, (v, p) in enumerate(views)
        )
        self._finish_call(step, node, results, count)

    def _call_v1(self, node: Node) -> None:
        op, args, kwargs = node.args
        named = written_arguments(op, args, kwargs)  # type: ignore[arg-type]
        self._call_on_values(node, named, operand_nodes(args, kwargs), len(facts_of(op).result_aliases))

    def _call_subgraph(self, node: Node, known: FunctionalCall) -> None:
        """A call that runs graphs of its own: it writes its bases where they live."""
        named = [(self.places[b].buffer.name, b) for b in known.bases]
        operands = operand_nodes((known.call.head, known.call.operands, known.bases), None)
        self._call_on_values(node, named, operands, known.count)

    def _call_on_values(self, node: Node, named: list[tuple[str, Any]], operands: list[Node], count: int) -> None:
        """A call that is given written values as they are, and returns their new values from number `count` on."""
        step, results = Step(node, _CALL), result_nodes(node)
        homes: list[Place] = []
        taken: list[Place] = []
        plain = dict.fromkeys(operands)
        for _, argument in named:
            plain.pop(argument, None)
        for k, (name, argument) in enumerate(named):
            place = self.places[argument]
            repeated = [place] if operands.count(argument) > 1 else []
            others, result = taken + repeated, results.get(count + k)
            home = self._settle_operand(node, k, step, place, [place], others, result, name, plain)
            if home is place:
                taken.append(place)
            homes.append(home)
        step.places = tuple(homes)
        self._finish_call(step, node, results, count)

    def _settle_operand(
        self,
        node: Node,
        number: int,
        step: Step,
        base: Place,
        targets: list[Place],
        others: list[Place],
        result: Node | None,
        name: str,
        plain: Iterable[Node],
    ) -> Place:
        """Where a call writes base (v2) or argument (v1) `number`; `others` are places that it must not disturb.

        `plain` are the operands that the call must see as they were before it, also where they lie where it writes.
        """
        chain = self.state.write_backs.follow(result, base) if result is not None else NOWHERE
        choice = self._choice(node, called(node).name, name, base)
        clash = bool(others) and any(may_overlap(o, t) for o in others for t in targets)
        home: Place | None = base
        if clash or (node, number) in self.state.elsewhere or not self.state.is_free(base, targets, chain):
            home = self.state.settle(Write(node, step, choice, base, targets, chain, clash=clash, number=number))
        assert home is not None
        if home is base:
            for used in plain:
                place = self.places.get(used)
                if type(place) is not Place or place.buffer is not base.buffer:
                    continue
                if any(may_overlap(place, t) for t in targets):
                    self.state.save(step, [(used, place)], choice, chain)
        return home

    def _finish_call(self, step: Step, node: Node, results: dict[int, Node], count: int) -> None:
        self.steps.append(step)
        for index, result in results.items():
            if result in self.done:  # nobody needs it
                continue
            self.done.add(result)
            self.state.count_reads((node,))
            value = result.meta.get("val")
            if index >= count:
                self._defined(step, result, step.places[index - count])
            elif isinstance(value, Tensor):
                self._defined(step, result, self.state.new_buffer("fresh", result, value).root)
            else:
                step.defines = (*step.defines, (result, None))

    def _choice(self, node: Node, operator: str, argument: str, place: Place) -> Choice:
        choice = Choice(node, operator, argument, "in place", 0, place.byte_count(), place)
        self.choices.append(choice)
        return choice


def _window(base: Place, node: Node) -> Place:
    return scatter_window(base, node) if facts_of(node.target).window else base
