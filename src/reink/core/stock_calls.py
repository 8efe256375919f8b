"""torch's own functional calls of mutable operators, read as reink's, and reink's written as torch's.

torch's v1, ``auto_functionalized(op, **arguments)``, returns the operator's results (None if it has none), then one new
value for each written argument: a list for a list, None for a missing one. Its v2 leaves the written arguments out,
lists their bases under ``_all_bases``, says under ``_<argument>_...`` how each is a view of its base, and returns one
new value for each base. Offsets there count from the start of the storage, here from the start of the base.

An argument that is only read is in torch's form a value, the one from before the call. What the program meant is lost,
unless `mark_shared_operands` has seen the graph before a pass dropped a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, canonical, view_value
from reink.core.calls import auto_functionalized, auto_functionalized_effect, auto_functionalized_v2
from reink.core.opinfo import Kind, OpFacts, Parameter, facts_of, operator_name, positional
from reink.core.program import BaseView, ViewStep, source_of
from reink.core.torch_internals import STOCK_V1, STOCK_V2, NodeAppender, OpOverload, expression, pytree
from reink.core.views import chain as chain_of
from reink.core.views import lies_in, single_step, step_operator, strided_place
from reink.errors import ReinkError

Node = torch.fx.Node
aten = torch.ops.aten

STOCK_CALLS = frozenset({STOCK_V1, STOCK_V2})
_SHARED = "reink_shared_operands"
_GONE = object()


def from_stock(graph: torch.fx.Graph) -> int:
    """Replace torch's own functional calls in `graph` by reink's; returns how many there were.

    A call of something that is no operator (a region with writes inside) is left as it is. Raises ReinkError
    ``unknown-call`` for one that is not as torch writes it.
    """
    known: dict[Any, Node] = {}
    append = NodeAppender(graph).append
    found = 0
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            known.setdefault(expression(value), node)
        elif is_stock_call(node):
            _Reading(node, known, append).run()
            found += 1
    return found


def is_stock_call(node: Node) -> bool:
    """Whether `node` is a functional call of an operator in torch's own form."""
    return node.op == "call_function" and node.target in STOCK_CALLS and isinstance(node.args[0], OpOverload)


def mark_shared_operands(graph: torch.fx.Graph) -> None:
    """Note on each of torch's calls which arguments lie in memory that it writes, and where.

    To be done before any pass drops a copy: from then on such an argument looks like a copy that was dropped.
    """
    for node in graph.nodes:
        if is_stock_call(node):
            shared = _shared_operands(node)
            if shared:
                node.meta[_SHARED] = shared


def _shared_operands(node: Node) -> dict[str, Any]:
    """The arguments of `node` that lie in written memory, by name: number of the memory and view steps, lists as lists.

    The steps hold values instead of nodes, since a partitioner copies what is noted to the nodes of another graph.
    """
    facts = facts_of(node.args[0])
    v1 = node.target is STOCK_V1
    given = {p.name: node.kwargs.get(p.name) for p in facts.parameters if p.holds_tensors}
    written = [n for p in facts.parameters if p.written for n in _nodes(given.get(p.name))] if v1 else ()
    bases: list[Node] = [_root(n)[0] for n in written] if v1 else list(node.kwargs["_all_bases"])  # type: ignore[arg-type]
    roots = list(dict.fromkeys(bases))
    read = [n for p in facts.parameters if not p.written for n in _nodes(given.get(p.name))]
    if (not v1 or len(roots) == len(bases)) and not any(_root(n, roots)[0] in roots for n in read):
        return {}

    def described(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [described(v) for v in value]
        root, steps = _root(value, roots) if isinstance(value, Node) else (None, ())
        return (roots.index(root), _without_nodes(steps)) if root in roots else None

    return {name: described(value) for name, value in given.items()}


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _nodes(item)


def _root(node: Node, stops: Collection[Node] = ()) -> tuple[Node, tuple[ViewStep, ...]]:
    """The tensor that `node` is a view of, one of `stops` if there is one on the way, and how."""
    steps: list[ViewStep] = []
    while node.op == "call_function" and node not in stops:
        facts = facts_of(node.target)
        if facts.kind is not Kind.VIEW or not isinstance(node.args[0], Node):
            break
        steps.append(ViewStep(facts.name, positional(facts, node, 1)))
        node = node.args[0]
    return node, tuple(steps[::-1])


def _without_nodes(steps: tuple[ViewStep, ...]) -> tuple[ViewStep, ...]:
    return tuple(ViewStep(s.op, torch.fx.map_arg(s.args, lambda n: n.meta["val"])) for s in steps)


class _Shared:
    """What was noted of a call, for reading it: the memories `bases`, and which argument is which view of them."""

    def __init__(self, noted: dict[str, Any], bases: list[Node], known: dict[Any, Node]) -> None:
        self._noted, self.bases, self._known = noted, bases, known

    def names(self) -> list[str]:
        """The arguments of which something was noted."""
        return [name for name, place in self._noted.items() if place is not None]

    def view(self, name: str, value: Any) -> Any:
        """The argument as a view of a base; as it is where no view was noted, or a size of it is gone."""
        return self._view(value, self._noted[name])

    def _view(self, value: Any, place: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._view(v, p) for v, p in zip(value, place, strict=True)]
        steps = None if place is None else self._with_nodes(place[1])
        return value if steps is None else BaseView(place[0], steps)

    def _with_nodes(self, steps: tuple[ViewStep, ...]) -> tuple[ViewStep, ...] | None:
        found = pytree.tree_map(self._number, [s.args for s in steps])
        if any(v is _GONE for v in pytree.tree_leaves(found)):
            return None
        return tuple(ViewStep(s.op, args) for s, args in zip(steps, found, strict=True))

    def _number(self, value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return value
        expr = expression(value)
        return expr if type(expr) is int else self._known.get(expr, _GONE)


class _Reading:
    """One call of torch's, and the call of reink's that takes its place. `known` are nodes for symbolic numbers."""

    def __init__(self, node: Node, known: dict[Any, Node], append: Callable[..., Node]) -> None:
        self.node, self.graph, self.known, self._append = node, node.graph, known, append
        self.op: Any = node.args[0]
        self.facts: OpFacts = facts_of(self.op)
        self.given: dict[str, Any] = dict(node.kwargs)
        self.stock_count = max(1, len(self.facts.result_aliases))
        self.count = len(self.facts.result_aliases)
        self.call: Node | None = None
        self.results: dict[int, Node] = {}
        self.replays: list[tuple[Node, int]] = []

    def run(self) -> None:
        with self.graph.inserting_before(self.node):
            if self.node.target is STOCK_V2:
                self._v2(self._read_v2())
            elif (shared := self._shared_v1()) is not None:
                self._v2(self._v1_as_v2(shared))
                self._carry_on(shared.bases)
            else:
                self._v1()
        self.graph.erase_node(self.node)

    # -- v1 --------------------------------------------------------------------------------------

    def _v1(self) -> None:
        written = [self._take(p.name) for p in self._written()]
        flat = list(_nodes(written))
        args, kwargs = self._arguments({p.name: w for p, w in zip(self._written(), written, strict=True)})
        self._emit(auto_functionalized, (self.op, args, kwargs), [n.meta["val"] for n in flat])
        numbers = iter(range(self.count, self.count + len(flat)))
        new = [self._each(w, lambda _: self._result(next(numbers))) for w in written]
        self._replace_results(new)

    def _v1_as_v2(self, shared: _Shared) -> tuple[list[Node], dict[str, Any], list[Any]]:
        """Bases, arguments and new values of a v1 call whose arguments share memory: v1 cannot say that."""
        arguments = {name: shared.view(name, self._take(name)) for name in shared.names()}
        return shared.bases, arguments, [arguments[p.name] for p in self._written()]

    def _carry_on(self, bases: list[Node]) -> None:
        """Let the scatters of new values into an old base write its new value, which has them all."""
        waiting = list(self.replays)
        while waiting:
            update, base = waiting.pop()
            for user in list(update.users):
                into = user.args[0] if user.op == "call_function" and facts_of(user.target).window else None
                root, steps = _root(into, bases) if isinstance(into, Node) and user.args[1] is update else (None, ())
                if root is bases[base]:
                    user.update_arg(0, self._replayed(BaseView(base, steps)))
                    waiting.append((user, base))

    def _shared_v1(self) -> _Shared | None:
        """What was noted of a v1 call, if its written arguments still are the views that they were."""
        noted, found = self.node.meta.get(_SHARED, {}), dict[int, Node]()
        for parameter in self._written() if noted else ():
            given, places = self.given.get(parameter.name), noted[parameter.name]
            pairs = zip(given, places, strict=True) if isinstance(given, (list, tuple)) else [(given, places)]
            for node, place in pairs:
                if not isinstance(node, Node):
                    continue
                root, steps = _root(node)
                if place is None or _without_nodes(steps) != place[1] or found.setdefault(place[0], root) is not root:
                    return None
        return _Shared(noted, [found[k] for k in sorted(found)], self.known) if noted else None

    # -- v2 --------------------------------------------------------------------------------------

    def _read_v2(self) -> tuple[list[Node], dict[str, Any], list[Any]]:
        """The bases, the written arguments as views of them, and what the new values after the results are."""
        bases = list(self._take("_all_bases"))
        if not bases and any(f"_{p.name}_dtype" in self.given for p in self._written()):
            bases = [self._empty(p.name) for p in self._written()]
            whole = {p.name: BaseView(k) for k, p in enumerate(self._written())}
            return bases, whole, []
        views: dict[str, Any] = {}
        for parameter in self._written():
            views[parameter.name] = self._read_argument(parameter, bases)
        return bases, {**views, **self._read_only(bases)}, [BaseView(k) for k in range(len(bases))]

    def _read_argument(self, parameter: Parameter, bases: list[Node]) -> Any:
        name = parameter.name
        if f"_{name}_length" in self.given:
            length = self._take(f"_{name}_length")
            return None if length is None else [self._view(f"_{name}_{k}", bases) for k in range(length)]
        return self._view(f"_{name}", bases)

    def _view(self, prefix: str, bases: list[Node]) -> BaseView | None:
        index = self._take(f"{prefix}_base_index")
        if index is None:
            return None
        if not isinstance(index, int) or not 0 <= index < len(bases):
            raise self._unknown(f"{prefix}_base_index is {index}, and there are {len(bases)} bases")
        base = bases[index]
        if f"{prefix}_alias" in self.given:
            self._take(f"{prefix}_alias")
            return BaseView(index)
        if f"{prefix}_storage_offset" in self.given:
            parts = [self._take(f"{prefix}_{part}") for part in ("size", "stride", "storage_offset")]
            return BaseView(index, self._strided(base, *parts))
        if f"{prefix}_slice_dim" in self.given:
            parts = [self._take(f"{prefix}_slice_{part}") for part in ("dim", "start", "end")]
            return BaseView(index, (self._slice(base, *parts),))
        return BaseView(index)

    def _read_only(self, bases: list[Node]) -> dict[str, Any]:
        """The arguments that are only read and lie in a base, as far as that was noted."""
        shared = _Shared(self.node.meta.get(_SHARED, {}), bases, self.known)
        only_read = {p.name for p in self.facts.parameters if not p.written}
        return {name: shared.view(name, self._take(name)) for name in shared.names() if name in only_read}

    def _empty(self, name: str) -> Node:
        """The memory that an ``out`` argument is written in: torch keeps only its layout."""
        size, stride, dtype, device = (self._take(f"_{name}_{p}") for p in ("size", "stride", "dtype", "device"))
        base = self._append(aten.empty_strided.default, (size, stride), {"dtype": dtype, "device": device})
        base.meta["val"] = self._result_values()[[p.name for p in self._written()].index(name)]
        return base

    def _v2(self, read: tuple[list[Node], dict[str, Any], list[Any]]) -> None:
        bases, views, new = read
        ordered = self.facts.ordered and not self.facts.random
        args, kwargs = self._arguments(views)
        form = auto_functionalized_effect if ordered else auto_functionalized_v2
        self._emit(form, (self.op, args, kwargs, tuple(bases)), [b.meta["val"] for b in bases])
        self._replace_results([self._each(v, self._replayed) for v in new], views)

    def _replayed(self, view: BaseView) -> Node:
        """The argument that `view` describes, on the new value of its base."""
        node = self._result(self.count + view.base)
        for step in view.steps:
            value = node.meta["val"]
            node = self._append(step_operator(step), (node, *step.args))
            node.meta["val"] = view_value(value, step)
        self.replays.append((node, view.base))
        return node

    # -- views -----------------------------------------------------------------------------------

    def _slice(self, base: Node, dim: int, start: Any, end: Any) -> ViewStep:
        """A slice, of which torch counts start and end from the start of the storage that the base lies in."""
        value = base.meta["val"]
        before = expression(value.storage_offset())
        if before != 0:
            skipped = before / expression(value.stride(dim))
            start, end = (self._node_for(expression(_value(n)) - skipped) for n in (start, end))
        if start is None or end is None:
            raise self._unknown(f"it slices {base.name}, which begins {before} elements into its storage")
        return ViewStep("aten.slice.Tensor", (dim, start, end))

    def _strided(self, base: Node, size: Any, stride: Any, offset: Any) -> tuple[ViewStep, ...]:
        """The view of `base` with this size and strides, `offset` elements from the start of the storage."""
        value = base.meta["val"]
        numbers = [expression(_value(n)) for n in (*size, *stride, offset)]
        rank, root = len(size), Buffer("fresh", base.name, value).root
        moved = numbers[-1] - expression(value.storage_offset())
        sizes, strides = tuple(numbers[:rank]), tuple(numbers[rank:-1])
        item = root.dtype.itemsize
        place = Place(root.buffer, sizes, canonical(sizes, strides), moved * item, root.dtype, root.bits, None, None)
        if place.is_symbolic() or root.is_symbolic():
            return self._symbolic(root, place, moved, (size, stride, offset), base)
        step = single_step(place)
        if step is not None:
            return (step,)
        described = strided_place(place)
        if described is None or not lies_in(root, place):
            raise ReinkError(
                "view-outside-input",
                f"cannot read a call of {self.facts.name}: it is given memory outside {base.name}",
                where=_where(self.node),
                why=f"the view begins {moved} elements from the start of {base.name}",
                do="compile the program with reink as a whole: torch has lost what the view is a view of",
            )
        return chain_of(described)

    def _symbolic(self, root: Place, place: Place, moved: Any, numbers: Any, base: Node) -> tuple[ViewStep, ...]:
        """The same for sizes that are no plain numbers: by one view if the expressions say so, else flat memory."""
        step = self._symbolic_step(root, place, moved)
        if step is not None:
            return (step,)
        size, stride, offset = numbers
        start = root.value.storage_offset()
        if expression(start) != 0:
            begin = start if type(start) is int else self._number(aten.sym_storage_offset.default, base)
            offset = self._number(operator.sub, offset, begin)
        end = self._number(operator.add, offset, 1)
        for n, s in zip(size, stride, strict=True):
            end = self._number(operator.add, end, self._number(operator.mul, self._number(operator.sub, n, 1), s))
        flat = ViewStep("aten.as_strided.default", ([end], [1]))
        cut = ViewStep("aten.slice.Tensor", (0, offset, end))
        return flat, cut, ViewStep("aten.as_strided.default", (list(size), list(stride)))

    def _symbolic_step(self, root: Place, place: Place, moved: Any) -> ViewStep | None:
        rank = len(root.size)
        for dim in range(rank):
            stride = root.stride[dim]
            index = self._node_for(moved / stride) if stride != 0 else None
            if index is None:
                continue
            rest = root.size[:dim] + root.size[dim + 1 :], root.stride[:dim] + root.stride[dim + 1 :]
            if rest == (place.size, place.stride):
                return ViewStep("aten.select.int", (dim, index))
            same = [d for d in range(rank) if len(place.size) == rank and place.size[d] == root.size[d]]
            if place.stride == root.stride and same == [d for d in range(rank) if d != dim]:
                end = self._node_for(moved / stride + place.size[dim])
                return None if end is None else ViewStep("aten.slice.Tensor", (dim, index, end))
        return None

    def _node_for(self, wanted: Any) -> Any:
        """A number or a node of the graph whose value is `wanted`; None if there is none."""
        if isinstance(wanted, (int, float)):
            return int(wanted) if wanted == int(wanted) else None
        return int(wanted) if wanted.is_Integer else self.known.get(wanted)

    def _number(self, function: Any, *operands: Any) -> Any:
        values = [_value(o) for o in operands]
        if not any(isinstance(o, Node) for o in operands):
            return function(*values)
        node = self._append(function, operands)
        node.meta["val"] = function(*values)
        return node

    # -- the call --------------------------------------------------------------------------------

    def _written(self) -> list[Parameter]:
        return [self.facts.parameters[k] for k in self.facts.written]

    def _take(self, name: str) -> Any:
        if name not in self.given:
            raise self._unknown(f"it has no {name}")
        return self.given.pop(name)

    def _arguments(self, written: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments in the order of the schema, and what is left must be none."""
        values = {
            p.name: written[p.name] if p.name in written else self.given.pop(p.name, p.default)
            for p in self.facts.parameters
        }
        if self.given:
            raise self._unknown(f"it has {', '.join(self.given)}, which {self.facts.name} does not take")
        args = tuple(values[p.name] for p in self.facts.parameters if not p.keyword_only)
        return args, {p.name: values[p.name] for p in self.facts.parameters if p.keyword_only}

    def _result_values(self) -> tuple[Any, ...]:
        value = self.node.meta.get("val")
        if value is None:
            raise self._unknown('it has no meta["val"]')
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)

    def _emit(self, form: Any, args: tuple[Any, ...], new: list[Any]) -> None:
        values = self._result_values()[: self.count]
        own = [None if a >= 0 else v for a, v in zip(self.facts.result_aliases, values, strict=True)]
        call = self.call = self._append(form, args)
        call.meta.update({k: v for k, v in self.node.meta.items() if k != _SHARED})
        call.meta["val"] = (*own, *new)
        if self.facts.ordered:
            call.meta["reink_ordered"] = True

    def _result(self, index: int) -> Node:
        """Result `index` of the new call."""
        found = self.results.get(index)
        if found is None:
            assert self.call is not None
            found = self.results[index] = self._append(operator.getitem, (self.call, index))
            found.meta["val"] = self.call.meta["val"][index]
        return found

    def _each(self, value: Any, change: Any) -> Any:
        if isinstance(value, (list, tuple)) and not isinstance(value, BaseView):
            return [self._each(v, change) for v in value]
        return None if value is None else change(value)

    def _replace_results(self, new: list[Any], views: dict[str, Any] | None = None) -> None:
        """Give the users of the old call's results the new ones; `new` are those after the operator's own."""
        users = list(self.node.users)
        whole = not isinstance(self.node.meta["val"], (list, tuple))
        if whole:
            self.node.replace_all_uses_with(self._own(0, new, views))
            return
        for user in users:
            if facts_of(user.target).kind is not Kind.GETITEM:
                raise self._unknown(f"{user.name} takes all its results at once")
            index = _index(user)
            own = index < self.stock_count
            self._replace(user, self._own(index, new, views) if own else new[index - self.stock_count])

    def _own(self, index: int, new: list[Any], views: dict[str, Any] | None) -> Any:
        """Result `index` of the operator: its own, or the new value of the argument that it is."""
        if index >= self.count:
            return None
        position = self.facts.result_aliases[index]
        if position < 0:
            return self._result(index)
        if views is not None:
            return self._each(views[self.facts.parameters[position].name], self._replayed)
        return new[self.facts.written.index(position)]

    def _replace(self, old: Node, new: Any) -> None:
        if isinstance(new, list):
            for user in list(old.users):
                if facts_of(user.target).kind is not Kind.GETITEM:
                    raise self._unknown(f"{user.name} takes a list of new values at once")
                self._replace(user, new[_index(user)])
        elif isinstance(new, Node):
            old.replace_all_uses_with(new)
        elif old.users:
            raise self._unknown(f"{next(iter(old.users)).name} uses {old.name}, which is None")
        self.graph.erase_node(old)

    def _unknown(self, why: str) -> ReinkError:
        return ReinkError(
            "unknown-call",
            f"cannot read the functional call {self.node.name} of {operator_name(self.op)}",
            where=_where(self.node),
            why=why,
            do="give the graph as torch made it, with the fake values that it was traced with",
        )


def _index(getitem: Node) -> int:
    index = getitem.args[1]
    assert isinstance(index, int)
    return index


def _value(number: Any) -> Any:
    return number.meta["val"] if isinstance(number, Node) else number


def _where(node: Node) -> str:
    source = source_of(node)
    return str(source) if source is not None else ""
