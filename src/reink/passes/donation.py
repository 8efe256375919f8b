"""Which of the inputs that the caller gives away are used, and why the others are not."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from torch import Tensor

from reink.core.aliasing import Place, geometry_of
from reink.core.opinfo import facts_of
from reink.core.plan import Action, Plan, Step
from reink.core.program import MutationSignature, OutputKind, Program, source_of
from reink.report import Donation

_WRITING = (Action.IN_PLACE, Action.COPY_INTO, Action.CALL)


def keep_usable(functional: Program, donate: Collection[str]) -> list[Donation]:
    """Leave in the signature of a functional program the donated inputs whose memory the graph may take for its own.

    Returns the others, each with the reason.
    """
    signature = functional.signature
    kept, refused = (
        [],
        [
            Donation(name, reason="it shares memory with another input, or the program does not read it")
            for name in donate
            if name not in {d.argument for d in signature.donated}
        ],
    )
    placeholders = functional.placeholders()
    for donated in signature.donated:
        node = placeholders[donated.input]
        if not isinstance(node.meta.get("val"), Tensor):  # a size of one that is
            continue
        reason = _why_not(signature, donated.input, node.meta["val"])
        if reason:
            refused.append(Donation(node.name, reason=reason))
        else:
            kept.append(donated)
    functional.signature = replace(signature, donated=tuple(kept))
    return refused


def _why_not(signature: MutationSignature, index: int, value: Tensor) -> str:
    """Why the graph may not take the memory of input number `index` for its own; nothing if it may."""
    if index in signature.mutated_inputs or index in signature.reshaped:
        return "the program writes it, and it ends with its new value"
    if any(o.kind is OutputKind.INPUT_ALIAS and o.source == index for o in signature.outputs):
        return "the program returns it, or a view of it"
    if geometry_of(value)[5].overlaps:
        return "elements of it share memory"
    return ""


def donations(plan: Plan) -> Iterator[Donation]:
    """What became of each donated input of a plan."""
    for donated in plan.program.signature.donated:
        place = plan.inputs[donated.input]
        assert place is not None
        step = next((s for s in plan.steps if _writes(s, place)), None)
        name, count = place.buffer.name, place.byte_count()
        if step is None:
            why = "no value that is made after its last use has its size, strides and dtype and can be written there"
            yield Donation(name, count, reason=why)
        else:
            target = step.node.target
            yield Donation(name, count, facts_of(target).name, step.node.name, source_of(step.node))


def _writes(step: Step, given: Place) -> bool:
    """Whether a step writes in the memory of an input."""
    places = (*([step.place] if step.place is not None else ()), *step.places)
    return step.action in _WRITING and any(p.buffer is given.buffer for p in places)
