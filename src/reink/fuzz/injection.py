"""Faults put into a lowered program on purpose: do the ownership check and the value proof refuse each one that shows?

A fault is one edit of the lowered graph of a kind that an optimiser could make by mistake: a copy dropped, a read
moved past a write, two writes swapped, a storage used again too early. It shows if a result, an input's memory or
who shares memory with whom differs from eager on one of the inputs that are tried.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor

from reink.api import CompiledFunction
from reink.check import check_ownership, prove_values
from reink.core.opinfo import facts_of
from reink.core.program import Program, copied
from reink.judge import Observed, differences, observe

Node = torch.fx.Node
Graph = torch.fx.Graph
aten = torch.ops.aten

# How far a node is moved.
FARTHEST = 6

Edit = Callable[[], None]
Fault = Callable[[Graph, Node], Iterator[Edit]]
Maker = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault: its kind, the name of the node that was edited, and the program with the fault."""

    fault: str
    node: str
    program: Program

    def __str__(self) -> str:
        return f"{self.fault} at {self.node} shows and is not refused\n{self.program.graph}"


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of injected faults. A hidden one changes nothing that was seen, so it may be accepted.

    `caught` are those that the ownership check or the value proof refused, `by_ownership` and `by_proof` those that
    each did. `escaped` shows those that changed a result and were accepted by both: kind, node and graph of each.
    """

    caught: int = 0
    hidden: int = 0
    escaped: tuple[str, ...] = ()
    by_ownership: int = 0
    by_proof: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.caught + other.caught,
            self.hidden + other.hidden,
            self.escaped + other.escaped,
            self.by_ownership + other.by_ownership,
            self.by_proof + other.by_proof,
        )


def inject(function: CompiledFunction, makers: Sequence[Maker], rng: random.Random, count: int) -> Tally:
    """Put `count` single faults into the lowered form of `function`, each into the right program."""
    compiled = function.compiled
    if compiled.plan is None or compiled.lowered is None or compiled.fallback:
        return Tally()
    order = [s.node for s in compiled.plan.steps]
    expected = [observe(function, make()) for make in makers]
    tally = Tally()
    for injected in itertools.islice(_random_faults(compiled.lowered, rng), count):
        unowned = not check_ownership(compiled.functional, order, injected.program).ok
        refuted = not prove_values(compiled.functional, injected.program).ok
        if not _shows(function, injected.program, makers, expected):
            tally += Tally(hidden=1)
        elif unowned or refuted:
            tally += Tally(caught=1, by_ownership=int(unowned), by_proof=int(refuted))
        else:
            tally += Tally(escaped=(str(injected),))
    return tally


def _random_faults(lowered: Program, rng: random.Random) -> Iterator[Injected]:
    """Single faults at random nodes, without end, unless the program offers none."""
    places = [(k, fault) for k in range(len(lowered.graph.nodes)) for fault in FAULTS]
    rng.shuffle(places)
    for position, fault in itertools.cycle(places):
        mutant = copied(lowered)
        node = list(mutant.graph.nodes)[position]
        edits = list(fault(mutant.graph, node))
        if edits:
            rng.choice(edits)()
            mutant.module.recompile()
            yield Injected(fault.__name__, node.name, mutant)
        elif (position, fault) == places[-1] and not _offers(lowered):
            return


def _offers(lowered: Program) -> bool:
    return any(next(fault(lowered.graph, n), None) for n in lowered.graph.nodes for fault in FAULTS)


def _shows(function: CompiledFunction, mutant: Program, makers: Sequence[Maker], expected: Sequence[Observed]) -> bool:
    for make, want in zip(makers, expected, strict=True):
        try:
            got = observe(lambda *inputs: function.run(mutant, inputs), make())
        except Exception:  # a program that cannot run is seen to be wrong
            return True
        if differences(want, got):
            return True
    return False


# -- the faults --------------------------------------------------------------------------------------------


def role(node: Node) -> str:
    """What the node does for the pure program."""
    return str(node.meta.get("reink_role", ""))


def dropped_copy(graph: Graph, node: Node) -> Iterator[Edit]:
    """A copy that keeps an old value is replaced by its source."""

    def apply() -> None:
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        graph.erase_node(node)

    if role(node) == "copy" and node.target is aten.clone.default:
        yield apply


def unfilled_copy(graph: Graph, node: Node) -> Iterator[Edit]:
    """A copy gets memory and no content."""
    if role(node) == "copy" and node.target is aten.clone.default:
        yield lambda: setattr(node, "target", aten.empty_like.default)


def dropped_write(graph: Graph, node: Node) -> Iterator[Edit]:
    """A write does not happen: an in-place operator, a copy into a window or an input, a call."""
    if role(node) in ("in place", "write", "epilogue", "call") and not node.users:
        yield lambda: graph.erase_node(node)


def moved_later(graph: Graph, node: Node) -> Iterator[Edit]:
    """A node moves down past others, as far as its users allow: a read past a write, a write past a read or write."""
    if node.op != "call_function":
        return
    after = node
    for _ in range(FARTHEST):
        after = after.next
        if after.op == "output" or node in after.all_input_nodes:
            return
        yield lambda target=after: target.append(node)  # type: ignore[misc]


def reused_storage(graph: Graph, node: Node) -> Iterator[Edit]:
    """A result goes into the memory of the first operand, needed later or not."""
    twin = facts_of(node.target).in_place if role(node) == "run" and node.op == "call_function" else None

    def apply() -> None:
        node.target = twin  # type: ignore[assignment]
        node.meta["reink_role"] = "in place"

    if twin is not None and node.args and isinstance(node.args[0], Node):
        yield apply


def wrong_window(graph: Graph, node: Node) -> Iterator[Edit]:
    """A view is another part of the same tensor."""
    if node.target not in (aten.select.int, aten.slice.Tensor) or node.op != "call_function":
        return
    numbers: list[Any] = list(node.args)
    if not all(isinstance(n, int) for n in numbers[1:]):
        return
    if node.target is aten.select.int:
        for index in range(4):
            if index != numbers[2]:
                changed = (*numbers[:2], index)
                yield lambda args=changed: setattr(node, "args", args)  # type: ignore[misc]
    for by in (-1, 1):
        if node.target is aten.slice.Tensor and len(numbers) == 4 and numbers[2] + by >= 0:
            moved = (*numbers[:2], numbers[2] + by, numbers[3] + by)
            yield lambda args=moved: setattr(node, "args", args)  # type: ignore[misc]


def wrong_base(graph: Graph, node: Node) -> Iterator[Edit]:
    """An operand is another tensor of the same size and dtype: memory that is used again too early, or a lost copy."""
    if node.op != "call_function":
        return
    earlier = list(itertools.takewhile(lambda n: n is not node, graph.nodes))
    for used in _tensor_operands(node):
        for other in earlier:
            if other is not used and _alike(used, other):
                yield lambda a=used, b=other: node.replace_input_with(a, b)  # type: ignore[misc]


def wrong_result(graph: Graph, node: Node) -> Iterator[Edit]:
    """The program returns another tensor of the same size and dtype."""
    if node.op == "output":
        for used in _tensor_operands(node):
            for other in list(graph.nodes):
                if other is not used and _alike(used, other):
                    yield lambda a=used, b=other: node.replace_input_with(a, b)  # type: ignore[misc]


def wrong_number(graph: Graph, node: Node) -> Iterator[Edit]:
    """A number is another one."""
    for k, argument in enumerate(node.args if role(node) in ("run", "in place") else ()):
        if isinstance(argument, (int, float)) and not isinstance(argument, bool):
            changed = (*node.args[:k], argument + 1, *node.args[k + 1 :])
            yield lambda args=changed: setattr(node, "args", args)  # type: ignore[misc]


def _alike(a: Node, b: Node) -> bool:
    """Whether both are tensors of one size and dtype; sizes are compared as text, which asks nothing of symbols."""
    one, other = a.meta.get("val"), b.meta.get("val")
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one.dtype == other.dtype and str(one.shape) == str(other.shape)


def _tensor_operands(node: Node) -> list[Node]:
    return [a for a in node.all_input_nodes if isinstance(a.meta.get("val"), Tensor)]


FAULTS: tuple[Fault, ...] = (
    dropped_copy,
    unfilled_copy,
    dropped_write,
    moved_later,
    reused_storage,
    wrong_window,
    wrong_base,
    wrong_result,
    wrong_number,
)
