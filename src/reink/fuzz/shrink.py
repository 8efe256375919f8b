"""Making a faulty program small: delta debugging on its statements, results and inputs.

A smaller program counts if eager takes it and its outcome has the same key as that of the first one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from reink.fuzz.generate import is_accepted
from reink.fuzz.program import FuzzProgram, Input, Statement, Storage
from reink.fuzz.run import Outcome, Settings, run_program

# So many candidates are run at most, and for so many seconds.
MOST_RUNS = 200
MOST_SECONDS = 60.0

_NAME = re.compile(r"\b[av]\d+\b")

Fails = Callable[[FuzzProgram], bool]


def shrink(program: FuzzProgram, outcome: Outcome, settings: Settings) -> tuple[FuzzProgram, Outcome]:
    """The smallest program found that goes as `program` does, and how it goes."""
    best, runs = (program, outcome), 0
    deadline = time.monotonic() + MOST_SECONDS

    def fails(candidate: FuzzProgram) -> bool:
        nonlocal best, runs
        if runs >= MOST_RUNS or time.monotonic() > deadline or not is_accepted(candidate):
            return False
        runs += 1
        found = run_program(candidate, settings)
        if found.key != outcome.key:
            return False
        best = candidate, found
        return True

    before = None
    while before != best[0]:
        before = best[0]
        _first(_with_fewer_outputs(best[0]), fails)
        _drop_statements(best[0], fails)
        for simpler in (_with_simpler_inputs, _with_fewer_inputs):
            while _first(simpler(best[0]), fails):
                continue
    return best


def _first(candidates: Iterator[FuzzProgram], fails: Fails) -> bool:
    return any(fails(c) for c in candidates)


def _drop_statements(program: FuzzProgram, fails: Fails) -> None:
    """Drop runs of statements, long ones first, as long as the program still fails."""
    size = max(len(program.statements) // 2, 1)
    while size:
        start = 0
        while start < len(program.statements):
            candidate = without(program, program.statements[start : start + size])
            if candidate is not None and fails(candidate):
                program = candidate
            else:
                start += size
        size //= 2


def without(program: FuzzProgram, dropped: tuple[Statement, ...]) -> FuzzProgram | None:
    """`program` without some statements and all that needs them; None if nothing would be returned."""
    known = {i.name for i in program.inputs}
    kept: list[Statement] = []
    for statement in program.statements:
        needs = set(_NAME.findall(statement.text)) - set(statement.defines)
        if statement not in dropped and needs <= known:
            known.update(statement.defines)
            kept.append(statement)
    outputs = tuple(o for o in program.outputs if set(_NAME.findall(o)) <= known)
    if len(kept) == len(program.statements):
        return None
    return replace(program, statements=tuple(kept), outputs=outputs or (program.inputs[0].name,))


def _with_fewer_outputs(program: FuzzProgram) -> Iterator[FuzzProgram]:
    first = program.inputs[0].name
    singles = [(o,) for o in program.outputs] if len(program.outputs) > 1 else []
    for outputs in [(first,), *singles]:
        if outputs != program.outputs:
            yield replace(program, outputs=outputs)


def _with_fewer_inputs(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Each without one input that nothing uses."""
    used = set(_NAME.findall(" ".join([*(s.text for s in program.statements), *program.outputs])))
    used.update(i.same_as for i in program.inputs)
    for given in program.inputs:
        if given.name not in used and len(program.inputs) > 1:
            yield replace(program, inputs=tuple(i for i in program.inputs if i is not given))


def _with_simpler_inputs(program: FuzzProgram) -> Iterator[FuzzProgram]:
    """Each with one input made plainer: memory of its own, no offset, contiguous."""
    for k, given in enumerate(program.inputs):
        for simpler in _simpler(given, program.storages):
            storages = program.storages
            if simpler.storage == len(storages):
                storages = (*storages, replace(storages[given.storage], first=1 + 100 * len(storages)))
            inputs = (*program.inputs[:k], simpler, *program.inputs[k + 1 :])
            yield replace(program, storages=storages, inputs=inputs)


def _simpler(given: Input, storages: tuple[Storage, ...]) -> Iterator[Input]:
    if given.same_as:
        yield replace(given, same_as="", storage=len(storages))
        return
    plain = contiguous_strides(given.size)
    if given.offset:
        yield replace(given, stride=plain, offset=0)
        yield replace(given, offset=0)
    if given.stride != plain:
        yield replace(given, stride=plain)


def contiguous_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of `size`."""
    found: tuple[int, ...] = ()
    step = 1
    for count in reversed(size):
        found, step = (step, *found), step * max(count, 1)
    return found
