"""From a mutating program to a pure one: every write becomes a new version, every view is replayed.

Two rules. An in-place operator becomes its out-of-place twin, and the ledger binds every name of that tensor
to the result. A write through a view is carried back into the base, and views are replayed from the newest
base when they are next read. One walk, graph to graph; shapes are copied from the captured program, so no
operator runs again (`TwinLayouts` asks torch once for each kind of call).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place, SymbolFacts, canonical, layout_of, may_overlap
from reink.core.emitting import GraphEmitter, TwinLayouts
from reink.core.epilogue import epilogue_copies
from reink.core.ledger import Ledger, Record, ignore
from reink.core.opinfo import Kind, OpFacts, facts_of, positional
from reink.core.program import Form, InputMutation, MutationSignature, Program, ViewStep, attribute_of
from reink.core.torch_internals import detect_fake_mode, graph_module, input_nodes
from reink.core.values import Pending, Values
from reink.core.views import (
    is_contiguous,
    lies_in,
    list_view_steps,
    needs_layout,
    place_by_geometry,
    single_step,
    strided_place,
    with_write_back,
)
from reink.errors import ReinkError
from reink.passes.doubtful import DoubtfulCopies
from reink.passes.metadata import MetadataChanges
from reink.passes.mutable_calls import MutableCalls
from reink.passes.outputs import output_specs
from reink.passes.refusals import (
    outside_input,
    refuse_hidden_alias,
    refuse_unknown_squeeze,
    refuse_unwritable,
    unknown_alias,
    where,
)
from reink.passes.subgraphs import Bound, Subgraphs

Node = torch.fx.Node
Tensor = torch.Tensor
Watch = Callable[[Node, Any, torch.fx.Graph], None]
aten = torch.ops.aten

# Looked up once: reading an operator of torch.ops runs Python code.
_STRIDED_SCATTER = aten.as_strided_scatter.default
_COPY = "aten.copy_.default"
# Longer chains are described afresh from the base, so that a view of a view of ... stays linear.
LONGEST_CHAIN = 4


def functionalize(
    program: Program, *, strategy: str = "v2", record: Record = ignore, watch: Watch | None = None
) -> Program:
    """The pure form of a captured program. `strategy` chooses the call form of mutable operators.

    `record` hears every entry of the ledger; `watch` is told after each captured node what it became, and the graph as
    far as it is. Raises ReinkError for what cannot be said purely; never leaves a write out.
    """
    assert program.form is Form.MUTABLE
    return _Functionalizer(program, strategy, record, watch=watch).run()


class _Functionalizer:
    """One graph. `inner`: a call inside another graph runs it, and `bound` says, if that is known, what it is given."""

    def __init__(
        self,
        program: Program,
        strategy: str,
        record: Record,
        *,
        inner: bool = False,
        bound: Bound | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.program, self.strategy, self.inner, self.bound, self.watch = program, strategy, inner, bound, watch
        self.graph = torch.fx.Graph()
        self.emitter = GraphEmitter(self.graph)
        self.ledger = Ledger(self.emitter, record)
        self.emitter.read = self.ledger.read
        self.layouts = TwinLayouts()
        self.values = Values(self.ledger)
        self.calls = MutableCalls(self.emitter, self.ledger, self.values, strategy)
        self.metadata = MetadataChanges(self.emitter, self.ledger, self.values, self._new_buffer)
        self.subgraphs = Subgraphs(program, self.graph, self.emitter, self.ledger, self.values, self._inner)
        self.copies = DoubtfulCopies(self.values, self.ledger)
        self.constants: dict[str, Any] = {}
        self.bare = False
        self.inputs: list[Node] = []
        self.offset_sensitive: dict[int, int] = {}
        self.facts: SymbolFacts | None = None
        self.epilogue = epilogue_copies(program)

    # -- the walk --------------------------------------------------------------------------------

    def run(self) -> Program:
        if self.bound is not None:
            self._bind(self.bound)
        self._walk(self.program.graph)
        signature = self._output(self.program.output())
        self.subgraphs.finish()
        attributes = {**self.constants, **self.subgraphs.modules()}
        module = graph_module(self.program.module, self.graph, attributes)
        return Program(module, Form.FUNCTIONAL, signature, self.program.out_spec, self.subgraphs.made, self.bare)

    def _walk(self, graph: torch.fx.Graph) -> None:
        rules = {
            Kind.VIEW: self._view,
            Kind.VIEW_LIST: self._view_list,
            Kind.PURE: self._pure,
            Kind.PYTHON: self._pure,
            Kind.SUBGRAPH: self._subgraph,
            Kind.IN_PLACE: self._in_place,
            Kind.CALL: self._call,
            Kind.METADATA: self._metadata,
            Kind.GETITEM: self._getitem,
        }
        for node in graph.nodes:
            self.emitter.origin, self.emitter.stack_trace = node, node.meta.get("stack_trace")
            if node.op == "call_function":
                facts = facts_of(node.target)
                rules[facts.kind](node, facts)
                self.copies.meet(node, facts)
            elif node.op == "placeholder":
                if node not in self.values:
                    self._placeholder(node)
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op != "output":
                raise ReinkError("not-pure", f"cannot functionalize a {node.op} node: {node.name}", where=where(node))
            if self.watch is not None:
                self.watch(node, self.values.get(node), self.graph)

    def _inner(self, program: Program, bound: Bound | None) -> Program:
        """A graph that a call runs, by the same rules."""
        return _Functionalizer(program, self.strategy, ignore, inner=True, bound=bound).run()

    def _bind(self, bound: Bound) -> None:
        """Make the inputs that an inner graph is given, and say what its captured inputs are in them."""
        given: list[Any] = []
        for name, value in bound.inputs:
            new = self.graph.placeholder(name)
            new.meta["val"] = value
            tensor = isinstance(value, Tensor)
            given.append(self._new_buffer("input", new, value, len(given)).root if tensor else new)
            self.inputs.append(new)

        def numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
            mapped: tuple[Any, ...] = torch.fx.map_arg(args, lambda n: given[bound.numbers[n]])
            return mapped

        for node, (k, place) in zip(self.program.placeholders(), bound.captured, strict=True):
            self.values[node] = given[k] if place is None else place.replanted(given[k], numbers)

    def _placeholder(self, node: Node) -> None:
        new = self.graph.placeholder(node.target if isinstance(node.target, str) else node.name)
        new.meta.update(node.meta)
        index = len(self.inputs)
        self.inputs.append(new)
        self._open(node, new, "input", index)

    def _constant(self, node: Node) -> None:
        assert isinstance(node.target, str)
        if self.subgraphs.graph_of(node) is not None:
            return
        name = node.target
        if node.graph is not self.program.graph:  # of a graph that became part of this one
            name = f"{name.replace('.', '_')}_{len(self.constants)}"
            self.constants[name] = attribute_of(node.graph.owning_module or self.program.module, node.target)
        new = self.graph.get_attr(name)
        new.meta.update(node.meta)
        self._open(node, new, "constant")

    def _open(self, node: Node, new: Node, kind: str, index: int = -1) -> None:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            self.values[node] = self._new_buffer(kind, new, value, index).root
        else:
            self.values[node] = new

    def _new_buffer(self, kind: str, node: Node, value: Tensor, index: int = -1) -> Buffer:
        buffer = Buffer(kind, node.name, value, index)
        if self.facts is None:
            mode = detect_fake_mode([value])
            self.facts = SymbolFacts(mode.shape_env if mode is not None else None)
        buffer.facts = self.facts
        self.ledger.open(buffer, node)
        return buffer

    # -- rules -----------------------------------------------------------------------------------

    def _pure(self, node: Node, facts: OpFacts) -> None:
        if node.target is _STRIDED_SCATTER and _storage_offset(node) is not None:
            self._strided_scatter(node)
            return
        value = node.meta.get("val")
        new = self.emitter.emit(
            node.target,
            tuple(self.values.read_all(node.args)),
            value,
            self.values.read(node.kwargs) if node.kwargs else None,
        )
        if "reink_ordered" in node.meta:
            new.meta["reink_ordered"] = True
        if not facts.name.startswith("aten.") and facts.kind is Kind.PURE:
            refuse_hidden_alias(node, facts)
        self.values[node] = self._results(new, value)

    def _strided_scatter(self, node: Node) -> None:
        """`as_strided_scatter` from the start of the storage: the same content, and a write through a view of it."""
        base: Any = node.args[0]
        source, size, stride = node.args[1:4]
        parent, value = self.values[base], node.meta["val"]
        root = self.values[node] = self._new_buffer("fresh", self.ledger.read(parent), value).root
        offset = _storage_offset(node) - layout_of(base.meta["val"])[2]
        moved = offset * root.dtype.itemsize
        shape = tuple(size), canonical(tuple(size), tuple(stride))  # type: ignore[arg-type]
        described = strided_place(Place(root.buffer, *shape, moved, root.dtype, root.bits, None, None))
        if parent.buffer.kind == "input":
            self.offset_sensitive[parent.buffer.input_index] = layout_of(parent.buffer.root.value)[2]
        if described is None or root.stride != parent.stride or not lies_in(root, described):
            raise outside_input(node, parent.buffer)
        self.ledger.write(described, self.values.read(source))

    def _results(self, new: Node, value: Any) -> Any:
        """What a call returned: a place of a new buffer for a tensor, a tuple for several results."""
        if isinstance(value, Tensor):
            return self._new_buffer("fresh", new, value).root
        if isinstance(value, (list, tuple)):
            return tuple(Pending(new, k, v) for k, v in enumerate(value))
        return new

    def _getitem(self, node: Node, facts: OpFacts) -> None:
        container, index = node.args
        items = self.values[container]  # type: ignore[index]
        if not isinstance(items, (list, tuple)):
            self._pure(node, facts)
            return
        item = items[index]  # type: ignore[index]
        if isinstance(item, Pending):
            item = self._taken(item)
            self.values[container] = tuple(item if k == index else v for k, v in enumerate(items))  # type: ignore[index]
        self.values[node] = item

    def _subgraph(self, node: Node, facts: OpFacts) -> None:
        """A call that runs graphs of its own."""
        inlined = self.subgraphs.inlined(node, facts)
        if inlined is not None:
            self._inline(node, *inlined)
            return
        results = self.subgraphs.call(node, facts)
        if results is None:
            self._pure(node, facts)
        else:
            self.values[node] = results

    def _inline(self, node: Node, module: torch.fx.GraphModule, operands: tuple[Any, ...]) -> None:
        """Walk over a graph that `node` runs once as if it stood here."""
        inner = Program(module, Form.MUTABLE)
        for placeholder, operand in zip(inner.placeholders(), operands, strict=True):
            self.values[placeholder] = self.values[operand] if isinstance(operand, Node) else operand
        self._walk(module.graph)
        results = tuple([self.values[r] if isinstance(r, Node) else r for r in inner.results()])
        self.values[node] = results if isinstance(inner.output().args[0], (list, tuple)) else results[0]

    def _view(self, node: Node, facts: OpFacts) -> None:
        base: Any = node.args[0]
        parent = self.values[base]
        if type(parent) is not Place or facts.result_aliases[0] > 0:
            raise unknown_alias(node, facts)
        if facts.name.startswith("aten.as_strided"):
            self.values[node] = self._strided(node, parent)
            return
        if facts.name.startswith("aten.squeeze"):
            refuse_unknown_squeeze(node, facts)
        step = ViewStep(facts.name, tuple(self.values.read_all(positional(facts, node, 1))))
        self.values[node] = self._shortened(parent.child(step, base.meta["val"], node.meta["val"]))

    def _shortened(self, place: Place) -> Place:
        """`place` by a shorter chain, if its own is long and there is one."""
        if place.depth <= LONGEST_CHAIN:
            return place
        step = single_step(place)
        shorter: Place | None
        if step is not None:
            shorter = Place(
                place.buffer,
                place.size,
                place.stride,
                place.offset,
                place.dtype,
                place.bits,
                place.buffer.root,
                step,
            )
        else:
            shorter = strided_place(place)
        if shorter is None:
            return place
        shorter.value = place.value
        place.buffer.places[place.key()] = shorter
        return shorter

    def _strided(self, node: Node, parent: Place) -> Place:
        """`as_strided`, made relative: an explicit offset counts from the start of the whole storage."""
        args, buffer = positional(facts_of(node.target), node, 1), parent.buffer
        if len(args) > 2 and args[2] is not None and buffer.kind == "input":
            self.offset_sensitive[buffer.input_index] = layout_of(buffer.root.value)[2]
        described = place_by_geometry(buffer, node.meta["val"], parent.bits)
        if described is None:
            raise outside_input(node, buffer)
        return described

    def _view_list(self, node: Node, facts: OpFacts) -> None:
        parent, values = self.values[node.args[0]], node.meta["val"]  # type: ignore[index]
        if type(parent) is not Place:
            raise unknown_alias(node, facts)
        args = [parent, *self.values.read(positional(facts, node, 1))]
        steps = list_view_steps(facts.name, args, len(values), parent.size, self._number)
        if steps is None:
            raise unknown_alias(node, facts)
        parent_value = node.args[0].meta["val"]  # type: ignore[union-attr]
        places = [parent.child(step, parent_value, value) for step, value in zip(steps, values, strict=True)]
        self.values[node] = tuple(map(self._shortened, places))

    def _number(self, function: Any, a: Any, b: Any) -> Any:
        """`a + b` or `a * b` (`function` is torch.add or torch.mul); a node when one of them is symbolic."""
        plain = operator.add if function is torch.add else operator.mul
        if not isinstance(a, Node) and not isinstance(b, Node):
            return plain(a, b)
        values = [v.meta["val"] if isinstance(v, Node) else v for v in (a, b)]
        return self.emitter.emit(plain, (a, b), plain(*values))

    def _metadata(self, node: Node, facts: OpFacts) -> None:
        moved = self.metadata.moved(node, facts)
        if moved is None:
            self._view(node, self.metadata.view(node, facts))
        else:
            self.values[node] = moved

    # -- writes ----------------------------------------------------------------------------------

    def _in_place(self, node: Node, facts: OpFacts) -> None:
        dest = self.values[node.args[0]]  # type: ignore[index]
        refuse_unwritable(node, facts, dest)
        if facts.name == _COPY and self.values.place(node.args[1]) is dest:  # of a tensor into itself
            self.values[node] = dest
            return
        written = None if dest.overlaps_itself() else with_write_back(dest)
        if written is None or self._depends_on_memory(node, facts, dest):
            self._call(node, facts)
            return
        if facts.name == _COPY:
            update = self._copied(node, written)
        else:
            filled = self._filled_in(node, facts)
            layout = self.layouts.of(facts.twin, node, filled, self.values)
            if layout is None:
                self._call(node, facts)
                return
            update = self._twin(node, facts, written, filled, *layout)
        self.values[node] = dest
        self.ledger.write(written, update)

    def _depends_on_memory(self, node: Node, facts: OpFacts, dest: Place) -> bool:
        """Whether eager's answer depends on where operands lie, so that the operator itself has to be kept.

        Another operand may lie where it writes, other than element for element; and random numbers may be drawn in the
        order of strides, which a result in memory of its own need not have.
        """
        if facts.random and not is_contiguous(dest):
            return True
        values = self.values
        if not facts.pointwise and self._reads_again(node, dest):
            return True
        for used in input_nodes(node):
            value = values[used]
            for place in (value,) if type(value) is Place else values.places(used):
                if place is not dest and may_overlap(place, dest):
                    return True
        return False

    def _reads_again(self, node: Node, dest: Place) -> bool:
        """Whether the written memory is an operand besides the one that is written."""
        others: list[Node] = []
        torch.fx.map_arg((node.args[1:], dict(node.kwargs)), others.append)
        return any(place is dest for other in others for place in self.values.places(other))

    def _filled_in(self, node: Node, facts: OpFacts) -> dict[str, Any]:
        """The arguments that the pure twin needs and `node` leaves out."""
        if not facts.filled_in:
            return {}
        given = len(node.args)
        return {n: v for n, v in facts.filled_in if n not in node.kwargs and _position(facts, n) >= given}

    def _twin(
        self, node: Node, facts: OpFacts, dest: Place, filled: dict[str, Any], dtype: torch.dtype, strides: Any
    ) -> Node:
        """The pure twin, cast and laid out as `dest` where its own result, of `dtype` and `strides`, is not."""
        args = (self.ledger.read(dest), *self.values.read_all(node.args[1:]))
        kwargs = {**self.values.read(dict(node.kwargs)), **filled} if node.kwargs or filled else None
        fits = dtype is dest.dtype and (strides == dest.stride or not needs_layout(dest))
        value = node.meta["val"] if fits else self._loose_value(node.meta["val"], dtype)
        update = self.emitter.emit(facts.twin, args, value, kwargs)
        update.meta["reink_write"] = facts.name
        if fits:
            return update
        return self.emitter.emit(aten.copy.default, (self.ledger.read(dest), update), dest.value)

    def _loose_value(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        if value.dtype == dtype:
            return value
        mode = detect_fake_mode([value])
        if mode is None:
            return value.to(dtype)
        with mode:
            return torch.empty_like(value, dtype=dtype)

    def _copied(self, node: Node, dest: Place) -> Node:
        """`dest.copy_(source)`: the source itself where a scatter follows, else a copy in the layout of `dest`."""
        source = self.values[node.args[1]] if isinstance(node.args[1], Node) else None
        if type(source) is Place and source.dtype == dest.dtype and source.size == dest.size and not needs_layout(dest):
            return self.ledger.read(source)
        if node in self.epilogue and type(source) is Place and source.key() == dest.key() and source.is_root:
            return self.ledger.read(source)
        update = self.emitter.emit(
            aten.copy.default, (self.ledger.read(dest), self.values.read(node.args[1])), dest.value
        )
        update.meta["reink_write"] = "aten.copy_.default"
        return update

    def _call(self, node: Node, facts: OpFacts) -> None:
        """A mutable operator: a v1 or v2 call, each result tied to its argument or to the call."""
        self.metadata.fit_results(node, facts)
        call, values = self.calls.call(node, facts), facts.each_result(node.meta.get("val"))
        refuse_hidden_alias(node, facts)
        results = tuple(self.calls.result(node, facts, call, k, value) for k, value in enumerate(values))
        self.values[node] = results
        if len(results) == 1:
            self.values[node] = self._taken(results[0]) if isinstance(results[0], Pending) else results[0]

    def _taken(self, item: Pending) -> Any:
        """A pending result, now asked for."""
        return self._results(self.emitter.emit(operator.getitem, (item.call, item.index), item.value), item.value)

    # -- the boundary ----------------------------------------------------------------------------

    def _output(self, node: Node) -> MutationSignature:
        returned = node.args[0]
        leaves = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        self.copies.end(leaves)
        values = [self.values[a] if isinstance(a, Node) else a for a in leaves]
        results: list[Any] = [self.values.read_value(v) for v in values]
        mutations = []
        for buffer in self.ledger.written():
            if buffer.kind == "input":
                mutations.append(InputMutation(buffer.input_index, len(results)))
                results.append(self.ledger.newest(buffer))
        changes = self.program.signature.changes
        self.metadata.require_views(leaves[len(leaves) - len(changes) :], changes)
        outputs = output_specs(leaves, values, results, self.ledger)
        self.bare = self.inner and len(results) == 1 and not isinstance(returned, (list, tuple))
        self.graph.output(results[0] if self.bare else tuple(results))
        return MutationSignature(
            inputs=tuple(n.name for n in self.inputs),
            outputs=tuple(outputs),
            mutations=tuple(mutations),
            offset_sensitive=tuple(self.offset_sensitive.items()),
            identical=self.program.signature.identical,
            changes=changes,
            reshaped=tuple(sorted(self.metadata.reshaped)),
            donated=self.program.signature.donated,
        )


def _position(facts: OpFacts, name: str) -> int:
    return next(p.position for p in facts.parameters if p.name == name)


def _storage_offset(scatter: Node) -> Any:
    """The offset from the start of the storage that an `as_strided_scatter` is given, if it is."""
    return scatter.args[4] if len(scatter.args) > 4 else scatter.kwargs.get("storage_offset")
