"""Calls that run graphs of their own, ``cond`` and ``while_loop``: which graphs, and what each graph is given.

Every graph of a call takes the same inputs in the same order: the carried values, the bases that some graph writes,
the rest. In a functional graph the call returns, after the user's results, a new value for each base; a loop carries
them. In a lowered graph the bases are written where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.fx

from reink.core.opinfo import operator_name
from reink.core.program import InputMutation, Program

Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class SubgraphCall:
    """The parts of a call. `head`: what stands before the graphs; `graphs`: the nodes that name them.

    `carried` and `shared` are what the graphs are given; a loop gives its carried values anew in each round.
    """

    head: tuple[Any, ...]
    graphs: tuple[Node, ...]
    carried: tuple[Any, ...]
    shared: tuple[Any, ...]

    @property
    def operands(self) -> tuple[Any, ...]:
        """What each graph is given, in the order of its inputs."""
        return (*self.carried, *self.shared)

    @property
    def writers(self) -> tuple[Node, ...]:
        """The graphs whose results the call returns; another one only decides whether there is a next round."""
        return self.graphs if not self.carried else self.graphs[1:]


@dataclass(frozen=True, slots=True)
class _Form:
    """How one operator takes its parts, and the reverse: arguments from head, graphs, carried, bases, rest, and whether
    the bases are written where they lie."""

    parts: Callable[[tuple[Any, ...]], SubgraphCall]
    arguments: Callable[[SubgraphCall, tuple[Any, ...], bool], tuple[Any, ...]]


def _cond_parts(args: tuple[Any, ...]) -> SubgraphCall:
    return SubgraphCall((args[0],), (args[1], args[2]), (), tuple(args[3]))


def _cond_arguments(call: SubgraphCall, bases: tuple[Any, ...], in_place: bool) -> tuple[Any, ...]:
    return (*call.head, *call.graphs, (*bases, *call.shared))


def _loop_parts(args: tuple[Any, ...]) -> SubgraphCall:
    return SubgraphCall((), (args[0], args[1]), tuple(args[2]), tuple(args[3]))


def _loop_arguments(call: SubgraphCall, bases: tuple[Any, ...], in_place: bool) -> tuple[Any, ...]:
    if in_place:
        return (*call.graphs, call.carried, (*bases, *call.shared))
    return (*call.graphs, (*call.carried, *bases), call.shared)


_FORMS = {"cond": _Form(_cond_parts, _cond_arguments), "while_loop": _Form(_loop_parts, _loop_arguments)}


def subgraph_call(node: Node) -> SubgraphCall | None:
    """The parts of a call as captured; None for an operator that is not followed into its graphs."""
    form = _FORMS.get(operator_name(node.target)) if node.op == "call_function" else None
    return None if form is None else form.parts(node.args)


def arguments_of(target: Any, call: SubgraphCall, bases: tuple[Any, ...], *, in_place: bool) -> tuple[Any, ...]:
    """The arguments of a call of `target`, functional or, `in_place`, lowered."""
    return _FORMS[operator_name(target)].arguments(call, bases, in_place)


@dataclass(frozen=True, slots=True)
class FunctionalCall:
    """A call in a functional graph: its parts without `bases`, the bases, and how many results are the user's.

    Result ``count + k`` is the new value of base k.
    """

    call: SubgraphCall
    bases: tuple[Any, ...]
    count: int


def functional_call(program: Program, node: Node) -> FunctionalCall | None:
    """What a call of a functional `program` hands back; None if its graphs are not followed."""
    call = subgraph_call(node) if program.subgraphs else None
    if call is None:
        return None
    inner = [program.subgraphs.get(str(g.target)) for g in call.graphs]
    last = inner[-1]
    if last is None or None in inner:
        return None
    count, written = len(last.signature.outputs), len(last.signature.mutations)
    if call.carried:
        carried, bases = call.carried[:count], call.carried[count:]
        return FunctionalCall(SubgraphCall(call.head, call.graphs, carried, call.shared), bases, count)
    bases, shared = call.shared[:written], call.shared[written:]
    return FunctionalCall(SubgraphCall(call.head, call.graphs, (), shared), bases, count)


def with_new_values(inner: Program, first: int, count: int) -> None:
    """Let `inner` return a new value for `count` inputs from number `first` on; one that is not written, as it is."""
    signature, results, inputs = inner.signature, inner.results(), inner.placeholders()
    known = {m.input: results[m.result] for m in signature.mutations}
    own = results[: len(signature.outputs)]
    new = [known.get(k, inputs[k]) for k in range(first, first + count)]
    inner.output().args = ((*own, *new),)
    inner.bare = inner.bare and not new
    mutations = tuple(InputMutation(first + k, len(own) + k) for k in range(count))
    inner.signature = replace(signature, mutations=mutations)
