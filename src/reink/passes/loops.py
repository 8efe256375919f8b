"""Values that a loop carries from one round to the next, written in place.

The body returns a new value for what it is given, in new memory each round. Where it could as well write what it is
given, and nobody else has the memory that the loop starts in, the value becomes a base of the call: a storage that the
body writes. All else follows: who may write it, what is saved, how it is checked.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer
from reink.core.opinfo import Kind, facts_of
from reink.core.program import InputMutation, OutputKind, Program, copied, tensors_in
from reink.core.subgraphs import FunctionalCall, SubgraphCall, arguments_of, functional_call
from reink.passes.in_place import is_alike, makes_memory
from reink.passes.placement import AS_IT_STANDS, Rules
from reink.passes.reinplace import decided

Node = torch.fx.Node
Tensor = torch.Tensor


def carry_in_place(functional: Program, rules: Rules = AS_IT_STANDS) -> None:
    """Make what loops of a functional program carry bases of the call, where that copies nothing by `rules`."""
    for inner in functional.subgraphs.values():
        carry_in_place(inner, rules)
    for node in list(functional.graph.nodes):
        known = functional_call(functional, node) if node.op == "call_function" else None
        if known is None or not known.call.carried:
            continue
        moved = _Move(functional, node, known, rules)
        while moved.chosen and (copied_ones := moved.copied_back()):
            moved.chosen = [k for k in moved.chosen if k not in copied_ones]
        if moved.chosen:
            moved.carry_out()


class _Move:
    """The carried values number `chosen` of one call become bases, after those that it has."""

    def __init__(self, functional: Program, node: Node, known: FunctionalCall, rules: Rules) -> None:
        self.functional, self.node, self.known, self.rules = functional, node, known, rules
        self.condition, self.body = (functional.subgraphs[str(g.target)] for g in known.call.graphs)
        self.chosen = list(self._candidates())
        if len(self.chosen) == len(known.call.carried):
            self.chosen.pop()  # a loop carries something

    def _candidates(self) -> Iterator[int]:
        """What nobody else has or reads, and the body makes anew in the same size, strides and dtype."""
        outputs, results = self.body.signature.outputs, self.body.results()
        if any(spec.same_as >= 0 for spec in outputs):
            return
        given_to_body = self.body.placeholders()
        for k, (operand, spec) in enumerate(zip(self.known.call.carried, outputs, strict=True)):
            given = given_to_body[k]
            value = given.meta.get("val")
            if spec.kind is not OutputKind.FRESH or not isinstance(value, Tensor) or not value.dim():
                continue
            root = Buffer("input", given.name, value, k).root
            alike = (_is_alone(operand) or self._ends_in(operand, k)) and is_alike(operand.meta["val"], root)
            if alike and isinstance(results[k], Node) and is_alike(results[k].meta["val"], root):
                yield k

    def _ends_in(self, operand: Any, k: int) -> bool:
        """Whether an operand is an input that only this call reads, and that ends with result number `k` of it."""
        if not _is_read_once(operand) or operand.op != "placeholder":
            return False
        index, results = self.functional.placeholders().index(operand), self.functional.results()
        ends = [results[m.result] for m in self.functional.signature.mutations if m.input == index]
        return any(e.target is operator.getitem and e.args == (self.node, k) for e in ends if isinstance(e, Node))

    # -- the order of what the graphs are given and return -----------------------------------------------------

    def _rest(self) -> list[int]:
        return [k for k in range(len(self.known.call.carried)) if k not in self.chosen]

    def _inputs(self) -> list[int]:
        """The old positions of a graph's inputs in their new order."""
        carried, bases = len(self.known.call.carried), len(self.known.bases)
        after = range(carried + bases, len(self.body.placeholders()))
        return [*self._rest(), *range(carried, carried + bases), *self.chosen, *after]

    def copied_back(self) -> set[int]:
        """Which of the chosen would cost a copy in each round."""
        trial = copied(self.body)
        self._rearrange_body(trial)
        plan, _ = decided(trial, self.rules)
        order = self._inputs()
        costly = [c.place for c in plan.choices if c.bytes != 0 and c.place is not None]
        inputs = [order[p.buffer.input_index] for p in costly if p.buffer.input_index >= 0]
        return set(inputs).intersection(self.chosen) or (set(self.chosen) if costly else set())

    def carry_out(self) -> None:
        """Rewrite the graphs and the call."""
        call, bases, count = self.known.call, self.known.bases, self.known.count
        rest = self._rest()
        order = [*rest, *range(count, count + len(bases)), *self.chosen]  # old numbers of the results
        self._rearrange(self.condition)
        self._rearrange_body(self.body)
        parts = SubgraphCall(call.head, call.graphs, tuple(call.carried[k] for k in rest), call.shared)
        given = (*bases, *(call.carried[k] for k in self.chosen))
        self.node.args = arguments_of(self.node.target, parts, given, in_place=False)
        self.node.meta["val"] = tuple(self.node.meta["val"][k] for k in order)
        for user in list(self.node.users):
            user.args = (self.node, order.index(user.args[1]))

    def _rearrange(self, inner: Program) -> dict[int, int]:
        """Put the inputs of a graph into their new order; the new position of each old one."""
        order, given = self._inputs(), inner.placeholders()
        first = next(n for n in inner.graph.nodes if n.op != "placeholder")
        for position in order:
            first.prepend(given[position])
        signature, now = inner.signature, {old: new for new, old in enumerate(order)}
        inner.signature = replace(
            signature,
            inputs=tuple(signature.inputs[k] for k in order),
            mutations=tuple(replace(m, input=now[m.input]) for m in signature.mutations),
        )
        return now

    def _rearrange_body(self, body: Program) -> None:
        now, results, signature = self._rearrange(body), body.results(), body.signature
        rest = self._rest()
        new = {m.input: results[m.result] for m in body.signature.mutations}
        new.update({now[k]: results[k] for k in self.chosen})
        inputs = sorted(new)
        body.output().args = ((*(results[k] for k in rest), *(new[k] for k in inputs)),)
        body.bare = False
        body.signature = replace(
            body.signature,
            outputs=tuple(signature.outputs[k] for k in rest),
            mutations=tuple(InputMutation(k, len(rest) + j) for j, k in enumerate(inputs)),
        )


def _is_read_once(operand: Any) -> bool:
    if not isinstance(operand, Node) or len(operand.users) != 1:
        return False
    return sum(a is operand for a in tensors_in(next(iter(operand.users)).args)) == 1


def _is_alone(operand: Any) -> bool:
    """Whether an operand is a new tensor of the program's own that only this call reads, and reads once."""
    if not _is_read_once(operand) or operand.op != "call_function":
        return False
    return facts_of(operand.target).kind is Kind.PURE and makes_memory(operand)
