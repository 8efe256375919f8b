"""Do the pure and the lowered program compute the same values? A proof by value numbering over symbolic memory.

Both graphs are evaluated (`evaluation.py`) over one set of numbers (`terms.py`): each result and the final memory of
each input must have one number in both. Operators are taken for functions of their operands, as their schemas say;
random ones for functions of their turn as well. That is all inputs at once, of the sizes that were traced: symbolic
sizes count as their hints. Layouts are the ownership check's.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Any

import torch
import torch.fx

from reink.check.evaluation import Evaluation, turns_of
from reink.check.terms import LAYERS, Number, Numbering, Term, TooLarge, Undecided
from reink.check.values import Different, Shared, Storage, View
from reink.core.opinfo import facts_of, operator_name
from reink.core.program import OutputKind, OutputSpec, Program
from reink.report import Verdict

Node = torch.fx.Node

# Operators that a difference is followed through.
LONGEST_TRACE = 10_000
# Names of values that one part of a message lists.
SHOWN_VALUES = 4


def prove_values(functional: Program, lowered: Program) -> Verdict:
    """Whether `lowered` returns and leaves in its inputs what `functional` says: proven, refuted or not decided.

    Graphs that calls run are taken for granted: each pair has a proof of its own. Never raises.
    """
    try:
        found = next(_Proof(functional, lowered).differences(), "")
    except Undecided as reason:
        return Verdict("values", True, (str(reason),), decided=False)
    except Exception as error:  # a proof that cannot follow a program says nothing about it
        return Verdict("values", True, (f"not followed: {type(error).__name__}: {error}",), decided=False)
    return Verdict("values", not found, (found,) if found else ())


class _Proof:
    def __init__(self, functional: Program, lowered: Program) -> None:
        self.functional, self.signature = functional, functional.signature
        shared = Shared(_pure_forms(functional))
        self.numbering: Numbering = shared.numbering
        self.pure = Evaluation(functional, shared, turns=turns_of(functional, lowered))
        self.lowered = Evaluation(lowered, shared)

    def differences(self) -> Iterator[str]:
        """What differs, in words."""
        self.pure.run()
        try:
            self.lowered.run()
        except Different as found:
            yield str(found)
            return
        yield from self._effects()
        yield from self._results()
        yield from self._inputs()

    def _effects(self) -> Iterator[str]:
        """Each effect happens once, on the same operands, in the same order."""
        due = sorted(self.pure.effects, key=_turn)
        for (_, wanted, pure), (_, found, node) in zip(due, self.lowered.effects, strict=False):
            if wanted != found:
                step = _first_operand(wanted, found)
                numbers = [self.numbering.number(n) for n in step[1:]] if step is not None else []
                why = f": {self._difference(*numbers)}" if numbers else ""
                yield f"{node.name} happens where the effect of {pure.name} is due{why}"
                return
        if len(due) != len(self.lowered.effects):
            yield f"{len(self.lowered.effects)} effects happen, {len(due)} are due"

    # -- results ---------------------------------------------------------------------------------

    def _results(self) -> Iterator[str]:
        """Each result has the value and the memory that the pure program says."""
        results, returned = self.functional.results(), self.lowered.program.results()
        outputs = self.signature.outputs
        if len(returned) != len(outputs):
            yield f"{len(returned)} results are returned instead of {len(outputs)}"
            return
        owners: dict[int, int] = {}
        firsts: dict[int, tuple[View, View]] = {}
        for k, spec in enumerate(outputs):
            wanted, found = self.pure.value_of(results[k]), self.lowered.value_of(returned[k])
            if spec.kind is OutputKind.INPUT_ALIAS:
                yield from self._view_of_input(k, spec, found)
                continue
            if spec.kind is OutputKind.GROUP_ALIAS:
                wanted = self.pure.seen_through(self.pure.value_of(results[spec.source]), spec.steps)
            if isinstance(wanted, View) and isinstance(found, View):
                yield from self._tensor(k, wanted, found)
                owner = spec.source if spec.kind is OutputKind.GROUP_ALIAS else k
                yield from self._memory(k, owner, found, owners)
                if spec.kind is OutputKind.GROUP_ALIAS:
                    yield from _distance(k, *firsts.setdefault(owner, (wanted, found)), wanted, found)
            elif self.pure.key_of(wanted) != self.lowered.key_of(found):
                yield f"result {k} ({returned[k]}) is not {results[k]} of the pure program"

    def _tensor(self, k: int, wanted: View, found: View) -> Iterator[str]:
        one, other = wanted.geometry, found.geometry
        if (one.size, one.dtype) != (other.size, other.dtype):
            yield f"result {k} is {other.dtype} {list(other.size)}, in the pure program {one.dtype} {list(one.size)}"
            return
        yield from self._same(f"result {k}", self.pure.load(wanted), self.lowered.load(found))

    def _memory(self, k: int, owner: int, found: View, owners: dict[int, int]) -> Iterator[str]:
        """A result that is no view of an input lies in memory that no other result and no input has."""
        storage = found.storage
        if storage.kind != "fresh" or owners.setdefault(id(storage), owner) != owner:
            yield f"result {k} shares {storage.name} with an input, a constant or another result"

    def _view_of_input(self, k: int, spec: OutputSpec, found: Any) -> Iterator[str]:
        source = self.lowered.inputs[spec.source]
        if source is None or not isinstance(found, View):
            yield f"result {k} is no tensor"
            return
        expected = self.lowered.seen_through(View(source, source.root), spec.steps)
        if found.storage is not source or found.geometry is not expected.geometry:
            place = f"{found.storage.name} {found.geometry}"
            yield f"result {k} is {place} and not the view of input {source.name} that eager returns"

    # -- inputs ----------------------------------------------------------------------------------

    def _inputs(self) -> Iterator[str]:
        """The final memory of each input and constant: the new value where it has one, else as it was."""
        results = self.functional.results()
        new: list[tuple[View, Number]] = []  # all are read first: one may be the old value of another
        for mutation in self.signature.mutations:
            source, value = self.pure.inputs[mutation.input], self.pure.value_of(results[mutation.result])
            if source is None or not isinstance(value, View):
                raise Undecided(f"the new value of input {mutation.input} is no strided tensor")
            if not source.root.is_empty:
                new.append((View(source, source.root), self.pure.load(value)))
        for view, number in new:
            self.pure.store(view, number)
        for expected, found in zip(self.pure.inputs, self.lowered.inputs, strict=True):
            if expected is not None and found is not None and found.kind == "input":
                yield from self._left(f"input {found.name} ends with another value", expected, found)
        constants = {s.name: s for s in self.pure.constants}
        for found in self.lowered.constants:
            expected = constants.get(found.name)
            if expected is not None:
                yield from self._left(f"constant {found.name} is written", expected, found)

    def _left(self, what: str, expected: Storage, found: Storage) -> Iterator[str]:
        if found.root.is_empty:
            return
        memory = self.pure.geometries.interval(0, found.root.hi)
        yield from self._same(what, expected.contents.load(memory), found.contents.load(memory))

    # -- words -----------------------------------------------------------------------------------

    def _same(self, what: str, wanted: Number, found: Number) -> Iterator[str]:
        if wanted is not found:
            yield f"{what}: {self._difference(wanted, found)}"

    def _difference(self, wanted: Number, found: Number) -> str:
        """Where two values part, followed into their operands as long as one operator makes both."""
        said = self._pair(wanted, found)
        for _ in range(LONGEST_TRACE):
            if self._is_layered(wanted) or self._is_layered(found):
                raise Undecided(f"memory that is too large to be put together may be equal or not: {said}")
            terms = self._first_terms(wanted, found)
            step = _first_operand(_call_of(terms[0].key), _call_of(terms[1].key)) if terms is not None else None
            if terms is None or step is None:
                break
            number, one, other = step
            wanted, found = self.numbering.number(one), self.numbering.number(other)
            called = _called(_call_of(terms[1].key))
            said = f"{terms[1].name} ({called}) is given, as tensor {number}, {self._pair(wanted, found)}"
        return said

    def _is_layered(self, number: Number) -> bool:
        """Whether another number may stand for the same bytes."""
        return any(term.key[0] == LAYERS for term in self.numbering.terms_in(number))

    def _first_terms(self, wanted: Number, found: Number) -> tuple[Term, Term] | None:
        """Whose bytes the first are that differ; None if they are too many to look at."""
        if wanted.count != found.count:
            return None
        if wanted.term is not None and found.term is not None:
            return wanted.term, found.term
        unit = math.gcd(wanted.unit, found.unit)
        try:
            one, other = self.numbering.codes(wanted, unit), self.numbering.codes(found, unit)
        except TooLarge:
            return None
        at = int((one != other).nonzero()[0, 0])
        return self.numbering.term_of(int(one[at])), self.numbering.term_of(int(other[at]))

    def _pair(self, wanted: Number, found: Number) -> str:
        one, other = self._shown(wanted), self._shown(found)
        return f"{other}, in the pure program {one if one != other else 'another part or order of it'}"

    def _shown(self, number: Number) -> str:
        """A value by the nodes that made its bytes."""
        if number.term is not None:
            is_whole = number.count == number.term.count and number.dims == ((number.count, 1),)
            return number.term.name if is_whole else f"a part of {number.term.name} (from byte {number.offset} on)"
        names = [term.name for term in self.numbering.terms_in(number)]
        more = f" and {len(names) - SHOWN_VALUES} more" if len(names) > SHOWN_VALUES else ""
        return f"parts of {', '.join(names[:SHOWN_VALUES])}{more}"


def _pure_forms(functional: Program) -> dict[Any, Any]:
    """The operators of a pure graph, by those that make the same in memory of the first operand or of ``out``."""
    targets = {n.target for n in functional.graph.nodes if n.op == "call_function"}
    forms = {form: t for t in targets for form in (facts_of(t).in_place, facts_of(t).out)}
    forms.pop(None, None)
    return forms


def _turn(effect: tuple[int, Hashable, Node]) -> int:
    return effect[0]


def _distance(k: int, first: View, second: View, wanted: View, found: View) -> Iterator[str]:
    """Views of one base lie as far apart as in the pure program; `first` and `second` are another pair of them."""
    if wanted.geometry.is_empty or first.geometry.is_empty:
        return
    one, other = wanted.geometry.lo - first.geometry.lo, found.geometry.lo - second.geometry.lo
    if one != other:
        yield f"result {k} lies {other} bytes from another result, in the pure program {one}"


def _call_of(key: Any) -> Any:
    """The call that a term is a result of."""
    while isinstance(key, tuple) and key[:1] in (("part",), ("result",), ("written",)):
        key = key[1]
    return key


def _first_operand(wanted: Any, found: Any) -> tuple[int, int, int] | None:
    """The first tensor operand in which two calls of one operator differ: its position, and both numbers."""
    if not isinstance(wanted, tuple) or not isinstance(found, tuple) or wanted[:1] != found[:1]:
        return None
    for k, (one, other) in enumerate(zip(_numbers_in(wanted), _numbers_in(found), strict=False)):
        if one != other:
            return k, one, other
    return None


def _numbers_in(key: Any) -> Iterator[int]:
    """The numbers of the tensors among the operands of a call, in order."""
    if key[:1] in (("tensor",), ("cast",)):
        yield key[1]
        return
    for item in key:
        if isinstance(item, tuple):
            yield from _numbers_in(item)


def _called(key: Any) -> str:
    return "a cast" if key[0] == "cast" else operator_name(key[0])
