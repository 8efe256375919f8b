"""Captured programs of any length, built node by node: tracing 20,000 nodes would take longer than the pass.

Each is also a plain function, for peers that can only trace; both take rounds, and mean the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

aten = torch.ops.aten
WIDTH = 8


@torch.library.custom_op("reink_benchmark::fill", mutates_args=("row",))
def fill(row: Tensor, value: Tensor) -> None:
    """Overwrite `row` with `value`."""
    row.copy_(value)


@fill.register_fake
def _(row: Tensor, value: Tensor) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Graph:
    """A mutable ATen graph as capture leaves it: fake values and source lines on every node.

    `nodes` counts the calls, without placeholders and output.
    """

    module: fx.GraphModule
    inputs: tuple[Tensor, ...]
    nodes: int


class Recorder:
    """Builds a `Graph`: every call becomes a node, and its fake value is computed.

    Calls run on meta tensors, whose views share storage, and only the result is made a fake tensor: a
    tenth of the time that a call on fake tensors takes, which tells at 20,000 nodes.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()
        self.inputs = tuple(inputs)
        self.nodes = 0
        self.metas: dict[fx.Node, Tensor] = {}
        self.placeholders = [self._placeholder(f"arg{i}", tensor) for i, tensor in enumerate(self.inputs)]

    def _placeholder(self, name: str, tensor: Tensor) -> fx.Node:
        node = self.graph.placeholder(name)
        self._set_value(node, tensor.to("meta"))
        return node

    def call(self, operator: Callable[..., Any], *args: Any) -> fx.Node:
        """Append a call; arguments may be nodes."""
        node = self.graph.call_function(operator, args)
        result = operator(*(self.metas[a] if isinstance(a, fx.Node) else a for a in args))
        node.meta["val"] = None
        if result is not None:
            self._set_value(node, result)
        node.meta["stack_trace"] = f'  File "program.py", line {self.nodes + 1}, in step\n    {operator}\n'
        self.nodes += 1
        return node

    def _set_value(self, node: fx.Node, meta: Tensor) -> None:
        self.metas[node] = meta
        node.meta["val"] = FakeTensor(self.mode, meta, torch.device("cpu"))

    def finish(self, result: fx.Node) -> Graph:
        """The graph that returns `result`."""
        self.graph.output((result,))
        return Graph(fx.GraphModule(torch.nn.Module(), self.graph), self.inputs, self.nodes)


@dataclass(frozen=True, slots=True)
class Family:
    """Programs that differ only in length.

    `function` and `build` both take a number of rounds, each `nodes_per_round` captured nodes;
    `stock_nodes` are the lengths at which the stock pipeline is still bearable, `traced_nodes` those at which
    its functional trace is.
    """

    name: str
    nodes_per_round: int
    inputs: Callable[[int], tuple[Tensor, ...]]
    function: Callable[[int], Callable[..., Tensor]]
    build: Callable[[int], Graph]
    stock_nodes: tuple[int, ...]
    traced_nodes: tuple[int, ...]

    def rounds(self, nodes: int) -> int:
        """How many rounds give about so many nodes."""
        return max(1, nodes // self.nodes_per_round)


def _table_and_value(rounds: int) -> tuple[Tensor, ...]:
    return torch.zeros(rounds, WIDTH), torch.ones(WIDTH)


def add_to_rows(rounds: int) -> Callable[..., Tensor]:
    """In-place ops on many views of one input."""

    def step(table: Tensor, value: Tensor) -> Tensor:
        for i in range(rounds):
            table[i].add_(value)
        return table * 2

    return step


def build_add_to_rows(rounds: int) -> Graph:
    """`add_to_rows`, captured."""
    recorder = Recorder(_table_and_value(rounds))
    table, value = recorder.placeholders
    for i in range(rounds):
        recorder.call(aten.add_.Tensor, recorder.call(aten.select.int, table, 0, i), value)
    return recorder.finish(recorder.call(aten.mul.Tensor, table, 2))


def fill_slices(rounds: int) -> Callable[..., Tensor]:
    """Custom operators that write slices of one storage."""

    def step(table: Tensor, value: Tensor) -> Tensor:
        for i in range(rounds):
            fill(table[i : i + 1], value)
        return table * 2

    return step


def build_fill_slices(rounds: int) -> Graph:
    """`fill_slices`, captured."""
    recorder = Recorder(_table_and_value(rounds))
    table, value = recorder.placeholders
    operator = torch.ops.reink_benchmark.fill.default
    for i in range(rounds):
        recorder.call(operator, recorder.call(aten.slice.Tensor, table, 0, i, i + 1), value)
    return recorder.finish(recorder.call(aten.mul.Tensor, table, 2))


def view_again(rounds: int) -> Callable[..., Tensor]:
    """A view of a view of a view, carried through a loop that writes rows."""

    def step(table: Tensor, value: Tensor) -> Tensor:
        for i in range(rounds):
            table = table.view(-1).view(rounds, WIDTH)
            table[i] = value * i
        return table * 2

    return step


def build_view_again(rounds: int) -> Graph:
    """`view_again`, captured."""
    recorder = Recorder(_table_and_value(rounds))
    table, value = recorder.placeholders
    for i in range(rounds):
        flat = recorder.call(aten.view.default, table, [-1])
        table = recorder.call(aten.view.default, flat, [rounds, WIDTH])
        scaled = recorder.call(aten.mul.Tensor, value, i)
        recorder.call(aten.copy_.default, recorder.call(aten.select.int, table, 0, i), scaled)
    return recorder.finish(recorder.call(aten.mul.Tensor, table, 2))


FAMILIES = (
    Family("in-place ops on rows", 2, _table_and_value, add_to_rows, build_add_to_rows, (300, 1000), (1_000, 10_000)),
    Family("custom calls on slices", 2, _table_and_value, fill_slices, build_fill_slices, (100, 300), (1_000, 10_000)),
    Family("views of views in a loop", 5, _table_and_value, view_again, build_view_again, (100, 200), (50, 100)),
)
