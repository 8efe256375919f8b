"""User passes on the pure graph: whatever keeps its value keeps the program right, also what makes copies needed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.fx
from corpus import PROGRAMS
from corpus.registry import Program
from support.judge import compare
from support.library import LONG, compiled, piped

from reink.api import compile_function
from reink.core.region import overlaps_itself
from reink.errors import ReinkError, refusal_in
from reink.fuzz.shuffle import shuffle_pass

aten = torch.ops.aten
Graph = torch.fx.Graph


def drop_clones(graph: Graph) -> None:
    """In a pure graph a clone is its source. Leaves late reads of old versions."""
    for node in list(graph.nodes):
        if node.target is aten.clone.default and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def clone_every_result(graph: Graph) -> None:
    """The opposite: nodes without order and without values, which the pipeline has to complete.

    A clone closes gaps, so what an operator is given that reads by strides stays as it is. So do elements that share
    memory, of which it makes several, and flags seen in other numbers, of which it makes zeros and ones.
    """
    for node in list(graph.nodes):
        if any(user.target is aten.as_strided_copy.default for user in node.users) or _is_more_than_values(node):
            continue
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) and node.users:
            with graph.inserting_after(node):
                copied = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.preserve_format})
            node.replace_all_uses_with(copied, lambda user, new=copied: user is not new)


def _is_more_than_values(node: torch.fx.Node) -> bool:
    """Whether a clone of the result of `node` is another thing."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    flags = value.dtype == torch.bool and isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    layout = tuple(value.size()), tuple(value.stride())
    return flags or (all(type(n) is int for n in sum(layout, ())) and overlaps_itself(*layout))


def _eligible(program: Program) -> bool:
    return not program.handed_over and not program.may_refuse


# Always tried: it was wrong once.
NAMED = frozenset({"wider_view_of_one_row"})
CHOSEN = NAMED | {p.name for p in random.Random(5).sample(PROGRAMS, 60)}
SAMPLE = [p for p in PROGRAMS if LONG or p.name in CHOSEN]


@pytest.mark.parametrize("change", [drop_clones, clone_every_result], ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", [p for p in SAMPLE if _eligible(p)], ids=str)
def test_program_stays_right_under_a_pass(program: Program, change: Callable[[Graph], None]) -> None:
    passes = (change, shuffle_pass(3))
    with torch._dynamo.config.patch(capture_scalar_outputs=program.scalars):
        compare(
            program.build(),
            program.make_args,
            lambda fn: compiled(fn, passes=passes, dynamic=program.dynamic, fullgraph=program.fullgraph),
            grad_mode=program.grad_mode,
        )


def _row_kept(x: torch.Tensor) -> torch.Tensor:
    kept = x[1].clone()
    x.mul_(2)
    return kept + x[1]


def test_a_dropped_clone_comes_back_as_the_fewest_bytes() -> None:
    fast = piped(_row_kept, (torch.ones(64, 4),), passes=(drop_clones,))
    compare(_row_kept, lambda: (torch.ones(64, 4),), lambda _: fast)
    report = fast.compiled.report()  # type: ignore[attr-defined]
    assert report.bytes_cloned == 4 * 4
    assert [d.outcome for d in report.copies] == ["saved"]


def _late_sine(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    waves = y.sin()
    y.mul_(2)
    return waves + y


def test_a_reader_that_a_pass_moved_late_is_hoisted() -> None:
    def move_last(graph: Graph) -> None:
        sine = next(n for n in graph.nodes if n.target is aten.sin.default)
        for node in graph.nodes:
            node.meta.pop("reink_order", None)
        final = next(n for n in graph.nodes if n.op == "output").args[0][0]
        final.prepend(sine)

    fast = piped(_late_sine, (torch.ones(8),), passes=(move_last,))
    compare(_late_sine, lambda: (torch.ones(8),), lambda _: fast)
    report = fast.compiled.report()  # type: ignore[attr-defined]
    assert report.bytes_cloned == 0
    assert "hoisted" in [d.outcome for d in report.decisions]


def _two_sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    part = x.t()[1:, 2:].sum()
    whole = x.sum()
    x.add_(1)
    return part, whole


@pytest.mark.parametrize("seed", range(8))
def test_a_view_of_a_saved_value_moves_with_it(seed: int) -> None:
    """Also when nothing else reads what lies between the two."""

    def sum_last(graph: Graph) -> None:
        for node in [n for n in graph.nodes if n.target is aten.sum.default]:
            graph.output_node().prepend(node)

    inputs = (torch.arange(16.0).view(4, 4),)
    fast = compile_function(_two_sums, inputs, {"passes": (sum_last,)}, dice=random.Random(seed))
    assert not fast.compiled.fallback
    compare(_two_sums, lambda: (torch.arange(16.0).view(4, 4),), lambda _: fast)


def _writes(graph: Graph) -> None:
    sine = next(n for n in graph.nodes if n.target is aten.sin.default)
    with graph.inserting_after(sine):
        graph.call_function(aten.add_.Tensor, (sine, 1))


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(lambda graph: graph.output(()), id="second output"),
        pytest.param(lambda graph: next(iter(graph.nodes)).graph.erase_node(None), id="raises"),
        pytest.param(_writes, id="writes"),
    ],
)
def test_a_pass_that_breaks_the_graph_is_refused(bad: Callable[[Graph], None]) -> None:
    with pytest.raises(ReinkError) as caught:
        piped(_late_sine, (torch.ones(8),), passes=(bad,))
    assert caught.value.code == "pass-failed"
    assert refusal_in(caught.value) is caught.value


def test_the_graph_of_a_pass_is_pure_and_returns_new_values() -> None:
    seen: list[int] = []

    def look(graph: Graph) -> None:
        returned = next(n for n in graph.nodes if n.op == "output").args[0]
        seen.append(len(returned))
        assert all(n.target is not aten.copy_.default for n in graph.nodes)

    piped(lambda x: x.mul_(2).sum(), (torch.ones(3),), passes=(look,))
    assert seen == [2]
