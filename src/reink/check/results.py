"""How the result of an operator lies when its operands lie otherwise than in the pure program.

An operator orders the dims of its result by the strides of its operands. A dim of one element has a say in that where
another dim is expanded, so strides are told here as they are, those of dims of one element included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from reink.check.geometry import Geometry, bits_of, new_tensor, same_strides, size_of, stride_of
from reink.check.memory import Memory
from reink.check.operands import Operands
from reink.core.opinfo import Kind, facts_of

Node = torch.fx.Node
Tensor = torch.Tensor

# What these make is told by their first argument and by numbers.
_OF_ONE = (Kind.VIEW, Kind.IN_PLACE)
_COPIES = (torch.ops.aten.clone.default, torch.ops.aten.empty_like.default, torch.ops.aten.new_empty_strided.default)
_FAILED = (RuntimeError, NotImplementedError, KeyError, TypeError, ValueError)


class ResultLayouts:
    """The layouts of what lowered nodes make.

    `at` says where each node lies and `numbers_of` which numbers its other arguments are. `like` is filled here and by
    whoever knows an input: of which pure node a lowered one has all strides.
    """

    def __init__(
        self, root: Callable[[Tensor], Geometry], at: dict[Node, Memory], numbers_of: Callable[[Any], Any]
    ) -> None:
        self._root, self._at, self._numbers_of = root, at, numbers_of
        self.like: dict[Node, Node] = {}
        self._made: dict[Node, Tensor] = {}

    def of(self, node: Node, pure: Node, found: Operands) -> Geometry:
        """The layout of a result: that of the pure one, unless an operand has other strides than there."""
        expected = self._root(pure.meta["val"])
        if self._alike(expected, found):
            if 1 in expected.size:
                self.like[node] = pure
            return expected
        try:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._argument)
            made = node.target(*args, **kwargs)  # type: ignore[operator]
        except _FAILED:
            return expected
        if not isinstance(made, Tensor) or made.size() != expected.tensor.size() or made.device.type != "meta":
            return expected
        self._made[node] = made
        return self._root(made)

    def _alike(self, expected: Geometry, found: Operands) -> bool:
        """Whether all operands lie as in the pure program, as far as the result `expected` there can depend on it."""
        exactly = 1 in expected.size and any(_repeats(memory.geometry, expected.size) for memory, _ in found.memories)
        for (memory, _), value, node in zip(found.memories, found.values, found.nodes, strict=True):
            if value is None:
                continue
            stride, wanted = memory.geometry.stride, stride_of(value.meta["val"])
            if exactly and 1 in memory.geometry.size:
                stride = self._tensor(node).stride()
            elif stride != wanted and same_strides(self._root(value.meta["val"]), memory.geometry):
                continue
            if stride != wanted:
                return False
        return True

    def _argument(self, argument: Node) -> Any:
        return self._tensor(argument) if argument in self._at else self._numbers_of(argument)

    def _tensor(self, node: Node) -> Tensor:
        """A meta tensor that lies as `node` does."""
        steps: list[Node] = []
        while 1 in self._at[node].geometry.size and node not in self._made and node not in self.like:
            parent = node.args[0] if node.args else None
            if not isinstance(parent, Node) or parent not in self._at:
                break
            if facts_of(node.target).kind not in _OF_ONE and node.target not in _COPIES:
                break
            steps.append(node)
            node = parent
        tensor = self._known(node)
        for step in reversed(steps):
            tensor = self._made[step] = self._step(step, tensor)
        return tensor

    def _known(self, node: Node) -> Tensor:
        if node in self._made:
            return self._made[node]
        if node not in self.like:
            return self._at[node].geometry.tensor
        value = self.like[node].meta["val"]
        return new_tensor(size_of(value), stride_of(value), value.dtype, bits_of(value))

    def _step(self, node: Node, parent: Tensor) -> Tensor:
        """What a view, a copy or an operator in place makes of its first argument."""
        if facts_of(node.target).kind is Kind.IN_PLACE:
            return parent
        geometry = self._at[node].geometry
        try:
            made = node.target(parent, *self._numbers_of(node.args[1:]))  # type: ignore[operator]
        except _FAILED:
            return geometry.tensor
        return made if made.size() == geometry.size else geometry.tensor


def _repeats(geometry: Geometry, size: tuple[int, ...]) -> bool:
    """Whether an operand of an operator with results of this size is expanded, by itself or by the operator."""
    return geometry.size != size or 0 in geometry.stride
