"""A program on its way through reink: an fx graph, the form it is in, and what must happen at its boundary."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.fx

from reink.core.torch_internals import NodeAppender, print_by_name
from reink.report import Source

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


class Form(Enum):
    """What a graph may contain. Each step takes one form and gives another; the pipeline checks both."""

    MUTABLE = "mutable"
    FUNCTIONAL = "functional"
    INPLACE = "inplace"
    LOWERED = "lowered"


@print_by_name
class ViewStep(NamedTuple):
    """One view operator applied to a tensor: the operator's name and its arguments after the tensor.

    The name is text because fx cannot print an operator inside a tuple. `args` may hold fx nodes for
    symbolic integers, which fx then tracks as inputs of the node that carries the step.
    """

    op: str
    args: tuple[Any, ...] = ()


@print_by_name
class BaseView(NamedTuple):
    """An argument of a v2 call: base number `base`, seen through `steps`, outermost first."""

    base: int
    steps: tuple[ViewStep, ...] = ()


class OutputKind(Enum):
    """Where the memory of an output comes from, as eager has it."""

    FRESH = "fresh"
    INPUT_ALIAS = "alias of an input"
    GROUP_ALIAS = "alias of a base among the extra results"
    OTHER = "not a tensor"


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """How output number k of the user's program is made.

    ``FRESH``: the graph's result k is the answer, in memory of its own. ``INPUT_ALIAS``: `steps` applied
    to input `source` after the epilogue. ``GROUP_ALIAS``: `steps` applied to extra result `source` (an
    index into the graph's whole result tuple). ``OTHER``: result k as it is. `same_as`: the very tensor object
    that an earlier output is, or -1. `like`: a fake tensor with the layout that eager gives a fresh output.
    """

    kind: OutputKind
    source: int = -1
    steps: tuple[ViewStep, ...] = ()
    same_as: int = -1
    like: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class InputMutation:
    """Input number `input` is written; result number `result` of the functional graph is its new value."""

    input: int
    result: int


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """The tensor object that is the user's input number `input`, called `name`, becomes what output number `output` is:
    a view of its own memory, in which its sizes, strides and start from now on lie."""

    input: int
    output: int
    name: str


class Donated(NamedTuple):
    """Input number `input`, or a tensor in it, is what the caller gives away as `argument`."""

    input: int
    argument: str


@dataclass(frozen=True, slots=True)
class MutationSignature:
    """What the pure graph leaves to its boundary.

    The functional graph returns the user's `outputs` in order, with one more for each entry of `changes`, then a new
    value for each entry of `mutations`, then the bases that several outputs share. `inputs` are the names of the
    placeholders; `reshaped` lists those of which an object has other sizes, strides or start at some time.
    `offset_sensitive` lists inputs whose own storage offset is part of the program (an `as_strided` with an
    explicit offset), as (input, offset in elements). `identical` lists the results that are the very tensor objects
    which the user's program was given, as (result, position among the user's inputs). `donated` lists inputs that the
    caller gives away: nobody reads them afterwards, and the graph neither writes nor returns them as the user wrote it.
    `known` is False before functionalize has filled the rest in.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    mutations: tuple[InputMutation, ...] = ()
    offset_sensitive: tuple[tuple[int, int], ...] = ()
    epilogue_in_graph: bool = False
    known: bool = True
    identical: tuple[tuple[int, int], ...] = ()
    changes: tuple[ObjectChange, ...] = ()
    reshaped: tuple[int, ...] = ()
    donated: tuple[Donated, ...] = ()

    @property
    def mutated_inputs(self) -> tuple[int, ...]:
        """Positions of the inputs that the program writes."""
        return tuple(m.input for m in self.mutations)

    @property
    def donated_inputs(self) -> frozenset[int]:
        """Positions of the inputs whose memory is the graph's own."""
        return frozenset(d.input for d in self.donated)


@dataclass(slots=True)
class Program:
    """A graph in a known form. `module` owns the graph and the constants that its ``get_attr`` nodes name.

    `out_spec` is the pytree structure of the user's result (None: a flat tuple). `subgraphs` are the graphs that calls
    of this one run, by the name that its ``get_attr`` nodes give them. `bare`: the graph returns its one result itself,
    not a tuple of it.
    """

    module: torch.fx.GraphModule
    form: Form
    signature: MutationSignature = MutationSignature(known=False)
    out_spec: Any = None
    subgraphs: dict[str, Program] = field(default_factory=dict)
    bare: bool = False

    @property
    def graph(self) -> torch.fx.Graph:
        return self.module.graph

    def placeholders(self) -> list[torch.fx.Node]:
        """The inputs, in order."""
        return list(self.graph.find_nodes(op="placeholder"))

    def output(self) -> torch.fx.Node:
        """The one output node, which is the last node."""
        last: torch.fx.Node = next(iter(reversed(self.graph.nodes)))
        return last

    def results(self) -> list[Any]:
        """The values that the graph returns, flat."""
        returned = self.output().args[0]
        return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def attribute_of(module: torch.nn.Module, name: str) -> Any:
    """The attribute of a module that a ``get_attr`` node names, with its path; None if there is none."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def source_of(node: torch.fx.Node) -> Source | None:
    """The user's line that `node` came from, read from the stack trace that Dynamo or capture left on it."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return None
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return None
    found = next((f for f in reversed(frames) if "/site-packages/torch/" not in f["file"]), frames[-1])
    line = int(found["line"])
    text = linecache.getline(found["file"], line).strip()
    return Source(found["file"], line, found["function"], text)


def tensors_in(value: Any) -> Iterator[torch.fx.Node]:
    """The fx nodes inside an argument, through lists, tuples, dicts and slices, in order, with repeats."""
    if isinstance(value, torch.fx.Node):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, slice):
        yield from tensors_in((value.start, value.stop, value.step))


def copy_nodes(source: torch.fx.Graph, target: torch.fx.Graph, made: dict[torch.fx.Node, torch.fx.Node]) -> None:
    """Copy the nodes of `source`, without its output, into `target`; `made` gets the copy of each, and may know some.

    Values and facts of nodes are shared; calls are named anew.
    """
    append, copy = NodeAppender(target).append, made.__getitem__
    for node in source.nodes:
        if node in made or node.op == "output":
            continue
        if node.op == "call_function":
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), copy)
            new = append(node.target, args, kwargs)
        else:
            new = target.node_copy(node, copy)
        new.meta = dict(node.meta)
        made[node] = new


def copied(program: Program) -> Program:
    """A copy with a graph of its own, and so for the graphs inside it; values and facts of nodes are shared."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    originals = [n for n in program.graph.nodes if n.op != "output"]
    for new, old in zip(graph.nodes, originals, strict=False):
        new.meta = dict(old.meta)
    subgraphs = {name: copied(inner) for name, inner in program.subgraphs.items()}
    return replace(program, module=torch.fx.GraphModule(program.module, graph), subgraphs=subgraphs)
