"""A graph, pure or lowered, evaluated over symbolic memory: which number each of its values is.

One rule for both forms. A view is another look at a storage, what makes a new value makes a new storage, a write
stores. A scatter is then a copy and a store, an in-place operator its pure form and a store, and a functional call of a
mutable operator a copy of what it writes and the operator itself. Nothing that a pass noted on a node is believed.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from reink.check.geometry import Geometry, concrete, same_strides, size_of
from reink.check.memory import WINDOWS
from reink.check.operands import named
from reink.check.terms import Number, Undecided
from reink.check.values import Different, Known, Shared, Values, View, bytes_of, parameters, views_in
from reink.core.calls import CALLS, V2_CALLS, map_base_views, map_written
from reink.core.opinfo import Kind, facts_of, hidden_writes
from reink.core.program import Program, ViewStep
from reink.core.subgraphs import SubgraphCall, functional_call, subgraph_call
from reink.core.torch_internals import expression, operator_named

Node = torch.fx.Node
Tensor = torch.Tensor
aten = torch.ops.aten

_COPY, _CLONE = aten.copy.default, aten.clone.default
_AS_STRIDED, _EXPAND = aten.as_strided.default, aten.expand.default


class Evaluation(Values):
    """The values of one graph. With `turns` it is a functional one: calls of mutable operators write copies, and each
    effect happens in its turn, wherever it stands."""

    def __init__(self, program: Program, shared: Shared, turns: dict[Node, int] | None = None) -> None:
        super().__init__(shared)
        self.program, self.is_pure, self.turns = program, turns is not None, turns
        self.effects: list[tuple[int, Hashable, Node]] = []

    def run(self) -> None:
        """Evaluate every node. Raises Undecided and Different, both with the node named."""
        for node in self.program.graph.nodes:
            try:
                if node.op == "call_function":
                    self.values[node] = self._call_function(node)
                elif node.op == "placeholder":
                    index = len(self.inputs)
                    donated = index in self.program.signature.donated_inputs
                    self.values[node] = self.source(node, "input", index, donated=donated)
                elif node.op == "get_attr":
                    self.values[node] = self.source(node, "constant", -1)
            except Undecided as found:
                raise Undecided(f"{named(node)}: {found}") from None
            except Different as found:
                raise Different(f"{named(node)} {found}") from None

    # -- nodes -----------------------------------------------------------------------------------

    def _call_function(self, node: Node) -> Any:
        target: Any = node.target
        facts = facts_of(target)
        rule = _BY_TARGET.get(target)
        if rule is not None:
            return rule(self, node)
        if target in CALLS:
            return self._functional_call(node)
        if facts.kind in (Kind.VIEW, Kind.VIEW_LIST):
            return self._view(node)
        if facts.looks_at_shape:
            return self._size(node)
        if facts.kind is Kind.METADATA:
            raise Undecided("it changes what a tensor is")
        if facts.kind is Kind.SUBGRAPH:
            found = self._subgraph(node)
            if found is not None:
                return found
        given = parameters(facts, self.value_of(node.args), self.value_of(node.kwargs))
        value = node.meta.get("val")
        if facts.kind in (Kind.IN_PLACE, Kind.CALL) or (not self.is_pure and target in self.shared.pure_forms):
            return self._mutable(node, target, given, value)
        return self.result(value, self._key(node, target, given), node.name)

    def _key(self, node: Node, target: Any, given: Sequence[Any], *more: Hashable) -> tuple[Hashable, ...]:
        """What an operator makes of its operands, as they are now; one with an effect is another each time."""
        key: tuple[Hashable, ...] = (target, tuple([self.key_of(v) for v in given]), *more)
        if facts_of(target).ordered:
            turn = self.turns[node] if self.turns is not None else len(self.effects)
            key = (*key, ("turn", turn))
            self.effects.append((turn, key, node))
        return key

    def _view(self, node: Node) -> Any:
        given = parameters(facts_of(node.target), node.args, node.kwargs) if node.kwargs else node.args
        return self._looked(node.target, node.args[0], self.tensor(node.args[0]), self.integers_of(given[1:]))

    def _looked(self, target: Any, parent: Any, source: View, args: tuple[Any, ...]) -> Any:
        """The view (or list of views) that `target` makes of `source`, the value of node `parent`."""
        geometry = source.geometry
        if target is _AS_STRIDED:
            found: Any = self._strided(parent, geometry, args)
        else:
            found = self.geometries.apply(target, geometry, args)
        if type(found) is tuple:
            return tuple([View(source.storage, g) for g in found])
        if type(found) is not Geometry:
            raise Undecided(f"no such view of a tensor with strides {list(geometry.stride)}")
        return View(source.storage, found)

    def _strided(self, parent: Any, geometry: Geometry, args: tuple[Any, ...]) -> Geometry | None:
        """`as_strided`, whose offset counts from the start of the storage: known of a pure value only."""
        start, moved = args[2] if len(args) > 2 else None, 0
        if self.is_pure and isinstance(parent, Node):
            value = parent.meta["val"]
            if not same_strides(self.geometries.root(value), geometry):
                return None
            moved = 0 if start is None else start - concrete(value.storage_offset())
        elif start is not None:
            return None
        return self.geometries.strided(geometry, args[0], args[1], moved)

    def _size(self, node: Node) -> Known:
        """The size or stride of a tensor, asked at run time: by its expression, where its hint is right."""
        geometry, name = self.tensor(node.args[0]).geometry, facts_of(node.target).name
        if name == "aten.sym_numel.default":
            number = math.prod(geometry.size)
        else:
            numbers = {"aten.sym_size.int": geometry.size, "aten.sym_stride.int": geometry.stride}.get(name)
            if numbers is None or not isinstance(node.args[1], int):
                raise Undecided("a question about the layout of a tensor")
            number = numbers[node.args[1]]
        self.integers[node] = number
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and concrete(value) == number:
            return Known(("symbolic", str(expression(value))))
        return Known(number)

    def _item(self, node: Node) -> Any:
        whole, part = self.value_of(node.args[0]), node.args[1]
        return Known(("item", whole.key, part)) if isinstance(whole, Known) else whole[part]

    def _clone(self, node: Node) -> View:
        source = self.tensor(node.args[0])
        if node.meta.get("val") is not None:
            return self.copied(source, node.name, node.meta["val"])
        place = self.geometries.apply(_CLONE, source.geometry, ())
        made = self.fresh(node.name, place)
        self.store(made, self.load(source))
        return made

    def _copy(self, node: Node) -> View:
        """The pure `copy`: the source, in memory like that of the first operand."""
        made = self.fresh(node.name, self.geometries.root(node.meta["val"]))
        self._write(made, self.tensor(node.args[1]))
        return made

    def _write(self, written: View, source: View) -> None:
        """Copy `source` over all of `written`, element by element, cast to its dtype."""
        place = source.geometry
        if place.size != written.geometry.size:
            found = self.geometries.apply(_EXPAND, place, (written.geometry.size,))
            if type(found) is not Geometry:
                raise Undecided(f"a copy of {list(place.size)} into {list(written.geometry.size)}")
            place = found
        if not written.geometry.is_empty:
            number = self.load(View(source.storage, place))
            self.store(written, self.cast(number, place.dtype, written.geometry))

    def cast(self, number: Number, dtype: torch.dtype, geometry: Geometry) -> Number:
        """The elements of a number converted to the dtype of the memory that they are written to."""
        if dtype is geometry.dtype:
            return number
        key = ("cast", number.index, dtype, geometry.dtype)
        return self.numbering.whole(key, bytes_of(geometry), f"{geometry.dtype} of a value")

    def _scatter(self, node: Node) -> Any:
        base, update, value = self.tensor(node.args[0]), self.tensor(node.args[1]), node.meta["val"]
        if self.geometries.root(value).overlaps_itself:  # it writes more than its window: an operator like any other
            given = parameters(facts_of(node.target), self.value_of(node.args), self.value_of(node.kwargs))
            return self.result(value, self._key(node, node.target, given), node.name)
        made = self.copied(base, node.name, value)
        view = WINDOWS[node.target]
        args = self.integers_of(tuple(parameters(facts_of(node.target), node.args, node.kwargs)[2:]))
        self._write(self._looked(view, node.args[0], made, args), update)
        return made

    # -- operators that write --------------------------------------------------------------------

    def _mutable(self, node: Node, op: Any, given: list[Any], value: Any) -> Any:
        """An operator that writes operands: as its pure form if it has one and they share no bytes, else as a term.

        `value`: what it returns, as far as it is known.
        """
        facts = facts_of(op)
        positions = hidden_writes(facts, tuple(given), {})
        form = self.shared.pure_forms.get(op) or (facts.twin if facts.kind is Kind.IN_PLACE else None)
        relation = self._relation(given, positions, form is not None and facts_of(form).pointwise)
        written = [view for k in positions for view in views_in(given[k])]
        if form is not None and not relation and not any(v.geometry.overlaps_itself for v in written):
            made = self._out(node, form, given) if facts_of(form).out is op else self._in_place(node, form, given)
            if made is not None:
                return made
        key = self._key(node, op, given, ("sharing", *relation))
        self._overwrite(written, key, node.name)
        aliases = facts.result_aliases
        if value is None and any(a < 0 for a in aliases):
            value = self._like(key, op)
        values = facts.each_result(value) if value is not None else (None,) * len(aliases)
        results = tuple(
            [
                given[a] if a >= 0 else self.result(v, ("result", key, k), node.name)
                for k, (a, v) in enumerate(zip(aliases, values, strict=True))
            ]
        )
        self.shared.likes.setdefault(key, value)
        return results[0] if len(results) == 1 else results

    def _like(self, key: Hashable, op: Any) -> Any:
        """What the same call returned in the pure program. Raises Different."""
        if key not in self.shared.likes:
            raise Different(f"calls {facts_of(op).name} on operands that the pure program never gives it")
        return self.shared.likes[key]

    def _overwrite(self, written: Sequence[View], key: Hashable, name: str) -> None:
        """Each written tensor holds a new value that only the call knows."""
        for k, view in enumerate(written):
            place = view.geometry
            if place.overlaps_itself:
                memory = View(view.storage, self.geometries.cover(place))
                more = (place.size, place.stride)
                self.store(memory, self.numbering.whole(("written", key, k, more), bytes_of(memory.geometry), name))
            elif not place.is_empty:
                self.store(view, self.numbering.whole(("written", key, k), bytes_of(view.geometry), name))

    def _relation(self, given: Any, positions: Sequence[int], same_is_fine: bool) -> tuple[Hashable, ...]:
        """How written operands share bytes with others: which, at what distance, with what strides.

        Two that are element for element the same are so in whatever memory.
        """
        views = [(view, k in positions) for k, value in enumerate(given) for view in views_in(value)]
        groups: dict[int, list[int]] = {}
        for k, (view, _) in enumerate(views):
            groups.setdefault(id(view.storage), []).append(k)
        found: list[Hashable] = []
        for group in groups.values():
            for i, j in itertools.combinations(group, 2) if len(group) > 1 else ():
                a, b = views[i][0].geometry, views[j][0].geometry
                if not (views[i][1] or views[j][1]) or (a is b and same_is_fine):
                    continue
                if self.geometries.overlap(a, b):
                    found.append((i, j) if a is b else (i, j, b.lo - a.lo, a.stride, b.stride))
        return tuple(found)

    def _in_place(self, node: Node, form: Any, given: list[Any]) -> Any:
        """The pure form of an operator, and its result stored in the first operand."""
        written = given[0]
        if not isinstance(written, View):
            raise Undecided("it writes what is no strided tensor")
        if form is _COPY:
            self._write(written, given[1])
            return written
        key, geometry = self._key(node, form, given), written.geometry
        like = self.shared.likes.get(key)
        dtype = like.dtype if isinstance(like, Tensor) else _dtype_of(form, given, geometry.dtype)
        if isinstance(like, Tensor) and size_of(like) != geometry.size:
            raise Different(f"puts a result of size {list(size_of(like))} into {list(geometry.size)}")
        if not geometry.is_empty:
            number = self.numbering.whole(key, math.prod(geometry.size) * dtype.itemsize, node.name)
            self.store(written, self.cast(number, dtype, geometry))
        return written

    def _out(self, node: Node, form: Any, given: list[Any]) -> View | None:
        """The pure form of an operator, and its result stored in ``out``, the last operand, if it is like that."""
        *operands, written = given
        key = self._key(node, form, operands)
        like = self.shared.likes.get(key)
        if not isinstance(written, View) or not isinstance(like, Tensor):
            return None
        geometry = written.geometry
        if size_of(like) != geometry.size or like.dtype is not geometry.dtype:
            return None
        if not geometry.is_empty:
            self.store(written, self.numbering.whole(key, bytes_of(geometry), node.name))
        return written

    def _functional_call(self, node: Node) -> tuple[Any, ...]:
        """A mutable operator on copies of what it writes; its own results, then the copies."""
        op: Any = node.args[0]
        args, kwargs, values = node.args[1], node.args[2], node.meta["val"]
        copies: list[View] = []

        def copied(view: Any) -> View:
            if not isinstance(view, View):
                raise Undecided("it writes what is no strided tensor")
            made = self.copied(view, node.name)
            copies.append(made)
            return made

        if node.target in V2_CALLS:
            for base in node.args[3]:  # type: ignore[union-attr]
                copied(self.value_of(base))
            args, kwargs = (
                map_base_views(a, lambda v: self.seen_through(copies[v.base], v.steps)) for a in (args, kwargs)
            )
            args, kwargs = self.value_of(args), self.value_of(kwargs)
        else:
            args, kwargs = map_written(op, self.value_of(args), self.value_of(kwargs), copied)
        given = parameters(facts_of(op), args, kwargs)
        aliases = facts_of(op).result_aliases
        own = values[0] if len(aliases) == 1 else tuple(values[: len(aliases)])
        made = self._mutable(node, op, given, own)
        results = (made,) if len(aliases) == 1 else made
        return (*(None if a >= 0 else r for a, r in zip(aliases, results, strict=True)), *copies)

    def seen_through(self, view: View, steps: Sequence[ViewStep]) -> View:
        """The part of a base that steps describe."""
        found: Any = view
        for step in steps:
            name, _, part = step.op.rstrip("]").partition("[")
            found = self._looked(operator_named(name), None, found, self.integers_of(step.args))
            if part:
                found = found[int(part)]
        return found  # type: ignore[no-any-return]

    def _subgraph(self, node: Node) -> tuple[Any, ...] | None:
        """A call that runs graphs of its own, each pair of which has its own proof; None if it is like any other."""
        found = self._parts_of_call(node)
        if found is None:
            return None
        call, bases, count = found
        written = [self.tensor(b) for b in bases]
        if self.is_pure:
            written = [self.copied(v, node.name) for v in written]
        carried, shared = self.value_of(call.carried), self.value_of(call.shared)
        given = [tuple(written), self.value_of(call.head), carried, shared]
        relation = self._relation(given, (0,), False)
        names = tuple([str(g.target) for g in call.graphs])
        key = self._key(node, node.target, given, names, ("sharing", *relation))
        values = tuple(node.meta["val"][:count]) if self.is_pure else self._like(key, node.target)
        results = self.result(values, key, node.name)
        self._overwrite(written, key, node.name)
        return (*results, *written) if self.is_pure else results

    def _parts_of_call(self, node: Node) -> tuple[SubgraphCall, tuple[Any, ...], int] | None:
        """The parts of a call without the bases that it writes, those, and how many results are the user's."""
        if self.is_pure:
            known = functional_call(self.program, node)
            return None if known is None else (known.call, known.bases, known.count)
        call = subgraph_call(node)
        inner = self.program.subgraphs.get(str(call.graphs[-1].target)) if call is not None else None
        if call is None or inner is None:
            return None
        signature = inner.signature
        bases = call.shared[: len(signature.mutations)]
        call = replace(call, shared=call.shared[len(bases) :])
        return call, bases, len(signature.outputs)


def _dtype_of(form: Any, given: Sequence[Any], usual: torch.dtype) -> torch.dtype:
    """The dtype of what `form` makes of its operands before it is cast; `usual` where PyTorch cannot say."""
    try:
        made = form(*(v.geometry.tensor if isinstance(v, View) else v for v in given))
    except (RuntimeError, TypeError, ValueError):
        return usual
    return made.dtype if isinstance(made, Tensor) else usual


def turns_of(functional: Program, lowered: Program) -> dict[Node, int]:
    """The turn of every pure node with an effect: as the pure graph stands, or in the order of capture, if that is
    known of all and `lowered` says that it keeps it. Either order is right."""
    found = _effects(functional)
    if all("reink_order" in n.meta for n in found):
        due = [n.meta["reink_of"] for n in _effects(lowered) if isinstance(n.meta.get("reink_of"), Node)]
        orders = [n.meta["reink_order"] for n in due if "reink_order" in n.meta]
        if orders == sorted(orders):
            found.sort(key=lambda n: n.meta["reink_order"])
    return {node: k for k, node in enumerate(found)}


def _effects(program: Program) -> list[Node]:
    return [n for n in program.graph.nodes if n.op == "call_function" and _has_effect(n)]


def _has_effect(node: Node) -> bool:
    return facts_of(node.args[0] if node.target in CALLS else node.target).ordered


_BY_TARGET: dict[Any, Callable[[Evaluation, Node], Any]] = {
    operator.getitem: Evaluation._item,
    _CLONE: Evaluation._clone,
    _COPY: Evaluation._copy,
    **dict.fromkeys(WINDOWS, Evaluation._scatter),
}
