"""From a plan to a graph that runs: mutable calls again, and copies only where the plan says so.

One pass of direct rewriting. A view is emitted when something first uses it, once per place, so the views that
functionalize replayed for every version fall together again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import PARTICULAR_VIEWS, Place, is_dense
from reink.core.calls import V2_CALLS, map_written, result_count
from reink.core.opinfo import Kind, facts_of
from reink.core.plan import Action, Copy, Plan, Step
from reink.core.program import BaseView, Form, OutputKind, OutputSpec, Program, ViewStep
from reink.core.subgraphs import FunctionalCall, arguments_of, functional_call
from reink.core.torch_internals import NodeAppender, graph_module, operator_named
from reink.core.views import step_operator

Node = torch.fx.Node
aten = torch.ops.aten

_AS_STRIDED = "aten.as_strided.default"

# Rows of a tensor are taken by one call if they are so many, up to so many rows and most of them are taken.
FEWEST_ROWS, MOST_ROWS = 4, 256


def lower(plan: Plan, *, rows_at_once: bool = False) -> Program:
    """The program that runs `plan`: an fx graph of ATen and custom operators, written inputs written in place.

    `rows_at_once`: one ``unbind`` instead of many ``select``, which run one after the other cost more.
    """
    lowered = _Lowering(plan, rows_at_once).run()
    if rows_at_once:
        _take_rows_at_once(lowered.graph)
    return lowered


class _Lowering:
    def __init__(self, plan: Plan, rows_at_once: bool) -> None:
        self.plan, self.rows_at_once = plan, rows_at_once
        self.source = plan.program
        self.graph = torch.fx.Graph()
        self._append = NodeAppender(self.graph).append
        self.made: dict[Place, Node] = {}
        self.lists: dict[tuple[Place, str, Any], Node] = {}
        self.at: dict[Node, Place] = {}
        self.values: dict[Node, Node] = {}
        self.stack_trace: str | None = None
        self.of: Node | None = None

    def run(self) -> Program:
        self._inputs()
        for step in self.plan.steps:
            self.of, self.stack_trace = step.node, step.node.meta.get("stack_trace")
            for copy in step.before:
                self._copy(copy)
            _CARRY_OUT[step.action](self, step)
            for value, place in step.defines:
                if place is not None:
                    self.at[value] = place
        self.of = None
        for copy in self.plan.final:
            self._copy(copy)
        results = tuple(self._results())
        self.graph.output(results[0] if self.source.bare else results)
        plans = self.plan.subgraphs.items()
        inner = {name: lower(plan, rows_at_once=self.rows_at_once) for name, plan in plans}
        module = graph_module(self.source.module, self.graph, {name: program.module for name, program in inner.items()})
        signature = replace(self.source.signature, epilogue_in_graph=True)
        return Program(module, Form.LOWERED, signature, self.source.out_spec, inner, self.source.bare)

    def _inputs(self) -> None:
        placeholders = iter(self.plan.inputs)
        for node in self.source.graph.nodes:
            if node.op not in ("placeholder", "get_attr"):
                continue
            create = self.graph.placeholder if node.op == "placeholder" else self.graph.get_attr
            new = create(node.target)
            new.meta.update(node.meta)
            new.meta["reink_of"] = node
            place = next(placeholders) if node.op == "placeholder" else self.plan.constants.get(node)
            if place is None:
                self.values[node] = new
            else:
                self.made[place], self.at[node] = new, place
                new.meta["reink_place"] = place

    # -- code ------------------------------------------------------------------------------------

    def _emit(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        value: Any = None,
        role: str = "",
    ) -> Node:
        node = self._append(target, args, kwargs)
        meta = node.meta
        meta["reink_role"] = role
        if value is not None:
            meta["val"] = value
        if self.stack_trace is not None:
            meta["stack_trace"] = self.stack_trace
        meta["reink_of"] = self.of
        return node

    def tensor(self, place: Place) -> Node:
        """The node that is the tensor in `place`."""
        found = self.made.get(place)
        if found is None:
            assert place.parent is not None and place.step is not None, f"{place} was never made"
            found = self.made[place] = self._view(self.tensor(place.parent), place.parent, place.step, place.value)
            found.meta["reink_place"] = place
        return found

    def _view(self, parent: Node, parent_place: Place, step: ViewStep, value: Any) -> Node:
        args = self._args(step.args)
        if step.op in PARTICULAR_VIEWS:
            parent = self._regular(parent, parent_place)
        if not step.op.endswith("]"):
            return self._emit(step_operator(step), (parent, *args), value=value, role="view")
        name, _, index = step.op[:-1].partition("[")
        key = (parent_place, name, repr(args))
        whole = self.lists.get(key)
        if whole is None:
            whole = self.lists[key] = self._emit(operator_named(name), (parent, *args), role="view")
        return self._emit(operator.getitem, (whole, int(index)), value=value, role="view")

    def _regular(self, tensor: Node, place: Place) -> Node:
        """`tensor`, with the usual strides of dims of one element.

        Its own may not be those that it was traced with: an operand of what made it was another view of one place.
        """
        strided = place.step is not None and place.step.op == _AS_STRIDED
        if strided or 1 not in place.size or place.is_symbolic():
            return tensor
        args = (tensor, list(place.size), list(place.stride))
        regular = self._emit(operator_named(_AS_STRIDED), args, value=place.value, role="view")
        regular.meta["reink_place"] = place
        return regular

    def _args(self, value: Any) -> Any:
        if isinstance(value, Node):
            place = self.at.get(value)
            return self.values[value] if place is None else self.tensor(place)
        if isinstance(value, (list, tuple)):
            mapped: list[Any] = [v if type(v) is int else self._args(v) for v in value]
            return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
        if isinstance(value, dict):
            return {k: self._args(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(self._args(value.start), self._args(value.stop), self._args(value.step))
        return value

    def _copy(self, copy: Copy) -> None:
        """One of the copies that the plan adds."""
        source, target = self.tensor(copy.source), copy.target
        marked: Node
        if is_dense(target) and (not copy.exact or target.stride == copy.source.stride):
            marked = new = self._emit(
                aten.clone.default if copy.filled else aten.empty_like.default,
                (source,),
                value=target.value,
                role="copy",
            )
        else:
            sizes = (
                self._numbers(source, target.size, aten.sym_size.int),
                self._numbers(source, target.stride, aten.sym_stride.int),
            )
            new = marked = self._emit(aten.new_empty_strided.default, (source, *sizes), value=target.value, role="copy")
            if copy.filled:
                marked = self._emit(aten.copy_.default, (new, source), role="copy")
        marked.meta["reink_copy"] = copy
        new.meta["reink_copy_target"] = copy
        self.made[target] = new
        new.meta["reink_place"] = target
        for value, place in copy.moved:
            self.at[value] = place

    def _numbers(self, tensor: Node, numbers: tuple[Any, ...], asked: Any) -> list[Any]:
        return [n if type(n) is int else self._emit(asked, (tensor, d)) for d, n in enumerate(numbers)]

    # -- actions ---------------------------------------------------------------------------------

    def _nothing(self, step: Step) -> None:
        """The value is where it has to be."""

    def _run(self, step: Step) -> None:
        node = step.node
        new = self._emit(
            node.target,
            self._args(node.args),
            self._args(node.kwargs) if node.kwargs else None,
            node.meta.get("val"),
            "run",
        )
        if step.defines:
            made = step.defines[0][1]
            assert made is not None
            self.made[made] = new
            new.meta["reink_place"] = made
        else:
            self.values[node] = new

    def _in_place(self, step: Step) -> None:
        node = step.node
        assert step.place is not None
        args = (self.tensor(step.place), *self._args(node.args[1:]))
        self._emit(
            facts_of(node.target).in_place,
            args,
            self._args(node.kwargs) if node.kwargs else None,
            step.place.value,
            "in place",
        )

    def _out(self, step: Step) -> None:
        node = step.node
        assert step.place is not None
        kwargs = {**self._args(dict(node.kwargs)), "out": self.tensor(step.place)}
        self._emit(facts_of(node.target).out, self._args(node.args), kwargs, step.place.value, "out")

    def _copy_into(self, step: Step) -> None:
        assert step.place is not None
        self._emit(
            aten.copy_.default,
            (self.tensor(step.place), self._args(step.source)),
            value=step.place.value,
            role="write" if step.defines else "epilogue",
        )

    def _call(self, step: Step) -> None:
        known = functional_call(self.source, step.node)
        if known is not None:
            self._call_subgraph(step, known)
            return
        op, args, kwargs = step.node.args[:3]
        if step.node.target in V2_CALLS:
            here = iter(step.views)
        else:
            here, places = iter(()), iter(step.places)
            args, kwargs = map_written(op, args, kwargs, lambda _: _Here(next(places)))  # type: ignore[arg-type]
        args, kwargs = self._with_places(args, here), self._with_places(kwargs, here)
        count = result_count(op)
        call = self._emit(op, tuple(args), kwargs, role="call")
        call.meta["reink_results"] = tuple(step.node.meta["val"][:count])
        self._results_of_call(step, call, count, taken_apart=count > 1)

    def _call_subgraph(self, step: Step, known: FunctionalCall) -> None:
        """A call that runs graphs of its own, on the places of what they write."""
        bases = tuple([_Here(place) for place in step.places])
        args = arguments_of(step.node.target, known.call, bases, in_place=True)
        call = self._emit(step.node.target, self._with_places(args, iter(())), role="call")
        self._results_of_call(step, call, known.count, taken_apart=True)

    def _results_of_call(self, step: Step, call: Node, count: int, *, taken_apart: bool) -> None:
        """The first `count` results of a call, which are values of their own."""
        for result, place in step.defines:
            index = result.args[1]
            if index >= count:  # type: ignore[operator]
                continue
            new = (
                self._emit(operator.getitem, (call, index), value=result.meta.get("val"), role="result")
                if taken_apart
                else call
            )
            if new is call and "val" in result.meta:
                call.meta["val"] = result.meta["val"]
            if place is None:
                self.values[result] = new
            else:
                self.made[place] = new
                new.meta["reink_place"] = place

    def _with_places(self, value: Any, views: Iterator[Place]) -> Any:
        """The arguments of a mutable operator; `views` are the places of those that are a `BaseView`, in order."""
        if isinstance(value, _Here):
            return self.tensor(value.place)
        if isinstance(value, BaseView):
            return self.tensor(next(views))
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)([self._with_places(v, views) for v in value])
        if isinstance(value, dict):
            return {k: self._with_places(v, views) for k, v in value.items()}
        return self._args(value)

    # -- the boundary ----------------------------------------------------------------------------

    def _results(self) -> Iterator[Any]:
        results, outputs = self.source.results(), self.source.signature.outputs
        made: dict[int, Any] = {}
        for k, place in self.plan.results.items():
            made[k] = self.tensor(place)
        shown: list[Any] = []
        for k, spec in enumerate(outputs):
            again = spec.same_as >= 0
            shown.append(shown[spec.same_as] if again else self._result(k, spec, results[k], made))
        yield from shown

    def _result(self, k: int, spec: OutputSpec, result: Any, made: dict[int, Any]) -> Any:
        if spec.kind is OutputKind.INPUT_ALIAS:
            place = self.plan.inputs[spec.source]
            assert place is not None
            return self._regenerate(self.tensor(place), spec)
        if spec.kind is OutputKind.GROUP_ALIAS:
            return self._regenerate(made[spec.source], spec)
        return made[k] if k in made else self._args(result)

    def _regenerate(self, tensor: Node, spec: OutputSpec) -> Node:
        for step in spec.steps:
            tensor = self._emit(step_operator(step), (tensor, *self._args(step.args)), role="view")
        return tensor


def _take_rows_at_once(graph: torch.fx.Graph) -> None:
    """One ``unbind`` for the ``select`` nodes of a tensor that take most of its rows."""
    rows: dict[tuple[Node, int], list[Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.select.int, sort=True):
        tensor, dim, index = node.args
        if type(dim) is int and type(index) is int:
            rows.setdefault((tensor, dim), []).append(node)
    for (tensor, dim), taken in rows.items():
        value = tensor.meta.get("val")
        count = value.size(dim) if isinstance(value, torch.Tensor) else None
        if type(count) is not int or not len(taken) >= FEWEST_ROWS or not count <= MOST_ROWS or count > 2 * len(taken):
            continue
        if any(facts_of(u.target).kind is Kind.METADATA for u in tensor.users if u.op == "call_function"):
            continue
        with graph.inserting_before(taken[0]):
            whole = graph.call_function(aten.unbind.int, (tensor, dim))
        whole.meta.update(reink_role="view", reink_of=taken[0].meta.get("reink_of"))
        for node in taken:
            node.target, node.args = operator.getitem, (whole, node.args[2] % count)  # type: ignore[operator]


class _Here:
    """An argument that is the tensor in `place`."""

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place


_CARRY_OUT = {
    Action.NOTHING: _Lowering._nothing,
    Action.RUN: _Lowering._run,
    Action.IN_PLACE: _Lowering._in_place,
    Action.OUT: _Lowering._out,
    Action.COPY_INTO: _Lowering._copy_into,
    Action.CALL: _Lowering._call,
}
