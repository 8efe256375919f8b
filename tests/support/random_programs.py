"""Random mutating programs: inputs with any layout and overlap, instructions, results of every kind.

A program is plain data with a `run` method, so that a failing one prints as text that can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from support.instructions import INSTRUCTIONS, SEQUENTIAL, is_too_large, overlap_in_part, overlaps_itself

_DTYPES = ("float32", "float64", "int64", "int32", "int16", "complex64")

_NAMES: dict[str, tuple[str, ...]] = {
    kind: tuple(name for name, (k, _) in INSTRUCTIONS.items() if k == kind)
    for kind in ("view", "read", "write", "custom")
}


@dataclass(frozen=True, slots=True)
class Given:
    """One input: a view of storage number `block`, or, if `same_as` is set, that earlier input once more."""

    block: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    same_as: int | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One call. Operands are indices of values, modulo their number; `apart` clones all but the first."""

    name: str
    operands: tuple[int, ...]
    numbers: tuple[int, ...]
    apart: bool = False

    def apply(self, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run on what `values` are now; the new values."""
        chosen = self.chosen(values)
        if self.apart:
            chosen = [chosen[0], *(t.clone() for t in chosen[1:])]
        return INSTRUCTIONS[self.name][1](chosen, self.numbers)

    def chosen(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The operands."""
        return [values[k % len(values)] for k in self.operands]


@dataclass(frozen=True, slots=True)
class RandomProgram:
    """Storages (dtype and length of each), inputs in them, instructions, and which values to return."""

    blocks: tuple[tuple[str, int], ...]
    inputs: tuple[Given, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    def make_args(self) -> tuple[Any, ...]:
        """Fresh inputs; every element of every storage has its own value."""
        storages = [_filled(dtype, length, 100 * k) for k, (dtype, length) in enumerate(self.blocks)]
        made: list[Tensor] = []
        for given in self.inputs:
            if given.same_as is not None:
                made.append(made[given.same_as])
            else:
                made.append(storages[given.block].as_strided(given.size, given.stride, given.offset))
        return tuple(made)

    def run(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The program itself."""
        values = list(inputs)
        for instruction in self.instructions:
            values += instruction.apply(values)
        return tuple(values[k % len(values)] for k in self.outputs)

    def __str__(self) -> str:
        lines = [f"storage {k}: {dtype}[{length}]" for k, (dtype, length) in enumerate(self.blocks)]
        lines += [f"v{k} = {given}" for k, given in enumerate(self.inputs)]
        values = list(self.make_args())
        for step in self.instructions:
            operands = ", ".join(f"v{k % len(values)}" for k in step.operands)
            fresh = step.apply(values)
            names = ", ".join(f"v{len(values) + k}" for k in range(len(fresh)))
            lines.append(f"{names or '-'} = {step.name}({operands}; {step.numbers}{'; apart' if step.apart else ''})")
            values += fresh
        results = ", ".join(f"v{k % len(values)}" for k in self.outputs)
        return "\n".join([*lines, f"return {results}"])


def settle(program: RandomProgram) -> RandomProgram | None:
    """`program` without what eager refuses or leaves undefined; None if eager refuses it as a whole."""
    values = list(program.make_args())
    kept: list[Instruction] = []
    for instruction in program.instructions:
        defined = _defined(instruction, values)
        if defined is None:
            continue
        try:
            fresh = list(defined.apply(values))
        except (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError, NotImplementedError):
            continue
        if is_too_large(fresh):
            continue
        values += fresh
        kept.append(defined)
    settled = replace(program, instructions=tuple(kept))
    try:
        settled.run(*settled.make_args())
    except Exception:
        return None
    return settled


def _defined(instruction: Instruction, values: Sequence[Tensor]) -> Instruction | None:
    """`instruction` in a form whose result eager defines, or None if there is none."""
    kind = INSTRUCTIONS[instruction.name][0]
    if kind in ("view", "read"):
        return instruction
    target, *others = instruction.chosen(values)
    if target.numel() == 0 or overlaps_itself(target):
        return None
    if instruction.name in SEQUENTIAL:
        return None if any(overlaps_itself(t) for t in others) else instruction
    return replace(instruction, apart=any(overlap_in_part(target, t) for t in others))


def _filled(dtype: str, length: int, start: int) -> Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    return (torch.arange(length) + start).to(kind)


@st.composite
def programs(draw: st.DrawFn) -> RandomProgram:
    """A random program that eager accepts."""
    count = draw(st.integers(1, 2))
    dtypes = [draw(st.sampled_from(_DTYPES)) for _ in range(count)]
    inputs: list[Given] = []
    for k in range(draw(st.integers(1, 4))):
        inputs.append(draw(_given(count, k)))
    lengths = [8 + max((_end(g) for g in inputs if g.block == b), default=0) // 8 * 8 + 8 for b in range(count)]
    steps = draw(st.lists(_instructions(), min_size=3, max_size=14))
    outputs = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    blocks = tuple(zip(dtypes, lengths, strict=True))
    settled = settle(RandomProgram(blocks, tuple(inputs), tuple(steps), tuple(outputs)))
    return settled or RandomProgram(blocks, tuple(inputs), (), tuple(outputs))


@st.composite
def _given(draw: st.DrawFn, blocks: int, earlier: int) -> Given:
    if earlier and draw(st.integers(0, 7)) == 0:
        return Given(0, (), (), 0, same_as=draw(st.integers(0, earlier - 1)))
    size = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    order = draw(st.permutations(range(len(size))))
    stride, step = [0] * len(size), draw(st.sampled_from((1, 1, 1, 2, 3)))
    for dim in order:
        stride[dim] = step
        step = step * size[dim] + draw(st.sampled_from((0, 0, 0, 1)))
    if size and draw(st.integers(0, 9)) == 0:
        stride[draw(st.integers(0, len(size) - 1))] = 0
    return Given(draw(st.integers(0, blocks - 1)), size, tuple(stride), draw(st.sampled_from((0, 0, 2, 4, 5))))


@st.composite
def _instructions(draw: st.DrawFn) -> Instruction:
    kind = draw(st.sampled_from(("view", "view", "view", "write", "write", "custom", "read")))
    name = draw(st.sampled_from(_NAMES[kind]))
    operands = (draw(st.integers(0, 30)), draw(st.integers(0, 30)))
    return Instruction(name, operands, tuple(draw(st.tuples(*[st.integers(0, 12)] * 4))))


def _end(given: Given) -> int:
    """One past the last element that an input reaches."""
    if given.same_as is not None:
        return 0
    return given.offset + sum((n - 1) * s for n, s in zip(given.size, given.stride, strict=True)) + 1
