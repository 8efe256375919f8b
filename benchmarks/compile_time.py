"""Functionalize, re-inplace and lower: microseconds per captured node, against the stock pipeline.

Per captured node, median of five, the garbage collector still during a pass. The stock pipeline runs once
at each length, since it is slow there; its tracing is taken off, ours never traces.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from graphs import FAMILIES, Family, Graph
from measure import median_steps, print_table, still_collector
from reink_adapter import CODEGEN, compile_graph
from rich.console import Console
from stock import stock_seconds
from torch import fx

HEADINGS = (
    "program", "nodes", "reink us/node", "in fx copies", "growth", "code us/node", "stock us/node", "stock / reink"
)  # fmt: skip
WARM_UP_NODES = 10
COPY = "copy"


def run(console: Console, quick: bool) -> None:
    """Print one table, a row for each family of programs and length."""
    rows = []
    for family in FAMILIES:
        stock_cost(console, family, WARM_UP_NODES)
        stock = {nodes: stock_cost(console, family, nodes) for nodes in family.stock_nodes[: 1 if quick else None]}
        rows.extend(rows_of(console, family, stock, (1_000,) if quick else (1_000, 20_000)))
    note = (
        "fx copies: as a multiple of what torch.fx takes to copy the captured graph; "
        "growth: of the time per node since the first row of the program; stock: at the length in brackets"
    )
    print_table(console, "compile time per captured node", HEADINGS, rows, note)


def rows_of(console: Console, family: Family, stock: Mapping[int, float], lengths: tuple[int, ...]) -> list[list[str]]:
    """The figures of a family: like with like at the stock lengths, then ours against the longest stock."""
    rows: list[list[str]] = []
    first = 0.0
    for nodes in (*stock, *(length for length in lengths if length not in stock)):
        passes, code, copy = reink_cost(console, family, nodes)
        first = first or passes
        peer = nodes if nodes in stock else max(stock)
        figures = (f"{passes:.1f}", f"{passes / copy:.1f}", f"{passes / first:.2f}", f"{code:.1f}")
        figures += (f"{stock[peer]:.0f} ({peer:,})",)
        rows.append([family.name, f"{nodes:,}", *figures, f"{stock[peer] / passes:.1f}"])
    return rows


def reink_cost(console: Console, family: Family, nodes: int) -> tuple[float, float, float]:
    """Microseconds per captured node of all steps, of code generation, which the first leaves out, and of a copy."""
    with console.status(f"{family.name}: reink, {nodes:,} nodes"):
        graph = family.build(family.rounds(nodes))
        steps = median_steps(lambda: {**compile_graph(graph.module, graph.inputs), COPY: copy_seconds(graph)})
    code, copy = steps.pop(CODEGEN, 0.0), steps.pop(COPY)
    return tuple(seconds / graph.nodes * 1e6 for seconds in (sum(steps.values()), code, copy))  # type: ignore[return-value]


def copy_seconds(graph: Graph) -> float:
    """Seconds that torch.fx takes to copy the captured graph: the least that any pass costs on this machine."""
    start = time.perf_counter()
    fx.Graph().graph_copy(graph.module.graph, {})
    return time.perf_counter() - start


def stock_cost(console: Console, family: Family, nodes: int) -> float:
    """Microseconds per captured node of the stock pipeline, one run."""
    rounds = family.rounds(nodes)
    with console.status(f"{family.name}: stock, {nodes:,} nodes"), still_collector():
        steps = stock_seconds(family.function(rounds), family.inputs(rounds))
    return sum(steps.values()) / (rounds * family.nodes_per_round) * 1e6
