"""A program in the making: its values so far, and the choices that rules draw from.

A `Draft` runs each statement as it is added, so every rule sees real tensors and a statement that eager refuses
never enters.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

from reink.fuzz.geometry import overlap_in_part, overlaps_itself, share_bytes
from reink.fuzz.program import GLOBALS, Statement

# No tensor of a random program has more elements.
LARGEST = 64
# Values stay under this where they feed other values: sums are then exact in any order, no cast is undefined.
BOUND = 997

REFUSALS = (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError, NotImplementedError)


class NoFit(Exception):
    """The rule finds no values that it could use."""


class Draft:
    """The values that exist so far, by name, and a source of chance."""

    def __init__(self, rng: random.Random, inputs: dict[str, Tensor]) -> None:
        self.rng, self.values, self._given = rng, dict(inputs), list(inputs)
        self.statements: list[Statement] = []
        self._count = 0

    def continue_names(self, other: Draft) -> None:
        """Give out names after those that `other` gave out."""
        self._count = max(self._count, other._count)

    # -- choosing ------------------------------------------------------------------------------------------

    def number(self, least: int, most: int) -> int:
        """A whole number, both ends included."""
        return self.rng.randint(least, most)

    def chance(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.rng.randrange(one_in) == 0

    def pick(self, *choices: Any) -> Any:
        """One of the choices."""
        return self.rng.choice(choices)

    def tensor(self, dims: int = 0, dtypes: tuple[torch.dtype, ...] = ()) -> str:
        """The name of a value with at least `dims` dimensions and one of `dtypes`."""
        names = [n for n, v in self.values.items() if v.dim() >= dims and (not dtypes or v.dtype in dtypes)]
        if not names:
            raise NoFit
        # the newer half is chosen more often: chains of views grow long
        return self.rng.choice(names if self.chance(2) else names[len(names) // 2 :])

    def given(self) -> str:
        """The name of an input."""
        return self.rng.choice(self._given)

    def value(self, expression: str) -> Tensor:
        """What an expression is now."""
        try:
            found = evaluate(expression, self.values)
        except REFUSALS as error:
            raise NoFit from error
        if not isinstance(found, Tensor):
            raise NoFit
        return found

    def dim(self, tensor: Tensor) -> int:
        """A dimension, sometimes counted from the end."""
        if not tensor.dim():
            raise NoFit
        dim = self.rng.randrange(tensor.dim())
        return dim - tensor.dim() if self.chance(4) else dim

    def index(self, tensor: Tensor, dim: int) -> int:
        """An index into a dimension, sometimes counted from the end."""
        count = tensor.shape[dim]
        if not count:
            raise NoFit
        return self.rng.randrange(-count, count) if self.chance(4) else self.rng.randrange(count)

    def place(self, dims: int = 0, dtypes: tuple[torch.dtype, ...] = ()) -> str:
        """An expression for a tensor to write: a value, or a view of one."""
        name = self.tensor(dims, dtypes)
        value = self.values[name]
        if value.dim() <= dims or not self.chance(3):
            return name
        views = [f"{name}[{self.index(value, 0)}]", f"{name}.select(-1, {self.index(value, -1)})", f"{name}.t()"]
        views += [f"{name}[{self.number(0, 2)}:]", f"{name}[..., ::{self.number(1, 3)}]", f"{name}.view(-1)"]
        expression: str = self.rng.choice(views)
        if self.value(expression).dim() < dims:
            raise NoFit
        return expression

    def operand(
        self, target: Tensor, exact: bool = False, bounded: bool = True, apart_from: Tensor | None = None
    ) -> str:
        """An expression that can be written into `target`: some value, cast, bounded or summed as needed.

        `exact` asks for the size of the target rather than one that broadcasts to it. `apart_from` is a tensor of which
        it may have no byte: whether eager takes such operands depends on the tensor objects, not on their memory.
        """
        name = self.tensor()
        value, text = self.values[name], name
        if value.is_complex() and not target.is_complex():
            value, text = value.real, f"{text}.real"
        if bounded and not (value.is_complex() or value.dtype in (torch.bool, torch.uint8)):
            text = f"{text}.remainder({BOUND})"
            value = self.value(text)
        if value.dtype != target.dtype:
            text = f"{text}.to({target.dtype})"
        if not _broadcasts(value, target):
            text = f"{text}.sum().to({target.dtype})"
        value = self.value(text)
        if exact and value.shape != target.shape:
            text = f"{text}.expand({tuple(target.shape)})"
            value = self.value(text)
        shared = overlap_in_part(value, target) if apart_from is None else share_bytes(value, apart_from)
        return f"{text}.clone()" if shared else text

    # -- saying --------------------------------------------------------------------------------------------

    def fresh(self, count: int = 1) -> tuple[str, ...]:
        """Names that are not used yet."""
        self._count += count
        return tuple(f"v{self._count - count + k}" for k in range(count))

    def let(self, rule: str, expression: str, parts: int = 0, **how: Any) -> Statement:
        """A statement that names the value of an expression, or its `parts`."""
        names = self.fresh(max(parts, 1))
        left = f"{names[0]}," if parts == 1 else ", ".join(names)
        return Statement(rule, f"{left} = {expression}", names, **how)

    def write(
        self, rule: str, expression: str, written: tuple[str, ...], read: tuple[str, ...] = (), **how: Any
    ) -> Statement:
        """A statement that writes; one in three also names the result."""
        if self.chance(3):
            return self.let(rule, expression, written=written, read=read, **how)
        return Statement(rule, expression, (), written, read, **how)

    def add(self, statement: Statement) -> bool:
        """Run the statement if it is defined; whether eager took it."""
        if not is_defined(statement, self.values):
            return False
        if not run(statement, self.values):
            return False
        self.statements.append(statement)
        return True


def evaluate(expression: str, values: dict[str, Tensor]) -> Any:
    """What an expression of a program is, for these values."""
    return eval(expression, dict(GLOBALS), values)


def run(statement: Statement, values: dict[str, Tensor]) -> bool:
    """Run a statement on the values; whether eager took it, and its results are small tensors."""
    scope: dict[str, Any] = {**GLOBALS, **values}  # one scope: functions inside see the values
    try:
        exec(statement.text, scope)
    except REFUSALS:
        return False
    made = {name: scope[name] for name in statement.defines}
    if not all(isinstance(v, Tensor) and math.prod(v.shape) <= LARGEST for v in made.values()):
        return False
    values.update(made)
    return True


def is_defined(statement: Statement, values: dict[str, Tensor]) -> bool:
    """Whether eager defines what the statement does to the values."""
    if not (statement.written or statement.read):
        return True
    try:
        written = [evaluate(e, values) for e in statement.written]
        read = [evaluate(e, values) for e in statement.read]
    except (*REFUSALS, NameError):
        return False
    if any(t.numel() == 0 or overlaps_itself(t) for t in written):
        return False
    if statement.sequential:
        return not any(overlaps_itself(t) for t in read)
    others = [*read, *written[1:]]
    return not any(overlap_in_part(w, t) for w in written for t in others if t is not w)


def _broadcasts(value: Tensor, target: Tensor) -> bool:
    if value.dim() > target.dim():
        return False
    trailing = target.shape[target.dim() - value.dim() :]
    return all(n in (1, m) for n, m in zip(value.shape, trailing, strict=True))
