"""Branches and loops of a program that is traced without Dynamo: what their functions see around them is an operand.

``torch.cond`` and ``torch.while_loop`` call Dynamo for this, which takes longer than all that reink does. From there on
the graph is the same: the operators of both, given functions without free variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor

from reink.core.torch_internals import pytree


def lifted_branch(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`plain`, a branch of a program; where a tracer other than Dynamo looks on, the operator of ``torch.cond``."""

    def branch(flag: Tensor, yes: Callable[..., Tensor], no: Callable[..., Tensor], *operands: Tensor) -> Tensor:
        if type(flag) is Tensor or torch.compiler.is_compiling():
            return plain(flag, yes, no, *operands)
        around = _Around((yes, no), operands)
        given = [around.taking(f, lambda result: (result,)) for f in (yes, no)]
        taken: tuple[Tensor] = torch.ops.higher_order.cond(flag, *given, (*operands, *around.tensors))
        return taken[0]

    return branch


def lifted_loop(plain: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """`plain`, a loop of a program; where a tracer other than Dynamo looks on, the operator of ``torch.while_loop``."""

    def loop(goes_on: Callable[..., Tensor], body: Callable[..., Any], *state: Tensor) -> tuple[Tensor, ...]:
        if type(state[0]) is Tensor or torch.compiler.is_compiling():
            return plain(goes_on, body, *state)
        around = _Around((goes_on, body), state)
        given = [around.taking(f, lambda result: result) for f in (goes_on, body)]
        last: tuple[Tensor, ...] = torch.ops.higher_order.while_loop(*given, state, tuple(around.tensors))
        return last

    return loop


class _Around:
    """The tensors that functions see besides their operands, each once."""

    def __init__(self, functions: Sequence[Callable[..., Any]], operands: Sequence[Tensor]) -> None:
        self.count = len(operands)
        seen = [v for f in functions for v in pytree.tree_leaves(_cells(f)) if isinstance(v, Tensor)]
        self.tensors = list({id(v): v for v in seen}.values())

    def taking(self, function: Callable[..., Any], wrap: Callable[[Any], Any]) -> Callable[..., Any]:
        """`function`, which takes these tensors after its operands."""
        places = {id(v): k + self.count for k, v in enumerate(self.tensors)}
        leaves, shape = pytree.tree_flatten(_cells(function))

        def lifted(*given: Any) -> Any:
            now = [given[places[id(v)]] if isinstance(v, Tensor) else v for v in leaves]
            return wrap(_with_cells(function, pytree.tree_unflatten(now, shape))(*given[: self.count]))

        return lifted


def _cells(function: Callable[..., Any]) -> list[Any]:
    assert isinstance(function, FunctionType)
    return [cell.cell_contents for cell in function.__closure__ or ()]


def _with_cells(function: Callable[..., Any], values: Sequence[Any]) -> Callable[..., Any]:
    assert isinstance(function, FunctionType)
    cells = tuple(CellType(v) for v in values)
    return FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
