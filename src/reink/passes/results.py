"""What the end of a program needs: new values in their inputs, and memory of their own for results.

A part of reinplace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, layout_of, view_value
from reink.core.opinfo import facts_of
from reink.core.placement_rules import window
from reink.core.plan import Action, Choice, Copy, Plan, Step
from reink.core.program import OutputKind, OutputSpec, Program, ViewStep
from reink.passes.in_place import is_alike
from reink.passes.needed import REGENERATED
from reink.passes.placement import Placement
from reink.passes.write_back import NOWHERE

Node = torch.fx.Node
Tensor = torch.Tensor

_FRESH = OutputSpec(OutputKind.FRESH)


class Results:
    """The end of one walk. `inputs` are the places of the inputs of `program`; `is_computed` says of a value that
    generated code computes it where it is written to, so that nothing is copied (`PlannedMemory.is_computed`)."""

    def __init__(
        self,
        program: Program,
        state: Placement,
        inputs: Sequence[Place | None],
        is_computed: Callable[..., bool],
    ) -> None:
        self.is_computed = is_computed
        self.signature, self.results = program.signature, program.results()
        self.state, self.places, self.inputs = state, state.places, inputs
        self.donated = [p for k in sorted(self.signature.donated_inputs) if (p := inputs[k]) is not None]

    def finish(self, plan: Plan) -> None:
        """Copy new values that were made elsewhere into their inputs, then give results memory of their own."""
        for mutation in self.signature.mutations:
            value, dest = self.results[mutation.result], self.inputs[mutation.input]
            if not isinstance(value, Node) or dest is None:
                continue
            self.state.count_reads([value])
            if self.places[value] is not dest:
                self._copy_back(plan, value, dest)
        self._settle_outputs(plan)

    def _copy_back(self, plan: Plan, value: Node, dest: Place) -> None:
        choice = self._choice(plan, value, "epilogue", dest.buffer.name, dest)
        step = Step(value, Action.COPY_INTO, place=dest, source=value)
        live = self.state.conflicts([dest], NOWHERE)
        choice.bytes = dest.byte_count()
        if live:
            self.state.save(step, self.state.without_views(live), choice)
        if self.places[value].buffer is dest.buffer:
            self.state.save(step, [(value, self.places[value])], choice)
        plan.steps.append(step)
        if choice.outcome == "in place" and self.is_computed(value, returned=self._is_returned(value)):
            choice.bytes = 0
            return
        choice.outcome, choice.avoided = "copied back", 0
        choice.reason = "the new value was made in other memory than the input's"
        choice.do = "write the input with an in-place operator or copy_() where its new value is made"

    def _is_returned(self, value: Node) -> bool:
        """Whether the program returns `value` in memory of its own, besides what it writes."""
        new_values = {m.result for m in self.signature.mutations}
        kinds = [s.kind for s in self.signature.outputs]
        return any(
            result is value and k not in new_values and (k >= len(kinds) or kinds[k] not in REGENERATED)
            for k, result in enumerate(self.results)
        )

    def _settle_outputs(self, plan: Plan) -> None:
        """Give every result that eager makes afresh memory that no other result and no input shares."""
        owned: set[Buffer] = set()
        new_values = {m.result for m in self.signature.mutations}
        for k, result in enumerate(self.results):
            spec = self.signature.outputs[k] if k < len(self.signature.outputs) else _FRESH
            place = self.places.get(result) if isinstance(result, Node) else None
            if not isinstance(place, Place) or k in new_values or spec.kind in REGENERATED:
                continue
            like = spec.like if spec.like is not None else result.meta["val"]
            fits = place.buffer.kind == "fresh" and place.stride == layout_of(like)[1]
            if spec.kind is OutputKind.OTHER or (fits and place.buffer not in owned):
                plan.results[k] = self._given_for(plan, result, owned) or place
                owned.add(plan.results[k].buffer)
            else:
                plan.results[k] = self._separate(plan, result, place, like)

    def _given_for(self, plan: Plan, result: Node, owned: set[Buffer]) -> Place | None:
        """Memory that the caller gave away and generated code computes a result into, which nothing else reads.

        Into memory that it is given it computes what it fuses; what a kernel of a library makes, it would copy.
        """
        fused = facts_of(result.target).pointwise and self.is_computed(result, returned=False)
        if not fused or len(result.users) > 1:
            return None
        for given in self.donated:
            alike = given.buffer not in owned and is_alike(result.meta["val"], given)
            if alike and not self.state.conflicts([given], NOWHERE):
                plan.steps.append(Step(result, Action.COPY_INTO, place=given, source=result))
                return given
        return None

    def _separate(self, plan: Plan, result: Node, place: Place, like: Tensor) -> Place:
        size, stride, _ = layout_of(like)
        for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
            if step == 0 and type(count) is int and count > 1:  # of an expanded tensor, each element once
                first = ViewStep("aten.slice.Tensor", (dim, 0, 1))
                place, like = window(place, first), view_value(like, first)
        choice = self._choice(plan, result, "output", result.name, place)
        choice.outcome, choice.bytes, choice.avoided = "detached", place.byte_count(), 0
        choice.reason = "eager returns memory of its own here"
        choice.do = "return the tensor itself, if its memory may be shared"
        root = self.state.new_buffer("fresh", result, like).root
        if root.size == size:
            plan.final.append(Copy(place, root, exact=True))
            return root
        whole = window(root, ViewStep("aten.expand.default", (list(size),)))
        plan.final.append(Copy(place, root, [(result, whole)], exact=True))
        return whole

    def _choice(self, plan: Plan, node: Node, operator: str, argument: str, place: Place) -> Choice:
        choice = Choice(node, operator, argument, "in place", 0, place.byte_count(), place)
        plan.choices.append(choice)
        return choice
