"""Cleaning up a pure graph before it is re-inplaced: dead code, views that cancel, equal calls, idle copies.

In a pure graph any two equal values may be one. But reinplace will give writes their old homes back, and one
value that stands for two can then cost a copy: two buffers became one, or an old version is read longer. So
a rule applies only where no write can tell: see `_Storages`. The earlier node always survives, as it is.

One walk that replaces, between two that erase. The code of ``program.module`` is not generated anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import PARTICULAR_VIEWS, Buffer, Place, bits_of, layout_of
from reink.core.calls import CALLS, auto_functionalized, written_arguments
from reink.core.opinfo import Kind, OpFacts, facts_of
from reink.core.program import Form, Program, ViewStep, tensors_in
from reink.core.subgraphs import functional_call
from reink.core.torch_internals import OpOverload
from reink.core.views import SCATTERS, contiguous_strides

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten


def cleanup(program: Program) -> int:
    """Clean the graph of a functional `program` in place; how many nodes went away.

    Call ``program.module.recompile()`` to run the result: generating code costs more than all of this.
    """
    assert program.form is Form.FUNCTIONAL
    for inner in program.subgraphs.values():
        cleanup(inner)
    graph = program.graph
    before = len(graph.nodes)
    kept = frozenset(n for spec in program.signature.outputs for n in tensors_in(spec.steps))
    _erase_dead(graph, kept)
    _Cleaner(program, kept).run()
    _erase_dead(graph, kept)
    return before - len(graph.nodes)


# -- dead code -----------------------------------------------------------------------------------


def _erase_dead(graph: torch.fx.Graph, kept: frozenset[Node]) -> None:
    """Erase what nobody needs. `kept` are nodes that the signature names, which fx does not count as uses."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node not in kept and not _has_effect(node):
            graph.erase_node(node)


def _has_effect(node: Node) -> bool:
    """Whether the node matters even when nobody uses its value."""
    if node.op != "call_function":
        return node.op != "get_attr"
    if "reink_ordered" in node.meta or facts_of(node.target).ordered:
        return True
    target = node.target
    if isinstance(target, OpOverload):
        return not target._schema.returns
    return target not in CALLS and node.is_impure()


# -- what a target means here --------------------------------------------------------------------


class _Role(Enum):
    """What the rules do with a call."""

    VIEW = "a view: goes if the same view stands before it"
    PARTS = "a list of views"
    ITEM = "an element of what a call returned: goes if the same element stands before it"
    WRITE = "a new version of the first argument: a scatter or a copy into it"
    CALL = "a v1 or v2 call"
    COPY = "a copy: goes if nobody could tell"
    EQUAL = "pure, always gives the same: goes if an equal call stands before it"
    SUBGRAPH = "control flow: its results may be its operands"
    OTHER = "stays, whatever stands before it"


_COPIES = frozenset({aten.clone.default, aten._to_copy.default})
# Two calls give two symbols for one number, and sizes elsewhere are written in both.
_OWN_SYMBOLS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_BY_KIND = {
    Kind.VIEW: _Role.VIEW,
    Kind.VIEW_LIST: _Role.PARTS,
    Kind.GETITEM: _Role.ITEM,
    Kind.SUBGRAPH: _Role.SUBGRAPH,
}

# Looked up once: reading a member of an Enum runs Python code.
_VIEW, _WRITE, _CALL, _EQUAL = _Role.VIEW, _Role.WRITE, _Role.CALL, _Role.EQUAL
_ITEM, _COPY, _SUBGRAPH, _OTHER = _Role.ITEM, _Role.COPY, _Role.SUBGRAPH, _Role.OTHER
_TAKEN = (_VIEW, _Role.PARTS, _ITEM)

# By identity: hashing an operator runs Python code. The target is kept alive beside its role.
_roles: dict[int, tuple[Any, _Role]] = {}


def _role_of(target: Any) -> _Role:
    found = _roles.get(id(target))
    if found is None:
        found = _roles[id(target)] = (target, _learn(target, facts_of(target)))
    return found[1]


def _learn(target: Any, facts: OpFacts) -> _Role:
    if target in SCATTERS or target is aten.copy.default:
        return _Role.WRITE
    if target in CALLS:
        return _Role.CALL
    if target in _COPIES:
        return _Role.COPY
    if facts.kind is Kind.PURE and _gives_the_same(target, facts):
        return _Role.EQUAL
    if facts.kind is Kind.PYTHON and getattr(target, "__module__", "") == "_operator":
        return _Role.EQUAL  # arithmetic of symbolic sizes
    return _BY_KIND.get(facts.kind, _Role.OTHER)


def _gives_the_same(target: OpOverload, facts: OpFacts) -> bool:
    """Whether two calls with equal arguments give equal results. Nobody says so of operators outside ATen."""
    if not facts.name.startswith(("aten.", "prims.")) or facts.ordered or facts.random:
        return False
    return _OWN_SYMBOLS.isdisjoint(target.tags)


# -- which values a write can reach --------------------------------------------------------------


class _Storages:
    """Classes of values that may live in one memory after re-inplacing: union-find over nodes.

    A view is in the class of its base, a new version in that of the old one, a carried-back value in that of
    the base it is computed from. A class is `written` when any value of it is the destination of a write,
    `returned` when any is a result. In a class that is not written every rule is free.

    `base` names what a view, or an element of a result, is at last taken from; `views` counts those.
    """

    def __init__(self, program: Program, calls: list[tuple[Node, _Role]]) -> None:
        self._program = program
        self._above: dict[Node, Node] = {}
        self._written: set[Node] = set()
        self._returned: set[Node] = set()
        self.base: dict[Node, Node] = {}
        self.views: dict[Node, int] = {}
        for node, role in calls:
            if role is not _EQUAL or "reink_write" in node.meta:
                self._enter(node, role)
        self._enter_boundary(program)

    def of(self, node: Node) -> Node:
        """The value that stands for the class of `node`."""
        above = self._above
        higher = above.get(node)
        while higher is not None:
            top = above.get(higher)
            if top is None:
                return higher
            above[node] = node = top
            higher = above.get(node)
        return node

    def join(self, first: Node, second: Node) -> Node:
        """Make one class of two; the value that stands for it."""
        top = self.of(first)
        lower = second if second not in self._above else self.of(second)
        if top is lower:
            return top
        self._above[lower] = top
        for marks in (self._written, self._returned):
            if lower in marks:
                marks.add(top)
        return top

    def is_written(self, node: Node) -> bool:
        """Whether the memory of `node` may ever be written."""
        return self.of(node) in self._written

    def is_returned(self, node: Node) -> bool:
        """Whether the memory of `node` may be that of a result."""
        return self.of(node) in self._returned

    def _enter(self, node: Node, role: _Role) -> None:
        args = node.args
        first = args[0] if args else None
        if role in _TAKEN:
            if isinstance(first, Node):
                base = self.base[node] = self.base.get(first, first)
                self.views[base] = self.views.get(base, 0) + 1
                self._above[node] = self.of(base)
        elif role is _WRITE:
            self._write_over(first, node)
            self._carry_back(args[1], node)
        elif role is _CALL:
            self._write(node, _written_by_call(node))
        elif "reink_write" in node.meta:
            self._write_over(first, node)
        elif role is _SUBGRAPH:
            for used in node.all_input_nodes:
                self.join(used, node)
            known = functional_call(self._program, node)
            self._write(node, known.bases if known is not None else ())
        elif role is _OTHER and facts_of(node.target).written:
            self._write(node, node.all_input_nodes)

    def _write_over(self, old: Any, node: Node) -> None:
        """`node`, in no class so far, is the new version of `old`."""
        if isinstance(old, Node):
            top = self._above[node] = self.of(old)
            self._written.add(top)

    def _write(self, node: Node, destinations: Iterable[Any]) -> None:
        for destination in destinations:
            if isinstance(destination, Node):
                self._written.add(self.join(destination, node))

    def _carry_back(self, update: Any, node: Node) -> None:
        """`update` may be computed in the very memory that `node` puts it into, if it comes from there."""
        made, top = self.base.get(update, update), self.of(node)
        if not isinstance(made, Node) or self.of(made) is top or not made.args:
            return
        source = made.args[0]
        if isinstance(source, Node) and self.of(source) is top:
            self.join(top, made)

    def _enter_boundary(self, program: Program) -> None:
        results, inputs = program.results(), program.placeholders()
        self._returned |= {self.of(r) for r in results if isinstance(r, Node)}
        for mutation in program.signature.mutations:
            value = results[mutation.result]
            if isinstance(value, Node):
                self._write(value, [inputs[mutation.input]])


def _written_by_call(call: Node) -> list[Any]:
    if call.target is auto_functionalized:
        op, args, kwargs = call.args
        return [value for _, value in written_arguments(op, args, kwargs)]  # type: ignore[arg-type]
    return list(call.args[3])  # type: ignore[arg-type]


# -- the rules -----------------------------------------------------------------------------------


class _Cleaner:
    def __init__(self, program: Program, kept: frozenset[Node]) -> None:
        self.kept = kept
        nodes = program.graph.nodes
        self.calls = [(n, _role_of(n.target)) for n in nodes if n.op == "call_function"]
        self.storages = _Storages(program, self.calls)
        self.places: dict[Node, Place] = {}
        self.first: dict[Place, Node] = {}
        self.alone: dict[Node, Node] = {}
        self.known: dict[Any, Node] = {}

    def run(self) -> None:
        """Replace each node that an earlier one can stand for. Replaced nodes stay behind, unused."""
        kept = self.kept
        for node, role in self.calls:
            if role is _WRITE or role is _OTHER or node in kept:
                continue
            earlier: Node | None = None
            if role is _VIEW:
                earlier = self._earlier_view(node)
            elif role is _EQUAL:
                earlier = self._earlier_call(node)
            elif role is _ITEM:
                earlier = self._earlier_item(node)
            elif role is _COPY:
                earlier = self._earlier_copy(node)
            if earlier is not None and _views_agree(node, earlier):
                self._count_views(node, earlier)
                node.replace_all_uses_with(earlier)

    def _count_views(self, node: Node, earlier: Node) -> None:
        """The views of `node` become views of `earlier`; from the second on they have to be compared."""
        views = self.storages.views
        moved = views.get(node, 0)
        if moved:
            views[earlier] = views.get(earlier, 0) + moved
            self._place(self.alone.pop(earlier, None))

    # -- views

    def _earlier_view(self, node: Node) -> Node | None:
        """An earlier value with the same geometry in the same root: root, view, or what was scattered."""
        base, value = node.args[0], node.meta.get("val")
        if not isinstance(base, Node) or not isinstance(value, Tensor):
            return None
        if self._is_alone(base, value):
            self.alone[base] = node
            return self._scattered(node)
        place = self._place(node)
        found = self.first[place] if place is not None else node
        return found if found is not node else self._scattered(node)

    def _is_alone(self, base: Node, value: Tensor) -> bool:
        """Whether a view is the only one of `base`, and not all of it. Then nothing has its geometry."""
        if self.storages.views.get(base) != 1 or base in self.storages.base:
            return False
        whole = base.meta.get("val")
        return isinstance(whole, Tensor) and layout_of(whole) != layout_of(value)

    def _place(self, node: Any) -> Place | None:
        """Where a value lies; one that is no view is the root of a buffer of its own."""
        if not isinstance(node, Node):
            return None
        found = self.places.get(node)
        value = node.meta.get("val")
        if found is None and isinstance(value, Tensor):
            is_view = node.op == "call_function" and _role_of(node.target) is _VIEW
            found = self._view_place(node, value) if is_view else Buffer("fresh", node.name, value).root
            self.places[node] = found
            self.first.setdefault(found, node)
        return found

    def _view_place(self, node: Node, value: Tensor) -> Place:
        base: Any = node.args[0]
        parent = self._place(base)
        if parent is None:
            return Buffer("fresh", node.name, value).root
        step = ViewStep(facts_of(node.target).name, tuple(node.args[1:]))
        return parent.child(step, base.meta["val"], value)

    def _scattered(self, node: Node) -> Node | None:
        """``view(scatter(base, update))`` of one window is `update`, where no write and no result can tell.

        Not as_strided: elements of its window may be one memory cell, and then only the last write stays.
        """
        args = node.args
        scatter: Any = args[0]
        if scatter.op != "call_function" or _role_of(scatter.target) is not _WRITE:
            return None
        given = scatter.args
        if given[2:] != args[1:] or node.kwargs or scatter.kwargs:
            return None
        name = SCATTERS.get(scatter.target)
        if name is None or name == "aten.as_strided.default" or name != facts_of(node.target).name:
            return None
        update = given[1]
        if not isinstance(update, Node) or not _same_layout(update.meta.get("val"), node.meta["val"]):
            return None
        if self._lives_in_window(update, scatter, node) or self._is_only_read(update, node):
            return update
        return None

    def _lives_in_window(self, update: Node, scatter: Node, node: Node) -> bool:
        """Whether `update` is the result of an in-place operator on this very window, and so will stay in it.

        Row-major windows only: the strides noted for such a value are the window's, and the pure twin makes
        its own when it cannot go in place.
        """
        if "reink_write" not in update.meta or facts_of(update.target).in_place is None:
            return False
        size, stride, _ = layout_of(node.meta["val"])
        base = self._place(scatter.args[0])
        if base is None or stride != contiguous_strides(size):
            return False
        step = ViewStep(SCATTERS[scatter.target], tuple(node.args[1:]))
        return self._place(update.args[0]) is base.child(step, scatter.meta["val"], node.meta["val"])

    def _is_only_read(self, update: Node, node: Node) -> bool:
        """Whether `update` is never written or returned, and the view `node` only feeds calls like that."""
        storages = self.storages
        if storages.is_written(update) or storages.is_returned(update):
            return False
        return all(
            u.op == "call_function" and _role_of(u.target) is _EQUAL and not storages.is_written(u) for u in node.users
        )

    def _earlier_item(self, node: Node) -> Node | None:
        """An earlier element of the same call with the same index: it is the same tensor."""
        found = self.known.setdefault((node.target, *map(_frozen, node.args)), node)
        return None if found is node else found

    def _earlier_copy(self, node: Node) -> Node | None:
        """The source of a copy, if no write and no result shows that the two are one; else an equal copy."""
        storages, source = self.storages, node.args[0]
        if not isinstance(source, Node) or node.kwargs.get("pin_memory"):
            return None
        if any(storages.is_written(n) or storages.is_returned(n) for n in (source, node)):
            return self._earlier_call(node)
        if not _same_layout(source.meta.get("val"), node.meta.get("val")):
            return self._earlier_call(node)
        return source

    def _earlier_call(self, node: Node) -> Node | None:
        """An earlier call with the same arguments, if neither result is written and not both are returned."""
        storages = self.storages
        if storages.is_written(node) or not node.all_input_nodes:
            return None
        kwargs = _frozen(node.kwargs) if node.kwargs else ()
        found = self.known.setdefault((node.target, kwargs, *map(_frozen, node.args)), node)
        if found is node or (storages.is_returned(found) and storages.is_returned(node)):
            return None
        storages.join(found, node)
        return found


def _views_agree(node: Node, earlier: Node) -> bool:
    """Whether views of `node` can become views of `earlier`.

    Their place is read from two noted offsets; and some insist on the strides of dims of one element, which are noted
    as they were captured, whatever a later version has.
    """
    before, after = node.meta.get("val"), earlier.meta.get("val")
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return True
    size, _, offset = layout_of(before)
    same_place, plain = offset == layout_of(after)[2], 1 not in size
    if same_place and plain:
        return True
    for user in node.users:
        role = _role_of(user.target) if user.op == "call_function" else _OTHER
        if not same_place and (role is _VIEW or role is _Role.PARTS):
            return False
        if not plain and role is _VIEW and facts_of(user.target).name in PARTICULAR_VIEWS:
            return False
    return True


def _same_layout(first: Any, second: Any) -> bool:
    """Whether two values have the same type, size, strides and lazy bits; where they start does not count."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    if first.dtype != second.dtype or first.device != second.device:
        return False
    if first.layout is not torch.strided or second.layout is not torch.strided:
        return False
    return layout_of(first)[:2] == layout_of(second)[:2] and bits_of(first) == bits_of(second)


_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def _frozen(value: Any) -> Any:
    """`value` as a key: equal iff an operator cannot tell the two apart. What is not known equals nothing."""
    kind = type(value)
    if kind is Node or kind is int or kind is str or value is None:
        return value
    if kind is bool or kind is float or kind is complex:
        return (kind, repr(value))  # True is not 1, 0.0 is not -0.0, nan is nan
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    return value if isinstance(value, _CONSTANTS) else object()
