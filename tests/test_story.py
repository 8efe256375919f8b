"""The story that a report tells: events of the ledger, what stands behind each line, and what memory is held when."""

from __future__ import annotations

import pytest
import torch
from corpus import PROGRAMS, Program
from support import operators as _  # noqa: F401  registers the operators
from support.library import piped
from test_golden import running
from torch import Tensor

import reink
from reink.core.epilogue import with_epilogue
from reink.core.printing import program_text
from reink.errors import ReinkError
from reink.passes.capture import capture_callable, source_of_callable
from reink.passes.functionalize import functionalize
from reink.pipeline import Compiled
from reink.report import Event, Held, Line, Region, Report, Snapshot

ops = torch.ops.reink_fuzz


def column(x: Tensor) -> Tensor:
    x[:, 1].mul_(2)
    return x + 1


def called(x: Tensor) -> Tensor:
    f = x + 1
    ops.bump(f[1])
    return f


def told(report: Report, step: str) -> Snapshot:
    found = report.snapshot(step)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def report() -> Report:
    made: Report = reink.explain(running, (torch.ones(4, 4),), codegen="eager")
    return made


def test_the_ledger_of_the_running_example(report: Report) -> None:
    whole = Region(0, ((64, 1),))
    assert report.events == [
        Event("input", "x", 0, "x", "x", 0, whole),
        Event("name", "x", 0, "x", "x", 0, whole),
        Event("name", "x", 0, "view", "view", 1, whole),
        Event("view", "x", 0, "view", "add_", 1, whole),
        Event("write-back", "x", 1, "view_1", "add_", 1, whole),
        Event("name", "x", 1, "add_", "add_", 1, whole),
        Event("replay", "x", 1, "view_2", "relu_", 1, whole),
        Event("write-back", "x", 2, "view_3", "relu_", 1, whole),
        Event("name", "x", 2, "relu_", "relu_", 1, whole),
        Event("birth", "mul", 0, "mul", "mul", 0, whole),
        Event("name", "mul", 0, "mul", "mul", 0, whole),
        Event("epilogue", "x", 2, "copy_"),
    ]


def test_each_line_knows_its_node_its_source_and_what_is_behind_it(report: Report) -> None:
    texts = [source.text for source in report.sources]
    captured = told(report, "capture")
    assert [line.node for line in captured.lines] == ["", "view", "add_", "relu_", "mul", "output"]
    assert [texts[line.source] for line in captured.lines[1:-1]] == [
        "y = x.view(2, 8)",
        "y.add_(1)",
        "y.relu_()",
        "return x * 2",
    ]
    functional = told(report, "functionalize")
    assert [line.of for line in functional.lines[1:8]] == ["add_"] * 3 + ["relu_"] * 3 + ["mul"]
    assert functional.text.splitlines()[-2:] == ["    copy_(x, view_3)", "    return mul"]
    assert functional.lines[-2] == Line("copy_", "", -1, "epilogue")
    lowered = told(report, "lower")
    assert [(line.role, line.of) for line in lowered.lines[1:-1]] == [
        ("view", "add"),
        ("write", "add"),
        ("write", "relu"),
        ("pure", "mul"),
    ]


def test_memory_is_held_from_the_line_that_makes_it_to_its_last_use(report: Report) -> None:
    assert told(report, "capture").held == (Held("x", "input", 64, 0, 5), Held("mul", "result", 64, 4, 5))
    assert told(report, "functionalize").held == (
        Held("x", "input", 64, 0, 9),
        Held("add", "value", 64, 2, 5),
        Held("relu", "value", 64, 5, 8),
        Held("mul", "result", 64, 7, 9),
    )
    assert told(report, "lower").held == told(report, "capture").held


def test_a_region_is_counted_from_the_base_in_bytes() -> None:
    events = reink.explain(column, (torch.ones(4, 4),)).events
    (write,) = [event for event in events if event.kind == "write-back"]
    assert write.region == Region(4, ((4, 1), (4, 16)))


def test_a_call_tells_what_it_writes_and_copies_the_base_when_nothing_is_in_place() -> None:
    report = reink.explain(called, (torch.ones(4, 4),), codegen="eager")
    (write,) = [event for event in report.events if event.kind.startswith("write")]
    assert (write.storage, write.version, write.region) == ("add", 1, Region(16, ((16, 1),)))
    sizes = [held.bytes for held in told(report, "functionalize").held]
    assert sizes == [64, 64, 64]
    assert [held.bytes for held in told(report, "lower").held] == [64, 64]


def test_a_conflict_knows_the_bytes_in_the_way() -> None:
    def step(x: Tensor) -> Tensor:
        old = x[1] * 1
        x.mul_(2)
        return x[1] - old

    def drop(graph: torch.fx.Graph) -> None:
        """Read the old row itself, without the product that keeps it."""
        first = next(iter(graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)))
        first.replace_all_uses_with(first.args[0])
        graph.erase_node(first)

    (copy,) = reink.explain(step, (torch.ones(4, 4),), passes=(drop,), codegen="eager").copies
    assert copy.conflict is not None
    assert (copy.storage, copy.conflict.storage_bytes) == ("x", 64)
    assert copy.conflict.needed == Region(16, ((16, 1),))
    assert copy.conflict.written == (Region(0, ((64, 1),)),)


STATIC = [p for p in PROGRAMS if not p.handed_over and not p.may_refuse][::9]


@pytest.mark.parametrize("program", STATIC, ids=str)
def test_the_second_walk_tells_of_the_program_that_the_first_made(program: Program) -> None:
    try:
        with torch.no_grad():
            compiled: Compiled = piped(program.build(), program.make_args()).compiled  # type: ignore[attr-defined]
            report = compiled.report()
            first = functionalize(compiled.captured)
    except ReinkError as error:
        pytest.skip(f"refused: {error.code}")
    assert told(report, "functionalize").text == program_text(with_epilogue(first))
    for snapshot in report.snapshots:
        assert len(snapshot.lines) == len(snapshot.text.split("\n"))
        assert all(0 <= held.first <= held.last < len(snapshot.lines) for held in snapshot.held)
    for decision in report.copies:
        assert decision.reason
        assert decision.do


def test_a_compile_takes_no_notes() -> None:
    source = source_of_callable(running, (torch.ones(4, 4),))
    heard: list[str] = []
    functionalize(
        capture_callable(source, ()),
        record=lambda kind, place, version, node: heard.append(kind),
        watch=lambda node, value, graph: heard.append(node.name),
    )
    assert "write-back" in heard
    compiled: Compiled = piped(running, (torch.ones(4, 4),)).compiled  # type: ignore[attr-defined]
    assert compiled.outcome().events == []
