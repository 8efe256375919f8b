"""Functionalize alone: microseconds per captured node, against what functionalization adds to a stock trace.

Stock PyTorch functionalizes while it traces, so its cost is the difference of two traces: one with its functional
mode, as AOTAutograd uses it, and one without. Ours is one pass over a captured graph: median of five, the garbage
collector still. Stock runs once at each length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from graphs import FAMILIES, Family
from measure import median_steps, print_table, still_collector
from reink_adapter import functionalize_seconds
from rich.console import Console
from stock import tracing_seconds

HEADINGS = (
    "program", "nodes", "reink us/node", "growth", "plain trace us/node", "functional us/node", "difference / reink"
)  # fmt: skip
LENGTHS = (1_000, 10_000, 100_000)
WARM_UP_NODES = 10
STEP = "functionalize"


class Traces(NamedTuple):
    """Microseconds per captured node of a stock trace, without the functional mode and with it."""

    plain: float
    functional: float


def run(console: Console, quick: bool) -> None:
    """Print one table, a row for each family of programs and length."""
    rows = []
    for family in FAMILIES:
        stock_traces(console, family, WARM_UP_NODES)
        traces = {nodes: stock_traces(console, family, nodes) for nodes in family.traced_nodes[: 1 if quick else None]}
        rows.extend(rows_of(console, family, traces, LENGTHS[: 1 if quick else None]))
    note = (
        "compared: reink's pass, and what a trace (make_fx on fake tensors) takes longer in PyTorch's functional mode "
        "than without it; growth: of reink's time per node since the first row of the program; "
        "functional: the trace in that mode, at the length in brackets"
    )
    print_table(console, "functionalize alone, per captured node", HEADINGS, rows, note)


def rows_of(
    console: Console, family: Family, traces: Mapping[int, Traces], lengths: tuple[int, ...]
) -> list[list[str]]:
    """The figures of a family, each against stock at the same length, or at its longest where stock is too slow."""
    rows: list[list[str]] = []
    first = 0.0
    for nodes in lengths:
        ours = reink_cost(console, family, nodes)
        first = first or ours
        length = nodes if nodes in traces else max(traces)
        plain, functional = traces[length]
        figures = (f"{ours:.1f}", f"{ours / first:.2f}", f"{plain:.0f}", f"{functional:.0f} ({length:,})")
        rows.append([family.name, f"{nodes:,}", *figures, f"{(functional - plain) / ours:.0f}"])
    return rows


def reink_cost(console: Console, family: Family, nodes: int) -> float:
    """Microseconds per captured node of the pass."""
    with console.status(f"{family.name}: reink, {nodes:,} nodes"):
        graph = family.build(family.rounds(nodes))
        seconds = median_steps(lambda: {STEP: functionalize_seconds(graph.module)})[STEP]
    return seconds / graph.nodes * 1e6


def stock_traces(console: Console, family: Family, nodes: int) -> Traces:
    """What stock takes for a program of so many nodes."""
    rounds = family.rounds(nodes)
    found = []
    for functional in (False, True):
        with console.status(f"{family.name}: stock, {nodes:,} nodes"), still_collector():
            found.append(tracing_seconds(family.function(rounds), family.inputs(rounds), functional=functional))
    return Traces(*(seconds / (rounds * family.nodes_per_round) * 1e6 for seconds in found))
