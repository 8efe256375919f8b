"""Bytes are shown in ways that must agree: the report, and the copies that stand in the lowered graph."""

from __future__ import annotations

import pytest
import torch
import torch.fx
from corpus import PROGRAMS, Program
from support.library import piped
from test_passes import drop_clones

from reink.core.views import SCATTERS
from reink.errors import ReinkError
from reink.pipeline import Compiled

aten = torch.ops.aten
COPIES = (aten.clone.default, aten.copy_.default)
JOINS = (aten.cat.default, aten.stack.default)
STATIC = [p for p in PROGRAMS if not p.handed_over and not p.may_refuse and not p.scalars and p.grad_mode == "no_grad"]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def copied_bytes(graph: torch.fx.Graph, *, drop: bool = False) -> int:
    """Bytes that clone and copy_ nodes of a graph write, and what is joined; of scatters their results and the updates.

    `drop`: leave out the clones that the pass drops.
    """
    total = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in COPIES and not (drop and node.target is aten.clone.default and not node.kwargs):
            total += _bytes(node.meta.get("val", node.args[0].meta.get("val")))
        elif node.target in JOINS:
            total += _bytes(node.meta["val"])
        elif node.target is aten.resize_.default:  # that grows: eager copies what was there
            old, new = _bytes(node.args[0].meta["val"]), _bytes(node.meta["val"])
            total += old if new > old else 0
        elif node.target in SCATTERS:
            total += _bytes(node.args[1].meta["val"]) + _bytes(node.meta["val"])
    return total


def compiled(program: Program, drop: bool) -> Compiled:
    passes = (drop_clones,) if drop else ()
    try:
        with torch.no_grad():
            fast = piped(program.build(), program.make_args(), passes=passes)
    except ReinkError as error:
        pytest.skip(f"refused: {error.code}")
    found: Compiled = fast.compiled  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("drop", [False, True], ids=["as written", "clones dropped"])
@pytest.mark.parametrize("program", STATIC, ids=str)
def test_every_copy_of_the_lowered_graph_is_the_users_or_in_the_report(program: Program, drop: bool) -> None:
    result = compiled(program, drop)
    assert not result.fallback, result.fallback
    assert result.lowered is not None
    report = result.report()
    by_user = copied_bytes(result.captured.graph, drop=drop)
    assert copied_bytes(result.lowered.graph) <= by_user + report.bytes_cloned


@pytest.mark.parametrize("program", STATIC, ids=str)
def test_the_report_counts_no_copy_that_is_not_there(program: Program) -> None:
    result = compiled(program, True)
    assert result.lowered is not None
    assert result.report().bytes_cloned <= copied_bytes(result.lowered.graph)
