"""Facts per operator: what it reads, writes and returns, read from its schema, with a table for what schemas hide.

An operator without an entry gets what its schema allows; one that declares nothing and returns nothing may
write every tensor that it is given.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.fx

from reink.core.torch_internals import HigherOrderOperator, OpOverload, has_registered_effect, operator_named

Target = Callable[..., Any] | str


class Kind(Enum):
    """How functionalize treats a call."""

    __hash__ = object.__hash__  # that of Enum runs Python code

    VIEW = "view"
    VIEW_LIST = "view list"
    PURE = "pure"
    IN_PLACE = "in-place"
    CALL = "mutable call"
    METADATA = "metadata mutation"
    SUBGRAPH = "control flow"
    GETITEM = "getitem"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a schema: position, name, is it written, may it hold tensors, is it keyword-only."""

    position: int
    name: str
    written: bool
    holds_tensors: bool
    keyword_only: bool
    alias: frozenset[str]
    default: Any

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives for it; None if nothing."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What reink knows of one operator. `twin` is the pure form of an in-place operator (for one that changes what a
    tensor is, the view that it makes of it), `in_place` the reverse; `out` is the form that writes its result into a
    tensor that it is given.

    `result_aliases[k]` is the position of the argument that result k is or views, or -1. `ordered` means
    that calls keep their order among all ordered calls: random numbers, prints, asserts, collectives.
    `filled_in` are arguments with a default that the twin has to be given. `window`: the view that a scatter
    writes through. `looks_at_shape`: reads sizes or strides, never bytes.
    """

    name: str
    kind: Kind
    parameters: tuple[Parameter, ...] = ()
    written: tuple[int, ...] = ()
    result_aliases: tuple[int, ...] = ()
    twin: OpOverload | None = None
    in_place: OpOverload | None = None
    out: OpOverload | None = None
    filled_in: tuple[tuple[str, Any], ...] = ()
    pointwise: bool = False
    ordered: bool = False
    random: bool = False
    looks_at_shape: bool = False
    window: str = ""
    note: str = ""

    def each_result(self, value: Any) -> tuple[Any, ...]:
        """What a call returned, one for each result of the schema."""
        if len(self.result_aliases) > 1 and isinstance(value, (list, tuple)):
            return tuple(value)
        return (value,) * min(len(self.result_aliases), 1)


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One line of ``reink ops``."""

    name: str
    kind: str
    writes: str
    twin: str
    note: str


# Aliases that the schema does not admit: each result is memory of the first argument.
HIDDEN_VIEWS = frozenset(
    {
        "aten._unsafe_view.default",
        "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes.default",
    }
)

# Written arguments that the schema does not admit, and the argument that has to be true for it (empty: always).
# Guarded by tests/test_torch_facts.py: those that run without a GPU are run and watched.
HIDDEN_WRITES: dict[str, tuple[tuple[str, ...], str]] = {
    "aten.native_batch_norm.default": (("running_mean", "running_var"), "training"),
    "aten.cudnn_batch_norm.default": (("running_mean", "running_var"), "training"),
    "aten.miopen_batch_norm.default": (("running_mean", "running_var"), "training"),
    "aten.batch_norm_update_stats.default": (("running_mean", "running_var"), ""),
}

# They may leave the written tensor with its conjugate bit turned, which neither schema nor fake kernel says.
TURNS_CONJUGATE = frozenset({"aten.linalg_lu_solve.out"})

METADATA_MUTATIONS = frozenset(
    {
        "set_",
        "resize_",
        "resize_as_",
        "t_",
        "transpose_",
        "squeeze_",
        "unsqueeze_",
        "swapaxes_",
        "swapdims_",
        "as_strided_",
        "detach_",
        "rename_",
        "_resize_output_",
        "sparse_resize_",
        "sparse_resize_and_clear_",
        "requires_grad_",
    }
)

# In-place forms whose pure twin goes by another name.
TWINS = {"aten.normal_.default": "aten.normal_functional.default"}

# Operators that wait for their operand and return it: the result is the operand, and the call has to stay.
WAITS = frozenset({"_c10d_functional.wait_tensor.default"})

# Their calls keep their order: another process takes part in each.
COLLECTIVES = "_c10d_functional"

# Operators that return nothing and only look.
LOOKING_ONLY = frozenset(
    {
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten._functional_assert_async.msg",
        "aten._print.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)

# Functional writes of a part of a tensor, and the view that names the part.
WINDOWS = {
    "aten.select_scatter.default": "aten.select.int",
    "aten.slice_scatter.default": "aten.slice.Tensor",
    "aten.diagonal_scatter.default": "aten.diagonal.default",
    "aten.as_strided_scatter.default": "aten.as_strided.default",
}

# Beside pointwise operators, those whose form with ``out`` computes what the operator returns, to the last bit. Others
# need not: that of `binary_cross_entropy` uses ``out`` for what it computes on the way, and makes it larger.
SAME_WITH_OUT = frozenset(
    {
        "aten.mm.default",
        "aten.bmm.default",
        "aten.mv.default",
        "aten.addmm.default",
        "aten.addmv.default",
        "aten.baddbmm.default",
    }
)

# Pure operators that keep most of their first operand. What they write depends on data, and a code generator that
# is given their pure form copies the operand first.
WRITES_IN_PART = frozenset(
    {
        "aten.index_put.default",
        "aten._unsafe_index_put.default",
        "aten.index_copy.default",
        "aten.index_add.default",
        "aten.index_fill.int_Scalar",
        "aten.index_fill.int_Tensor",
        "aten.masked_scatter.default",
        "aten.scatter.src",
        "aten.scatter.value",
        "aten.scatter.reduce",
        "aten.scatter.value_reduce",
        "aten.scatter_add.default",
        "aten.scatter_reduce.two",
        "aten.put.default",
        "_c10d_functional.all_reduce.default",
        "_c10d_functional.wait_tensor.default",
        "_c10d_functional.broadcast.default",
    }
)

# By identity: hashing an operator runs Python code. The target is kept alive beside its facts.
_facts: dict[int, tuple[Any, OpFacts]] = {}


def facts_of(target: Any) -> OpFacts:
    """The facts of a call_function target; cached."""
    found = _facts.get(id(target))
    if found is None:
        found = _facts[id(target)] = (target, _learn(target))
    return found[1]


def operator_name(target: Any) -> str:
    """``aten.add.Tensor`` for an operator, a Python name for anything else."""
    if isinstance(target, OpOverload):
        namespace, _, rest = target._schema.name.partition("::")
        return f"{namespace}.{rest}.{target._overloadname}"
    name = getattr(target, "__name__", None)
    return name if isinstance(name, str) else str(target)


def _learn(target: Any) -> OpFacts:
    if target is operator.getitem:
        return OpFacts("getitem", Kind.GETITEM)
    if isinstance(target, HigherOrderOperator):
        return OpFacts(target.name(), Kind.SUBGRAPH, ordered=True)
    if not isinstance(target, OpOverload):
        return OpFacts(operator_name(target), Kind.PYTHON)
    return _learn_operator(target)


def _learn_operator(op: OpOverload) -> OpFacts:
    schema, name = op._schema, operator_name(op)
    parameters = tuple(_parameter(i, a) for i, a in enumerate(schema.arguments))
    written = tuple(p.position for p in parameters if p.written)
    tags = op.tags
    random = torch.Tag.nondeterministic_seeded in tags
    ordered = random or has_registered_effect(op) or name in LOOKING_ONLY or name.startswith(COLLECTIVES)
    note = ""
    if name in HIDDEN_WRITES:
        note = "writes " + ", ".join(HIDDEN_WRITES[name][0]) + " without saying so"
    elif not written and not schema.returns and name not in LOOKING_ONLY and _may_touch(parameters):
        written = tuple(p.position for p in parameters if p.holds_tensors)
        ordered, note = True, "declares nothing and returns nothing: may write every tensor it is given"
    kind = _kind(op, name, written)
    twin = _pure_twin(op, name) if kind in (Kind.IN_PLACE, Kind.METADATA) else None
    return OpFacts(
        name=name,
        kind=kind,
        parameters=parameters,
        written=written,
        result_aliases=tuple(_aliased_argument(r, parameters) for r in schema.returns),
        twin=twin,
        filled_in=_missing_defaults(op, twin) if twin is not None else (),
        in_place=_in_place_twin(op, name) if kind is Kind.PURE else None,
        out=_out_twin(op, name) if kind is Kind.PURE and not ordered else None,
        pointwise=torch.Tag.pointwise in tags,
        ordered=ordered,
        random=random,
        looks_at_shape=name.startswith("aten.sym_"),
        window=WINDOWS.get(name, ""),
        note=note,
    )


def _parameter(position: int, argument: Any) -> Parameter:
    alias = argument.alias_info
    sets = frozenset(alias.before_set) | frozenset(alias.after_set) if alias is not None else frozenset()
    return Parameter(
        position=position,
        name=argument.name,
        written=alias is not None and alias.is_write,
        holds_tensors="Tensor" in str(argument.type),
        keyword_only=argument.kwarg_only,
        alias=sets,
        default=argument.default_value if argument.has_default_value() else None,
    )


def _may_touch(parameters: tuple[Parameter, ...]) -> bool:
    return any(p.holds_tensors for p in parameters)


def _aliased_argument(result: Any, parameters: tuple[Parameter, ...]) -> int:
    alias = result.alias_info
    if alias is None:
        return -1
    sets = frozenset(alias.before_set) | frozenset(alias.after_set)
    return next((p.position for p in parameters if p.alias & sets), -1)


def _kind(op: OpOverload, name: str, written: tuple[int, ...]) -> Kind:
    packet = name.split(".")[1]
    if name.startswith("aten.") and packet in METADATA_MUTATIONS:
        return Kind.METADATA
    if name in HIDDEN_VIEWS or (op.is_view and not written):
        return Kind.VIEW_LIST if "[]" in str(op._schema.returns[0].type) or _is_list(op) else Kind.VIEW
    if written == (0,) and _pure_twin(op, name) is not None:
        return Kind.IN_PLACE
    return Kind.CALL if written or name in HIDDEN_WRITES else Kind.PURE


def _is_list(op: OpOverload) -> bool:
    return isinstance(op._schema.returns[0].type, torch.ListType)


def _pure_twin(op: OpOverload, name: str) -> OpOverload | None:
    """The out-of-place operator with the same arguments, for ATen's in-place operators of one tensor."""
    if name in TWINS:
        return operator_named(TWINS[name])
    packet = name.split(".")[1]
    if not name.startswith("aten.") or not packet.endswith("_") or packet.startswith("_foreach"):
        return None
    return _overload_like(op, packet[:-1], written=False)


def _missing_defaults(op: OpOverload, twin: OpOverload) -> tuple[tuple[str, Any], ...]:
    pairs = zip(op._schema.arguments, twin._schema.arguments, strict=True)
    return tuple((a.name, a.default_value) for a, b in pairs if a.has_default_value() and not b.has_default_value())


def _in_place_twin(op: OpOverload, name: str) -> OpOverload | None:
    """The operator that writes its result over its first operand, for ATen and functional collectives."""
    namespace, packet, _ = name.split(".")
    if name in WAITS:
        return op
    if namespace not in ("aten", COLLECTIVES):
        return None
    if name in TWINS.values():
        return next(operator_named(k) for k, v in TWINS.items() if v == name)
    return _overload_like(op, packet + "_", written=True)


def _out_twin(op: OpOverload, name: str) -> OpOverload | None:
    """The overload with the same arguments and ``out``, of an operator of which it is known to compute the same.

    A clone is none: to compute it in its place would be a copy again.
    """
    same = torch.Tag.pointwise in op.tags or name in SAME_WITH_OUT
    if not same or op.namespace != "aten" or name == "aten.clone.default":
        return None
    if [str(r.type) for r in op._schema.returns] != ["Tensor"]:
        return None
    packet = op.overloadpacket
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        *arguments, last = candidate._schema.arguments or [None]
        if last is None or last.name != "out" or not last.kwarg_only or str(last.type) != "Tensor":
            continue
        if [(a.name, str(a.type)) for a in arguments] == wanted and len(candidate._schema.returns) == 1:
            return candidate  # type: ignore[no-any-return]
    return None


def _overload_like(op: OpOverload, packet_name: str, *, written: bool) -> OpOverload | None:
    """The overload of `packet_name` that takes the same arguments as `op`, and writes the first iff `written`."""
    packet = getattr(getattr(torch.ops, op.namespace), packet_name, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        if [(a.name, str(a.type)) for a in arguments] != wanted:
            continue
        writes = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        if writes == ([0] if written else []) and len(candidate._schema.returns) == 1:
            return candidate  # type: ignore[no-any-return]
    return None


def positional(facts: OpFacts, node: torch.fx.Node, start: int) -> tuple[Any, ...]:
    """The arguments of a call from number `start` on, keyword ones in their place with the defaults between them."""
    args, kwargs = node.args[start:], node.kwargs
    if not kwargs:
        return args
    last = max(p.position for p in facts.parameters if p.name in kwargs)
    missing = facts.parameters[len(node.args) : last + 1]
    return (*args, *(kwargs.get(p.name, p.default) for p in missing))


def hidden_writes(facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Positions that this very call writes: those of the schema, and those that the schema hides."""
    entry = HIDDEN_WRITES.get(facts.name)
    if entry is None:
        return facts.written
    names, condition = entry
    values = {p.name: p.given(args, kwargs) for p in facts.parameters}
    if condition and not values[condition]:
        return facts.written
    return tuple(p.position for p in facts.parameters if p.name in names and values[p.name] is not None)


def known_operators() -> list[OperatorRow]:
    """A row for every ATen operator that writes or views, and for each that was met in this process."""
    for packet in dir(torch.ops.aten):
        found = getattr(torch.ops.aten, packet)
        for overload in found.overloads() if hasattr(found, "overloads") else ():
            facts_of(getattr(found, overload))
    rows = [_row(f) for _, f in _facts.values() if f.parameters and f.kind is not Kind.PURE]
    return sorted(rows, key=lambda r: r.name)


def _row(facts: OpFacts) -> OperatorRow:
    writes = ", ".join(facts.parameters[i].name for i in facts.written)
    twin = operator_name(facts.twin) if facts.twin is not None else ""
    return OperatorRow(facts.name, facts.kind.value, writes, twin, facts.note)
