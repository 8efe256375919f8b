"""Random programs: one for each seed and number, always the same, and always accepted by eager PyTorch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reink.core.region import reach_of
from reink.fuzz import control_flow as _control_flow  # noqa: F401  registers its rules
from reink.fuzz import writes as _writes  # noqa: F401  registers its rules
from reink.fuzz.draft import REFUSALS, Draft, NoFit, evaluate, is_defined, run
from reink.fuzz.program import FuzzProgram, Input, Storage
from reink.fuzz.statements import Kind, make, names_of
from reink.judge import observe, poisoned

DTYPES = ("float32", "float32", "float32", "float64", "int64", "int32", "int16", "uint8", "complex64", "bool")
KINDS: tuple[Kind, ...] = ("view", "view", "view", "write", "write", "custom", "custom", "read")
# The custom operators have no gradient, so what they give is not defined where one is tracked.
WITH_GRADIENTS: tuple[Kind, ...] = tuple(k for k in KINDS if k != "custom")
FEWEST, MOST = 3, 16

# One program in so many ...
GRADIENTS = 12  # ... tracks gradients, where the run allows it.
DYNAMIC = 25  # ... is compiled for sizes of any value.
# ... has a statement that changes sizes, strides or storage of a tensor object; a branch or a loop; one that reink may
# refuse.
RARE: tuple[tuple[Kind, int], ...] = (("metadata", 6), ("control", 10), ("odd", 12))


def generate(seed: int, number: int, *, gradients: bool = False) -> FuzzProgram:
    """Program `number` of `seed`. `gradients` allows inputs that require grad; it changes which programs come."""
    with torch.random.fork_rng(devices=[]), poisoned():  # so that what its random operators give is known
        torch.manual_seed(number)
        return _generate(seed, number, gradients)


def _generate(seed: int, number: int, gradients: bool) -> FuzzProgram:
    rng = random.Random(f"{seed}:{number}:{gradients}")
    tracks = gradients and rng.randrange(GRADIENTS) == 0
    program = _inputs(seed, number, rng, tracks)
    _, make_inputs = program.functions()
    with torch.set_grad_enabled(tracks):
        given = dict(zip((i.name for i in program.inputs), make_inputs(), strict=True))
        draft = Draft(rng, given)
        _fill(draft, tracks)
    statements = tuple(draft.statements)
    outputs = _outputs(rng, list(draft.values))
    program = replace(program, statements=statements, outputs=outputs, dynamic=rng.randrange(DYNAMIC) == 0)
    return program if is_accepted(program) else replace(program, statements=(), outputs=(program.inputs[0].name,))


def _fill(draft: Draft, tracks: bool) -> None:
    wanted, kinds = draft.number(FEWEST, MOST), WITH_GRADIENTS if tracks else KINDS
    rare = {draft.number(0, wanted): kind for kind, one_in in RARE if draft.chance(one_in)}
    for k in range(4 * wanted):
        if len(draft.statements) >= wanted:
            return
        kind: Kind = rare[k] if k in rare else draft.rng.choice(kinds)
        if kind == "control" and tracks:  # what a branch writes has no gradient
            continue
        try:
            draft.add(make(draft, draft.rng.choice(names_of(kind))))
        except NoFit:
            continue


def is_accepted(program: FuzzProgram) -> bool:
    """Whether eager takes the program as a whole, and every statement in it is defined."""
    function, make_inputs = program.functions()
    try:
        inputs = make_inputs()
        values: dict[str, Tensor] = dict(zip((i.name for i in program.inputs), inputs, strict=True))
        with torch.set_grad_enabled(program.gradients):
            for statement in program.statements:
                if not is_defined(statement, values) or not run(statement, values):
                    return False
            for expression in program.outputs:
                evaluate(expression, values)
        observe(function, make_inputs(), program.grad_mode)
    except (*REFUSALS, NameError):
        return False
    return True


def _outputs(rng: random.Random, names: Sequence[str]) -> tuple[str, ...]:
    """What is returned: values, the newest more often, sometimes inside a list or a dict."""
    chosen = [rng.choice(names if rng.randrange(2) else names[-6:]) for _ in range(rng.randint(1, 4))]
    if rng.randrange(8) == 0:
        chosen.append(f"[{rng.choice(names)}, {rng.choice(names)}.view(-1)]")
    if rng.randrange(12) == 0:
        chosen.append(f"{{'named': {rng.choice(names)}}}")
    return tuple(chosen)


# -- inputs ------------------------------------------------------------------------------------------------


def _inputs(seed: int, number: int, rng: random.Random, tracks: bool) -> FuzzProgram:
    """Inputs of any layout in one to three storages: shared, overlapping, duplicated, of two dtypes."""
    count = rng.choice((1, 1, 2, 3))
    dtypes = [rng.choice(DTYPES) for _ in range(count)]
    inputs: list[Input] = []
    for k in range(rng.randint(1, 4)):
        inputs.append(_input(rng, f"a{k}", inputs, dtypes, tracks))
    storages = tuple(Storage(t, _length(inputs, s, t), 1 + 100 * s) for s, t in enumerate(dtypes))
    return FuzzProgram(seed, number, storages, tuple(inputs), (), (inputs[0].name,), gradients=tracks)


def _input(rng: random.Random, name: str, earlier: Sequence[Input], dtypes: Sequence[str], tracks: bool) -> Input:
    if earlier and rng.randrange(8) == 0:
        same = rng.choice([i for i in earlier if not i.same_as])
        return replace(same, name=name, same_as=same.name)
    storage = rng.randrange(len(dtypes))
    dtype = dtypes[storage]
    if dtype in _OTHER_DTYPES and rng.randrange(8) == 0:
        dtype = rng.choice(_OTHER_DTYPES)
    size = tuple(rng.choice((1, 2, 2, 3, 3, 4)) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 4))))
    if size and rng.randrange(25) == 0:
        size = (*size[:-1], 0)
    stride = _strides(rng, size)
    offset = rng.choice((0, 0, 0, 2, 4, 5))
    grad = tracks and dtype in ("float32", "float64") and rng.randrange(2) == 0
    return Input(name, storage, dtype, size, stride, offset, requires_grad=grad)


_OTHER_DTYPES = ("float32", "int32", "int16", "uint8", "int64")


def _strides(rng: random.Random, size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in any order of dimensions, with gaps, and sometimes zero."""
    order = list(range(len(size)))
    if rng.randrange(2):
        rng.shuffle(order)
    else:
        order.reverse()
    stride, step = [0] * len(size), rng.choice((1, 1, 1, 1, 2, 3))
    for dim in order:
        stride[dim] = step
        step = step * max(size[dim], 1) + rng.choice((0, 0, 0, 1))
    if size and rng.randrange(10) == 0:
        stride[rng.randrange(len(size))] = 0
    return tuple(stride)


_SIZES: dict[str, int] = {name: getattr(torch, name).itemsize for name in {*DTYPES, *_OTHER_DTYPES}}


def _length(inputs: Sequence[Input], storage: int, dtype: str) -> int:
    """Elements of a storage that holds its inputs with room to spare, a multiple of 8 bytes."""
    ends = [_end(i) * _SIZES[i.dtype] for i in inputs if i.storage == storage]
    return (max(ends, default=0) // 8 + 4) * 8 // _SIZES[dtype]


def _end(given: Input) -> int:
    """One past the last element that an input reaches."""
    reach: int = reach_of(given.size, given.stride)
    return given.offset + reach
