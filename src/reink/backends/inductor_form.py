"""A lowered program in the form in which Inductor's inner compiler may take it, with what was proved shielded.

Inductor is left the operators that are pure, and copies into parts of tensors, whose order it keeps. All else that
writes becomes a ``reink::call``. Views that are no memory to Inductor (another dtype, complex numbers, lazy bits) are
taken anew for each use, so that none of them is a copy made before a write. docs/inductor.md has the reasons.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from reink.backends.mutable_call import Encoded, Unsupported, call_of
from reink.core.aliasing import Place
from reink.core.decomposing import traced_decomposition
from reink.core.inductor_internals import decomposition_table, is_realized
from reink.core.opinfo import COLLECTIVES, LOOKING_ONLY, Kind, OpFacts, facts_of
from reink.core.program import Program, ViewStep
from reink.core.torch_internals import OpOverload, graph_module

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

# Views of which Inductor may make a copy.
COPIED_VIEWS = frozenset(
    {
        "aten.view.dtype",
        "aten.view_as_real.default",
        "aten.view_as_complex.default",
        "aten._conj.default",
        "aten._neg_view.default",
    }
)

# Writes at places that the data decide: Inductor generates them, and the values that go in are part of the kernel.
INDEXED_WRITES = frozenset({aten.index_put_.default})

_KEPT = ("val", "stack_trace", "reink_place", "reink_of")
_AS_STRIDED = "aten.as_strided.default"
_VIEWS = (Kind.VIEW, Kind.VIEW_LIST)


@dataclass(slots=True)
class InductorForm:
    """The graph for Inductor, and how the results of the program are made of its results.

    Result k of the program is result ``results[k][0]`` of the graph, seen through the views ``results[k][1]``; or,
    where the first is -1, the value ``results[k][2]``. A result that is the tensor object of an earlier one has the
    number of that in `same_as`, else its own. `given_away` are the inputs that calls write as a whole.
    """

    module: torch.fx.GraphModule
    results: list[tuple[int, tuple[ViewStep, ...], Any]] = field(default_factory=list)
    same_as: list[int] = field(default_factory=list)
    given_away: list[int] = field(default_factory=list)


def inductor_form(program: Program, *, settled: bool = False) -> InductorForm:
    """The form of a lowered `program`. Raises `Unsupported`.

    `settled`: the pure graph was Inductor's own, whose random numbers, collectives and regions stay as it has them.
    """
    return _Shielding(program, settled).run()


class _Shielding:
    def __init__(self, program: Program, settled: bool) -> None:
        self.program, self.settled = program, settled
        self.graph = torch.fx.Graph()
        self.made: dict[Node, Any] = {}
        self.order: Node | None = None
        self.given_away: set[Node] = set()
        self.roots: dict[Any, Node] = {}
        self.effects = sum(_has_effect(n) for n in program.graph.nodes)
        self.written = _written_memory(program)
        self.table = {
            op: rule
            for op, rule in decomposition_table().items()
            if isinstance(op, OpOverload) and facts_of(op).kind in _VIEWS
        }

    def run(self) -> InductorForm:
        for node in self.program.graph.nodes:
            if node.op == "output":
                break
            self._visit(node)
        results = self._results()
        for node in list(reversed(self.graph.nodes)):
            if node.op == "call_function" and not node.users and facts_of(node.target).kind in _VIEWS:
                self.graph.erase_node(node)
        inputs = self.graph.find_nodes(op="placeholder")
        away = [k for k, n in enumerate(inputs) if n in self.given_away]
        made = graph_module if self.settled else torch.fx.GraphModule
        return InductorForm(made(self.program.module, self.graph), *results, away)

    def _visit(self, node: Node) -> None:
        if node.op in ("placeholder", "get_attr"):
            self._keep(node)
            return
        facts, role = facts_of(node.target), node.meta.get("reink_role")
        if node in self.made or self._is_taken_anew(node, facts):
            return
        if self.settled and (role == "run" or facts.name.startswith(COLLECTIVES)):
            self._keep(node)
            return
        if facts.kind is Kind.SUBGRAPH:
            raise Unsupported(f"{facts.name}, which runs graphs of its own")
        if facts.name == _AS_STRIDED:
            self._strided(node)
        elif role in ("call", "in place") or node.target is aten.copy_.default:
            self._write(node)
        elif _has_effect(node):
            self._call(node)
        else:
            self._keep(node)

    def _is_taken_anew(self, node: Node, facts: OpFacts) -> bool:
        """Whether `node` is a view of which Inductor may make a copy: it is taken for each use."""
        if facts.kind not in (*_VIEWS, Kind.GETITEM):
            return False
        parent: Any = node.args[0]
        if parent not in self.made:
            return True
        if facts.name == _AS_STRIDED:
            place = node.meta.get("reink_place")
            if place is None or place.dtype is not place.buffer.root.dtype or place.buffer not in self.roots:
                return True
            return _is_complex(node)  # PyTorch's own kernel makes it, which counts from the start of the storage
        return facts.kind in _VIEWS and (facts.name in COPIED_VIEWS or _is_complex(node) or _is_complex(parent))

    # -- values ----------------------------------------------------------------------------------

    def _keep(self, node: Node) -> Node:
        new = self._copied(node)
        new.meta = {k: node.meta[k] for k in _KEPT if k in node.meta}
        place = node.meta.get("reink_place")
        if isinstance(place, Place) and place.is_root and place.buffer in self.written and node.op == "call_function":
            new.meta["inductor_realize_to_strides"] = True  # it will be memory that something else is given
        self.made[node] = new
        if isinstance(place, Place) and place.is_root:
            self.roots[place.buffer] = new
        return new

    def _strided(self, node: Node) -> None:
        """A strided view of the memory itself, with its place in the storage: nothing is left for Inductor to count."""
        place: Place = node.meta["reink_place"]
        root, itemsize = self.roots[place.buffer], place.dtype.itemsize
        offset = place.offset // itemsize
        if type(offset) is not int or place.offset % itemsize:
            raise Unsupported("a strided view at a symbolic place")
        new = self._keep(node)
        if root.op == "placeholder":
            offset += root.meta["val"].storage_offset()
        new.args = (root, *new.args[1:3], offset)

    def use(self, node: Node) -> Any:
        """What stands for a value of the lowered graph where it is used next."""
        found = self.made.get(node)
        if found is not None:
            return found
        facts = facts_of(node.target)
        if facts.kind not in (*_VIEWS, Kind.GETITEM) or facts.name == _AS_STRIDED:
            raise Unsupported(f"a result of {facts.name}")
        new = self._copied(node)
        new.meta = {k: node.meta[k] for k in _KEPT if k in node.meta}
        return new

    def _copied(self, node: Node) -> Node:
        """A copy of `node`; of what is decomposed, its parts."""
        if node.target not in self.table:
            return self.graph.node_copy(node, self.use)
        traced = traced_decomposition(node, self.table)
        if traced is None:
            raise Unsupported(f"{facts_of(node.target).name} undecomposed")
        made = {
            n: self.use(o) for n, o in zip(traced.graph.find_nodes(op="placeholder"), node.all_input_nodes, strict=True)
        }
        for inner in traced.graph.nodes:
            if inner.op == "call_function":
                made[inner] = self.graph.node_copy(inner, lambda n: made[n])
                made[inner].meta = {"val": inner.meta.get("val")}
        output: Any = next(iter(reversed(traced.graph.nodes))).args[0]
        if not isinstance(output, Node):
            raise Unsupported(f"several results of {facts_of(node.target).name}")
        return made[output]  # type: ignore[no-any-return]

    def _memory_of(self, node: Node) -> tuple[Node, list[ViewStep]]:
        """The value of the new graph that stands for `node` or for the tensor that it is a view of, and the steps."""
        steps: list[ViewStep] = []
        while node not in self.made:
            facts, parent = facts_of(node.target), node.args[0]
            if facts.kind is not Kind.VIEW or not isinstance(parent, Node):
                raise Unsupported(f"a view through {facts.name}")
            steps.append(ViewStep(facts.name, tuple(node.args[1:])))
            node = parent
        return self.made[node], steps[::-1]

    # -- writes ----------------------------------------------------------------------------------

    def _write(self, node: Node) -> None:
        if self._is_kept(node):
            self._keep(node)
        else:
            self._call(node)

    def _is_kept(self, node: Node) -> bool:
        """Whether a write may be left to Inductor as it is."""
        target: Any = node.args[0] if node.args else None
        if not isinstance(target, Node) or target not in self.made or _is_complex(target):
            return False
        if node.target is aten.copy_.default:
            return not _is_fresh_root(target)
        return node.target in INDEXED_WRITES and not self._reads_lazily(node, target)

    def _reads_lazily(self, node: Node, target: Any) -> bool:
        """Whether what is written, or where, might be computed from the written memory while it is written."""
        place = target.meta.get("reink_place")
        stack, seen = [n for n in node.all_input_nodes if n is not target], set[Node]()
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            at = current.meta.get("reink_place")
            if isinstance(at, Place) and isinstance(place, Place) and at.buffer is place.buffer:
                return True
            if current.op == "call_function" and (facts_of(current.target).kind in _VIEWS or not is_realized(current)):
                stack.extend(current.all_input_nodes)
        return False

    def _call(self, node: Node) -> None:
        op = node.target
        if not isinstance(op, OpOverload):
            raise Unsupported(f"a call of {facts_of(op).name}")
        said = Encoded(op, node.args, node.kwargs, self._memory_of)
        if self.effects > 1 and _has_effect(node):
            said.add_written(self._token())
        self.given_away.update(said.written)
        own = _own_values(node)
        call = self._emit(call_of(len(own)), said.arguments(), node)
        for k, (index, position) in enumerate(own):
            result = call if len(own) == 1 else self._emit(operator.getitem, (call, k), node)
            self._results_of_call(node, result, index, position)

    def _results_of_call(self, node: Node, result: Node, index: int | None, position: int | None) -> None:
        """`result` is number `index` of the results of `node` (None: its one result), and in that number `position`."""
        found = [node]
        for asked in (index, position):
            if asked is not None:
                found = [u for n in found for u in n.users if u.target is operator.getitem and u.args[1] == asked]
        for value in found:
            self.made[value] = result
            known = _results(node)[index or 0]
            result.meta["val"] = known if position is None else known[position]
            if "reink_place" in value.meta:
                result.meta["reink_place"] = value.meta["reink_place"]

    def _token(self) -> Node:
        """Memory that each call with an effect says it writes, so that they keep their order."""
        if self.order is None:
            self.order = self.graph.call_function(
                aten.empty_strided.default, ([1], [1]), {"dtype": torch.uint8, "device": torch.device("cpu")}
            )
        return self.order

    def _emit(self, target: Any, args: tuple[Any, ...], of: Node) -> Node:
        new = self.graph.call_function(target, args)
        new.meta = {k: of.meta[k] for k in _KEPT if k in of.meta}
        return new

    # -- results ---------------------------------------------------------------------------------

    def _results(self) -> tuple[list[tuple[int, tuple[ViewStep, ...], Any]], list[int]]:
        """Emit the output. Views of results are taken of them outside, where they surely share memory."""
        given: dict[Node, int] = {}
        made: list[tuple[int, tuple[ViewStep, ...], Any]] = []
        first: dict[Node, int] = {}
        same: list[int] = []
        for k, result in enumerate(self.program.results()):
            same.append(first.setdefault(result, k) if isinstance(result, Node) else k)
            if not isinstance(result, Node):
                made.append((-1, (), result))
                continue
            root, steps = result, list[ViewStep]()
            while (
                root.op == "call_function"
                and facts_of(root.target).kind is Kind.VIEW
                and len(root.all_input_nodes) == 1
            ):
                steps.append(ViewStep(facts_of(root.target).name, tuple(root.args[1:])))
                root = root.args[0]  # type: ignore[assignment]
            made.append((given.setdefault(root, len(given)), tuple(steps[::-1]), None))
        self.graph.output(tuple(self.use(n) for n in given))
        return made, same


def _own_values(node: Node) -> list[tuple[int | None, int | None]]:
    """Each tensor among the results of a call that is memory of its own: which result it is in, and where in that."""
    aliases = facts_of(node.target).result_aliases
    results = _results(node)
    found: list[tuple[int | None, int | None]] = []
    for k, (alias, result) in enumerate(zip(aliases, results, strict=bool(results))):
        if alias >= 0:
            continue
        if not isinstance(result, Tensor) and not isinstance(result, (list, tuple)):
            raise Unsupported(f"a result of type {type(result).__name__}")
        index = k if len(aliases) > 1 else None
        found.extend([(index, None)] if isinstance(result, Tensor) else [(index, j) for j in range(len(result))])
    return found


def _results(node: Node) -> tuple[Any, ...]:
    """The fake values that an operator returns, one for each result of its schema; nothing for a write in place."""
    known = node.meta.get("reink_results")
    if known is None:
        return facts_of(node.target).each_result(node.meta.get("val"))
    return tuple(known)


def _written_memory(program: Program) -> set[Any]:
    """The buffers that the lowered program writes."""
    found: set[Any] = set()
    for node in program.graph.nodes:
        if node.target is aten.copy_.default or node.target in INDEXED_WRITES:
            operands = list(node.args[:1])
        elif node.meta.get("reink_role") in ("call", "in place"):
            operands = node.all_input_nodes
        else:
            continue
        places = (n.meta.get("reink_place") for n in operands if isinstance(n, Node))
        found.update(p.buffer for p in places if isinstance(p, Place))
    return found


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    values = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(v, Tensor) and (v.is_complex() or v.is_conj() or v.is_neg()) for v in values)


def _is_fresh_root(node: Any) -> bool:
    """Whether a node is all of some memory that the program made: there Inductor takes a copy for another name."""
    place = node.meta.get("reink_place")
    return not isinstance(place, Place) or (place.is_root and place.buffer.kind == "fresh")


def _has_effect(node: Node) -> bool:
    """Whether a node has to keep its order among others, and Inductor does not see to that itself."""
    if node.op != "call_function":
        return False
    facts = facts_of(node.target)
    return facts.ordered and (facts.name not in LOOKING_ONLY or facts.name == "aten._print.default")
