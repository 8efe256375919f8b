"""The stock pipeline repaired: what ``torch.compile`` leaves to Inductor's re-inplacing is decided by reink.

Two custom passes of Inductor. The first sees the joint graph before any pass drops a copy, and notes which arguments of
a call lie in memory that it writes. The second comes last of all passes on the pure graph, after Inductor's patterns
and the user's passes, and puts the lowered graph in its place: nothing is left for Inductor to re-inplace.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx

from reink.backends.announcing import announce
from reink.backends.mutable_call import Unsupported  # and the operator that cached code calls
from reink.backends.stock import FunctionalGraph, compile_functional
from reink.core.aliasing import view_value
from reink.core.opinfo import COLLECTIVES, facts_of
from reink.core.program import ViewStep, attribute_of, copy_nodes, source_of
from reink.core.stock_calls import STOCK_CALLS, mark_shared_operands
from reink.core.torch_internals import inductor_config, inductor_pass, pytree, user_results
from reink.core.views import step_operator
from reink.errors import ReinkError
from reink.options import Options
from reink.pipeline import Compiled, without_collection
from reink.report import Report

Node = torch.fx.Node
aten = torch.ops.aten
log = logging.getLogger("reink")

_FIRST, _LAST = "joint_custom_pre_pass", "post_grad_custom_post_pass"
# Writes at places that the data decide, of which a compiler that sees no aliasing copies the whole operand.
_INDEXED = frozenset({aten.index_put.default, aten._unsafe_index_put.default})
# What a pass that came from the pure graph says of a node, and Inductor wants to know of the lowered one.
_SAID = ("unbacked_bindings", "eager_input_vals", "original_aten", "from_node", "seq_nr", "partitioner_tag", "custom")


class Repairs:
    """What was repaired since `in_inductor` or `enable_in_inductor`, and what was left to the stock pipeline.

    `reports` has one Report for each repaired graph, `left` a reason for each that had something to repair and was left
    as it is. A graph that a compile cache answers is not compiled, and has no report.
    """

    def __init__(self) -> None:
        self._compiled: list[Compiled] = []
        self.left: list[str] = []

    @property
    def reports(self) -> list[Report]:
        """One Report for each repaired graph, oldest first."""
        return [c.report() for c in self._compiled]

    def repair(self, graph: torch.fx.Graph) -> None:
        """Put the lowered form of a functional `graph` in its place, if there is anything to put in place."""
        module = graph.owning_module
        if module is None or not any(_is_write(n) for n in graph.nodes):
            return
        try:
            with without_collection():
                taken = FunctionalGraph.of(module, settle=True)
                options = Options()
                self._put(module, compile_functional(taken, options, _name(graph), _saved(graph)))
        except ReinkError as error:
            self._leave(f"{error.what} [{error.code}]")

    def _put(self, module: torch.fx.GraphModule, compiled: Compiled) -> None:
        if compiled.lowered is None or compiled.fallback:
            self._leave(compiled.fallback)
            return
        inductor = importlib.import_module("reink.backends.inductor")  # with the rules for lowering what writes
        try:
            form = inductor.inductor_form(compiled.lowered, settled=True)
        except Unsupported as error:
            self._leave(f"Inductor cannot be given {error}")
            return
        replace_graph(module, form.module, form.results)
        self._compiled.append(compiled)
        announce(compiled)

    def _leave(self, why: str) -> None:
        self.left.append(why)
        log.warning("a graph is left to the stock pipeline: %s", why)


def _is_write(node: Node) -> bool:
    """Whether Inductor would decide about memory of `node`."""
    if node.op != "call_function":
        return False
    if node.target in STOCK_CALLS or node.target in _INDEXED or node.target is aten.copy_.default:
        return True
    facts = facts_of(node.target)
    return bool(facts.window) or (facts.name.startswith(COLLECTIVES) and facts.in_place is not None)


def _name(graph: torch.fx.Graph) -> str:
    """The function that the first line of the graph stands in."""
    sources = (source_of(n) for n in graph.nodes if n.op == "call_function")
    found = next((s for s in sources if s is not None), None)
    return found.function if found is not None else "graph"


def _saved(graph: torch.fx.Graph) -> range:
    """The results of a forward graph that only its backward graph takes, which eager keeps without a copy."""
    inputs = [str(n.target) for n in graph.find_nodes(op="placeholder")]
    output = next(iter(reversed(graph.nodes)))
    first = user_results()
    backward = any(name.startswith("tangents_") for name in inputs)
    return range(0) if first is None or backward else range(first, len(pytree.tree_leaves(output.args[0])))


def replace_graph(
    module: torch.fx.GraphModule,
    new: torch.fx.GraphModule,
    results: Sequence[tuple[int, tuple[ViewStep, ...], Any]],
) -> None:
    """Let the graph of `module` compute what that of `new` does, between the same inputs and the same output nodes.

    Result k is result ``results[k][0]`` of `new`, seen through ``results[k][1]``; or, for -1, ``results[k][2]``.
    """
    graph = module.graph
    output = next(iter(reversed(graph.nodes)))
    old = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    inputs = (graph.find_nodes(op="placeholder"), new.graph.find_nodes(op="placeholder"))
    made: dict[Node, Node] = dict(zip(inputs[1], inputs[0], strict=True))
    with graph.inserting_before(output):
        copy_nodes(new.graph, graph, made)
        for node, copy in made.items():
            _tell(copy, node)
            if node.op == "get_attr" and not hasattr(module, str(node.target)):
                setattr(module, str(node.target), attribute_of(new, str(node.target)))
        returned: Any = next(iter(reversed(new.graph.nodes))).args[0]
        leaves = [value if k < 0 else _viewed(made[returned[k]], steps) for k, steps, value in results]
    _, packing = pytree.tree_flatten(output.args[0])
    output.args = (pytree.tree_unflatten(leaves, packing),)
    for node in reversed(old):
        graph.erase_node(node)


def _tell(new: Node, node: Node) -> None:
    """Keep what was said of the node that `node` was made for."""
    if node.op == "placeholder":
        return
    new.meta = {k: v for k, v in node.meta.items() if not k.startswith("reink_")}
    made_for: Node | None = node.meta.get("reink_of")
    origin: Node | None = made_for.meta.get("reink_from") if made_for is not None else None
    for key in _SAID if origin is not None else ():
        assert origin is not None
        if key in origin.meta and (key != "eager_input_vals" or origin.target is node.target):
            new.meta[key] = origin.meta[key]


def _viewed(node: Node, steps: Sequence[ViewStep]) -> Node:
    for step in steps:
        value = node.meta["val"]
        node = node.graph.call_function(step_operator(step), (node, *step.args))
        node.meta["val"] = view_value(value, step)
    return node


# -- the slots of Inductor ---------------------------------------------------------------------------


def _enter(repairs: Repairs) -> Callable[[], None]:
    """Put the passes into their slots, the first before and the last after those of the user; returns the way back."""
    config = inductor_config()
    before = {slot: getattr(config, slot) for slot in (_FIRST, _LAST)}
    setattr(config, _FIRST, [inductor_pass(mark_shared_operands), *_listed(before[_FIRST])])
    setattr(config, _LAST, [*_listed(before[_LAST]), inductor_pass(repairs.repair)])

    def leave() -> None:
        for slot, passes in before.items():
            setattr(config, slot, passes)

    return leave


def _listed(passes: Any) -> list[Any]:
    if passes is None:
        return []
    return list(passes) if isinstance(passes, (list, tuple)) else [passes]


@contextmanager
def in_inductor() -> Iterator[Repairs]:
    """``torch.compile`` with stock Inductor, repaired, for what is compiled inside.

    Functional calls of mutable operators, scatters, indexed writes and collectives are put back in place by reink.
    Gives a `Repairs`, whose `reports` say what became of each write.
    """
    repairs = Repairs()
    leave = _enter(repairs)
    try:
        yield repairs
    finally:
        leave()


_enabled: list[Callable[[], None]] = []


def enable_in_inductor() -> Repairs:
    """As `in_inductor`, from here on, until `disable_in_inductor`. To be called once."""
    disable_in_inductor()
    repairs = Repairs()
    _enabled.append(_enter(repairs))
    return repairs


def disable_in_inductor() -> None:
    """Undo `enable_in_inductor`; what has been compiled stays as it is."""
    while _enabled:
        _enabled.pop()()
