"""A functional program with its calls of mutable operators in torch's own form, which plain PyTorch runs.

torch's form says less: arguments that are only read are values from before the call, views are slices or strides, and
the operator must be one that torch functionalizes itself. What it cannot say is refused, never said wrongly.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import view_value
from reink.core.calls import CALLS, auto_functionalized, base_views, written_views
from reink.core.opinfo import OpFacts, Parameter, facts_of
from reink.core.program import BaseView, Program, copied, source_of
from reink.core.torch_internals import STOCK_V1, STOCK_V2, can_auto_functionalize
from reink.core.views import step_operator
from reink.errors import ReinkError

Node = torch.fx.Node
aten = torch.ops.aten


def to_stock(program: Program) -> Program:
    """`program` with each functional call as torch's ``auto_functionalized`` or ``auto_functionalized_v2``.

    Raises ReinkError ``unknown-call`` for one that torch's form cannot say.
    """
    made = copied(program)
    made.subgraphs = {name: to_stock(inner) for name, inner in program.subgraphs.items()}
    for node in list(made.graph.nodes):
        if node.op == "call_function" and node.target in CALLS:
            with made.graph.inserting_before(node):
                _Writing(node).run()
    made.module.recompile()
    return replace(made)


class _Writing:
    """One call of reink's, and torch's that takes its place."""

    def __init__(self, node: Node) -> None:
        self.node, self.graph = node, node.graph
        op, self.args, self.kwargs = node.args[:3]
        self.bases: list[Node] = list(node.args[3]) if len(node.args) > 3 else []  # type: ignore[arg-type]
        self.op: Any = op
        self.facts: OpFacts = facts_of(op)

    def run(self) -> None:
        if not can_auto_functionalize(self.op) or self.facts.note:
            raise self._unsayable("PyTorch does not functionalize this operator by such a call")
        if any(a >= 0 for a in self.facts.result_aliases):
            raise self._unsayable("it returns an argument")
        given = {p.name: p.given(self.args, self.kwargs) for p in self.facts.parameters}  # type: ignore[arg-type]
        if self.node.target is auto_functionalized:
            self._v1(given)
        else:
            self._v2(given)
        self.graph.erase_node(self.node)

    def _v1(self, given: dict[str, Any]) -> None:
        call = self._emit(STOCK_V1, given, [given[p.name] for p in self._written()])
        paths: list[tuple[int, ...]] = []
        for k, parameter in enumerate(self._written(), self._stock_count()):
            value = given[parameter.name]
            if isinstance(value, (list, tuple)):
                paths += [(k, i) for i, v in enumerate(value) if v is not None]
            elif value is not None:
                paths.append((k,))
        self._replace_results(call, paths)

    def _v2(self, given: dict[str, Any]) -> None:
        _, written = written_views(self.op, self.args, self.kwargs)
        if any(id(v) not in written for v in base_views((self.args, self.kwargs))):
            raise self._unsayable("an argument that is only read lies in memory that the call writes")
        for parameter in self._written():
            given.update(self._described(parameter, given.pop(parameter.name)))
        call = self._emit(STOCK_V2, {**given, "_all_bases": self.bases}, list(self.bases))
        first = self._stock_count()
        self._replace_results(call, [(first + k,) for k in range(len(self.bases))])

    def _described(self, parameter: Parameter, value: Any) -> dict[str, Any]:
        """What torch is told of one written argument."""
        if not isinstance(value, (list, tuple)) or isinstance(value, BaseView):
            listed = "[]" in str(self.op._schema.arguments[parameter.position].type)
            return {f"_{parameter.name}_length": None} if listed else self._view(f"_{parameter.name}", value)
        found: dict[str, Any] = {f"_{parameter.name}_length": len(value)}
        for k, item in enumerate(value):
            found.update(self._view(f"_{parameter.name}_{k}", item))
        return found

    def _view(self, prefix: str, view: BaseView | None) -> dict[str, Any]:
        if view is None:
            return {f"{prefix}_base_index": None}
        said: dict[str, Any] = {f"{prefix}_base_index": view.base}
        steps = tuple(s for s in view.steps if s.op != "aten.alias.default")
        base: Node = self.bases[view.base]
        whole: torch.Tensor = base.meta["val"]
        if not steps:
            return said
        value, node = whole, None
        for step in steps:
            value = view_value(value, step)
        if value.dtype != whole.dtype or value.is_conj() != whole.is_conj() or value.is_neg() != whole.is_neg():
            raise self._unsayable("an argument is a view of its base in another dtype")
        numbers = (*value.size(), *value.stride(), value.storage_offset())
        if not all(type(n) is int for n in numbers):
            node = self._shown(base, view)
        said[f"{prefix}_size"] = self._asked(node, value.size(), aten.sym_size.int)
        said[f"{prefix}_stride"] = self._asked(node, value.stride(), aten.sym_stride.int)
        said[f"{prefix}_storage_offset"] = self._start(node, value)
        return said

    def _shown(self, base: Node, view: BaseView) -> Node:
        """The view itself, to be asked for its symbolic sizes."""
        node = base
        for step in view.steps:
            before = node.meta["val"]
            node = self.graph.call_function(step_operator(step), (node, *step.args))
            node.meta["val"] = view_value(before, step)
        return node

    def _asked(self, node: Node | None, numbers: Any, question: Any) -> list[Any]:
        return [n if node is None or type(n) is int else self._ask(question, n, node, d) for d, n in enumerate(numbers)]

    def _start(self, node: Node | None, value: torch.Tensor) -> Any:
        start = value.storage_offset()
        return start if node is None or type(start) is int else self._ask(aten.sym_storage_offset.default, start, node)

    def _ask(self, question: Any, answer: Any, *of: Any) -> Node:
        asked = self.graph.call_function(question, of)
        asked.meta["val"] = answer
        return asked

    # -- the call --------------------------------------------------------------------------------

    def _written(self) -> list[Parameter]:
        return [self.facts.parameters[k] for k in self.facts.written]

    def _stock_count(self) -> int:
        return max(1, len(self.facts.result_aliases))

    def _emit(self, form: Any, kwargs: dict[str, Any], new: list[Any]) -> Node:
        call = self.graph.call_function(form, (self.op,), kwargs)
        call.meta.update(self.node.meta)
        own = self.node.meta["val"][: len(self.facts.result_aliases)] or (None,)
        values = torch.fx.map_arg(new, lambda n: n.meta["val"])
        call.meta["val"] = (*own, *values)
        return call

    def _replace_results(self, call: Node, paths: list[tuple[int, ...]]) -> None:
        """Give the users of a result the same result of `call`; `paths` are those of the new values."""
        count = len(self.facts.result_aliases)
        for user in list(self.node.users):
            index: Any = user.args[1]
            found = call
            for k in (index,) if index < count else paths[index - count]:
                value = found.meta["val"][k]
                found = self.graph.call_function(operator.getitem, (found, k))
                found.meta.update(user.meta)
                found.meta["val"] = value
            user.replace_all_uses_with(found)
            self.graph.erase_node(user)

    def _unsayable(self, why: str) -> ReinkError:
        source = source_of(self.node)
        return ReinkError(
            "unknown-call",
            f"PyTorch's own functional form cannot say this call of {self.facts.name}",
            where=str(source) if source is not None else f"node {self.node.name}",
            why=why,
            do="keep reink's form, or lower the program: mutable calls say everything",
        )
