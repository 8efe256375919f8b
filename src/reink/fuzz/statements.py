"""The rules that make statements: each draws operands and numbers, and gives one line of Python.

A rule has a kind, by which the generator weighs it. Values stay whole and small (see `draft.BOUND`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

import torch

from reink.fuzz.draft import Draft, NoFit
from reink.fuzz.program import Statement

Kind = Literal["view", "read", "write", "custom", "metadata", "control", "odd"]
Rule = Callable[[Draft, str], Statement]

RULES: dict[str, tuple[Kind, Rule]] = {}

FLOATS = (torch.float32, torch.float64)
WHOLE = (torch.uint8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64,)


def rule(kind: Kind) -> Callable[[Rule], Rule]:
    """Register a rule under the name of its function."""

    def register(make: Rule) -> Rule:
        RULES[make.__name__.strip("_")] = (kind, make)
        return make

    return register


def names_of(kind: Kind) -> tuple[str, ...]:
    """The rules of a kind."""
    return tuple(name for name, (k, _) in RULES.items() if k == kind)


def make(draft: Draft, name: str) -> Statement:
    """A statement by the rule `name`. Raises NoFit if the values at hand do not fit it."""
    return RULES[name][1](draft, name)


# --- views ----------------------------------------------------------------------------------------------


@rule("view")
def _flat_view(d: Draft, rule: str) -> Statement:
    return d.let(rule, f"{d.tensor()}.view(-1)")


@rule("view")
def _reshape(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    total = d.values[name].numel()
    factors = [k for k in range(1, total + 1) if total % k == 0] or [1]
    first = d.pick(*factors)
    shape = d.pick(f"{first}, {total // first}", f"-1, {first}", f"{first}, 1, -1")
    return d.let(rule, f"{name}.{d.pick('reshape', 'view')}({shape})")


@rule("view")
def _select(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    dim = d.dim(d.values[name])
    index = d.index(d.values[name], dim)
    return d.let(rule, f"{name}.select({dim}, {index})")


@rule("view")
def _subscript(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    value = d.values[name]
    parts: list[str] = []
    for size in value.shape:
        start, step = d.number(0, size), d.number(1, 3)
        end = d.number(start, size)
        kinds = [f"{start}:{end}", f"{start}:{end}:{step}", ":", f"{-d.number(1, 3)}:"]
        parts.append(str(d.pick(*kinds, d.number(0, max(size - 1, 0)))))
        if d.chance(6):
            parts.append(d.pick("None", "..."))
    shown = parts[: d.number(1, len(parts))]
    if shown.count("...") > 1:
        raise NoFit
    return d.let(rule, f"{name}[{', '.join(shown)}]")


@rule("view")
def _narrow(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    dim = d.dim(d.values[name])
    size = d.values[name].shape[dim]
    start = d.number(0, size)
    return d.let(rule, f"{name}.narrow({dim}, {start}, {d.number(0, size - start)})")


@rule("view")
def _transpose(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    value = d.values[name]
    if value.dim() == 2 and d.chance(3):
        return d.let(rule, f"{name}.{d.pick('t()', 'T', 'mT')}")
    method = d.pick("transpose", "swapaxes")
    return d.let(rule, f"{name}.{method}({d.dim(value)}, {d.dim(value)})")


@rule("view")
def _permute(d: Draft, rule: str) -> Statement:
    name = d.tensor(2)
    order = d.pick(*itertools.permutations(range(d.values[name].dim())))
    return d.let(rule, f"{name}.permute({order})")


@rule("view")
def _movedim(d: Draft, rule: str) -> Statement:
    name = d.tensor(2)
    return d.let(rule, f"{name}.movedim({d.dim(d.values[name])}, {d.dim(d.values[name])})")


@rule("view")
def _unsqueeze(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    return d.let(rule, f"{name}.unsqueeze({d.number(-1, d.values[name].dim())})")


@rule("view")
def _squeeze(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    return d.let(rule, f"{name}.squeeze({d.pick('', d.dim(d.values[name]))})")


@rule("view")
def _flatten(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    return d.let(rule, f"{name}.{d.pick('flatten()', 'ravel()', 'flatten(0, 1)', 'flatten(1)')}")


@rule("view")
def _unflatten(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    return d.let(rule, f"{name}.unflatten({d.dim(d.values[name])}, {d.pick((-1, 2), (2, -1), (1, -1))})")


@rule("view")
def _diagonal(d: Draft, rule: str) -> Statement:
    name = d.tensor(2)
    value = d.values[name]
    first, second = d.rng.sample(range(value.dim()), 2)
    return d.let(rule, f"{name}.diagonal({d.number(-1, 1)}, {first}, {second})")


@rule("view")
def _expand(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    shape = [d.number(1, 3) if n == 1 else d.pick(n, -1) for n in d.values[name].shape]
    return d.let(rule, f"{name}.expand({[*([d.number(1, 2)] if d.chance(4) else []), *shape]})")


@rule("view")
def _unfold(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    dim = d.dim(d.values[name])
    return d.let(rule, f"{name}.unfold({dim}, {d.number(1, d.values[name].shape[dim] or 1)}, {d.number(1, 3)})")


@rule("view")
def _parts(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    value, size = d.values[name], d.number(1, 3)
    dim = d.dim(value)
    count = value.shape[dim]
    if not count:
        raise NoFit
    chunks = -(-count // -(-count // size))
    pairs = [
        (f"{name}.split({size}, {dim})", -(-count // size)),
        (f"{name}.chunk({size}, {dim})", chunks),
        (f"{name}.unbind({dim})", count),
        (f"{name}.split({[1, count - 1]}, {dim})", 2),
        (f"{name}.tensor_split({size}, {dim})", size),
    ]
    expression, parts = d.pick(*pairs)
    return d.let(rule, expression, parts)


@rule("view")
def _as_strided(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    value = d.values[name]
    if d.chance(4):  # anything that its storage holds
        room = value.untyped_storage().nbytes() // value.element_size()
        start, step = d.number(0, max(0, room - 1)), d.number(1, 3)
        count = d.number(0, (room - start + step - 1) // step)
        return d.let(rule, f"{name}.as_strided(({count},), ({step},), {start})")
    dim = d.number(0, value.dim() - 1)
    size, stride = list(value.shape), list(value.stride())
    size[dim], stride[dim] = (size[dim] + 1) // 2, stride[dim] * 2
    if d.chance(2) or value.shape[dim] % 2:
        return d.let(rule, f"{name}.as_strided({size}, {stride})")
    return d.let(rule, f"{name}.as_strided({size}, {stride}, {name}.storage_offset() + {value.stride(dim)})")


@rule("view")
def _alias(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    value = d.values[name]
    shape = tuple(value.shape)
    forms = ["detach()", "contiguous()", f"to({value.dtype})", f"expand({shape})", f"broadcast_to({shape})"]
    forms += [f"reshape({shape})", "view_as({0})", "expand_as({0})", f"view({value.dtype})"]
    return d.let(rule, f"{name}.{d.pick(*forms).format(name)}")


@rule("view")
def _view_dtype(d: Draft, rule: str) -> Statement:
    return d.let(rule, f"{d.tensor(0, WHOLE)}.view({d.pick(*WHOLE)})")


@rule("view")
def _complex_view(d: Draft, rule: str) -> Statement:
    if d.chance(3):
        return d.let(rule, f"torch.view_as_complex({d.tensor(1, (torch.float32,))})")
    name = d.tensor(0, COMPLEX)
    forms = (f"{name}.real", f"{name}.imag", f"{name}.conj()", f"torch.view_as_real({name})", f"{name}.conj().imag")
    return d.let(rule, d.pick(*forms))


# --- reads ----------------------------------------------------------------------------------------------


@rule("read")
def _clone(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    forms = ("clone()", "clone(memory_format=torch.contiguous_format)", "detach().clone()")
    return d.let(rule, f"{name}.{d.pick(*forms)}")


@rule("read")
def _arithmetic(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    other = d.operand(d.values[name])
    return d.let(rule, f"{name} {d.pick('+', '-')} {d.pick(other, d.number(0, 3))}")


@rule("read")
def _no_op_arithmetic(d: Draft, rule: str) -> Statement:
    return d.let(rule, f"{d.tensor()} {d.pick('+ 0', '* 1', '- 0')}")


@rule("read")
def _total(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    value = d.values[name]
    bounded = name if value.is_complex() or value.dtype is torch.bool else f"{name}.remainder(97)"
    if value.dim() and d.chance(2):
        return d.let(rule, f"{bounded}.sum({d.dim(value)})")
    return d.let(rule, f"{bounded}.sum()")


@rule("read")
def _joined(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    other = d.operand(d.values[name], exact=True)
    return d.let(rule, f"torch.{d.pick('stack', 'cat')}([{name}, {other}]{d.pick('', ', -1')})")


@rule("read")
def _cast(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    value = d.values[name]
    if value.is_complex():
        raise NoFit
    bounded = name if value.dtype is torch.bool else f"{name}.remainder(97)"
    return d.let(rule, f"{bounded}.to({d.pick(torch.float64, torch.int64, torch.uint8)})")


@rule("read")
def _gathered(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    value = d.values[name]
    if not value.shape[0]:
        raise NoFit
    index = [d.index(value, 0) for _ in range(d.number(1, 3))]
    return d.let(rule, f"{name}[torch.tensor({index})]")


@rule("read")
def _chosen(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    return d.let(rule, f"torch.where({name} == {name}, {name}, {d.operand(d.values[name])})")


@rule("read")
def _functional_scatter(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    value = d.values[name]
    dim = d.number(0, value.dim() - 1)
    index = d.index(value, dim)
    row = d.operand(value.select(dim, index), exact=True)
    if value.dim() == 2 and d.chance(3):
        return d.let(rule, f"torch.diagonal_scatter({name}, {d.operand(value.diagonal(), exact=True)})")
    part = d.operand(value[1:], exact=True)
    forms = (f"torch.select_scatter({name}, {row}, {dim}, {index})", f"torch.slice_scatter({name}, {part}, 0, 1)")
    return d.let(rule, d.pick(*forms))


@rule("read")
def _sorted(d: Draft, rule: str) -> Statement:
    name = d.tensor(1)
    if d.values[name].is_complex() or d.values[name].dtype is torch.bool:
        raise NoFit
    return d.let(rule, f"{name}.sort(stable=True, dim=0)", 2)


@rule("read")
def _random(d: Draft, rule: str) -> Statement:
    return d.let(rule, f"torch.randint_like({d.tensor(0, FLOATS)}, 9)")


@rule("read")
def _filled(d: Draft, rule: str) -> Statement:
    name = d.tensor()
    new = d.pick(f"torch.zeros_like({name})", f"torch.full_like({name}, 2)", f"{name}.new_ones((2, 3))")
    return d.let(rule, new)


@rule("read")
def _buffer(d: Draft, rule: str) -> Statement:
    """Memory without content, all of it written at once."""
    name = d.tensor()
    (new,) = d.fresh()
    source = d.operand(d.values[name])
    return Statement(rule, f"{new} = torch.empty_like({name})\n{new}.copy_({source})", (new,))
