"""The functional call of a mutable operator: `auto_functionalized` (v1) and `auto_functionalized_v2`.

Both are ordinary functions, so a graph that holds them runs. They copy what the operator writes and return
the operator's results followed by the new values: v1 one for each written tensor, v2 one for each base.

v1: ``auto_functionalized(op, args, kwargs)``. Written arguments stand in place; a list counts element by
element, a missing optional not at all. Aliasing between two arguments cannot be said, so calls that need
it are made as v2 also under ``strategy="v1"``.

v2: ``auto_functionalized_v2(op, args, kwargs, bases)``. An argument that shares memory with a written base is
a `BaseView` (index of the base, view steps), whether it is written or only read, so that the operator sees
its own writes exactly where eager shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from reink.core.opinfo import Kind, OpFacts, facts_of, hidden_writes
from reink.core.program import BaseView
from reink.core.torch_internals import has_side_effect
from reink.core.views import step_operator

Tensor = torch.Tensor
Node = torch.fx.Node


def auto_functionalized(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Run `op` on copies of what it writes; results of `op`, then a new value for each written tensor."""
    copies: list[Tensor] = []

    def copy(value: Any) -> Any:
        if isinstance(value, Tensor):
            copies.append(copy_layout(value))
            return copies[-1]
        return value

    new_args, new_kwargs = map_written(op, args, kwargs, copy)
    results = op(*new_args, **new_kwargs)
    return (*own_results(op, results), *copies)


def auto_functionalized_v2(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bases: Sequence[Tensor]
) -> tuple[Any, ...]:
    """Run `op` on views of copies of `bases`; results of `op`, then the new bases."""
    copies = [copy_layout(base) for base in bases]
    new_args = map_base_views(args, lambda v: regenerate(copies[v.base], v))
    new_kwargs = map_base_views(kwargs, lambda v: regenerate(copies[v.base], v))
    results = op(*new_args, **new_kwargs)
    return (*own_results(op, results), *copies)


@has_side_effect
def auto_functionalized_effect(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bases: Sequence[Tensor]
) -> tuple[Any, ...]:
    """A v2 call of an operator that does more than write: no pass may drop it, and its order is kept."""
    return auto_functionalized_v2(op, args, kwargs, bases)


V2_CALLS = frozenset({auto_functionalized_v2, auto_functionalized_effect})
CALLS = V2_CALLS | {auto_functionalized}


def copy_layout(tensor: Tensor) -> Tensor:
    """A copy with the strides of `tensor`, also where a plain clone would close its gaps."""
    copied = tensor.clone()
    if copied.stride() == tensor.stride():
        return copied
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def regenerate(base: Tensor, view: BaseView) -> Tensor:
    """The tensor that `view` describes, on `base`."""
    for step in view.steps:
        base = step_operator(step)(base, *step.args)
    return base


def own_results(op: Any, results: Any) -> tuple[Any, ...]:
    """The results that are memory of their own: an alias of an argument is replaced by None."""
    if results is None:
        return ()
    values = results if isinstance(results, tuple) else (results,)
    aliases = facts_of(op).result_aliases
    if len(aliases) != len(values):
        return values
    return tuple(None if a >= 0 else v for a, v in zip(aliases, values, strict=True))


def result_count(op: Any) -> int:
    """How many results stand before the new values."""
    return len(facts_of(op).result_aliases)


def map_base_views(value: Any, change: Callable[[BaseView], Any]) -> Any:
    """`value` with every `BaseView` replaced, through lists, tuples and dicts."""
    if isinstance(value, BaseView):
        return change(value)
    if isinstance(value, dict):
        return {k: map_base_views(v, change) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map_base_views(v, change) for v in value)
    return value


def base_views(value: Any) -> list[BaseView]:
    """Every `BaseView` in `value`, in order."""
    found: list[BaseView] = []
    _add_base_views(value, found)
    return found


def _add_base_views(value: Any, found: list[BaseView]) -> None:
    for item in value.values() if isinstance(value, dict) else value:
        if type(item) is BaseView:
            found.append(item)
        elif isinstance(item, (dict, list, tuple)):
            _add_base_views(item, found)


def map_written(
    op: Any, args: Sequence[Any], kwargs: dict[str, Any], change: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with `change` applied to each written one, lists element by element, in schema order."""
    facts = facts_of(op)
    new_args, new_kwargs = list(args), dict(kwargs)
    for position in hidden_writes(facts, tuple(args), kwargs):
        name = facts.parameters[position].name
        if position < len(new_args):
            new_args[position] = _each(new_args[position], change)
        elif name in new_kwargs:
            new_kwargs[name] = _each(new_kwargs[name], change)
    return tuple(new_args), new_kwargs


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(None if v is None else change(v) for v in value)
    return None if value is None else change(value)


def written_arguments(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Each written tensor argument as (name, value), lists element by element as ``name[k]``, None left out."""
    facts = facts_of(op)
    found: list[tuple[str, Any]] = []
    for position in hidden_writes(facts, tuple(args), kwargs):
        name, value = facts.parameters[position].name, facts.parameters[position].given(args, kwargs)
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            found.extend((f"{name}[{k}]", v) for k, v in enumerate(value) if v is not None)
        elif value is not None and _may_be_tensor(facts, position):
            found.append((name, value))
    return found


def _may_be_tensor(facts: OpFacts, position: int) -> bool:
    return facts.parameters[position].holds_tensors


def written_views(op: Any, args: Any, kwargs: Any) -> tuple[dict[int, list[str]], set[int]]:
    """The names of the arguments that a v2 call writes, by their base, and the identities of their views."""
    names: dict[int, list[str]] = {}
    written: set[int] = set()
    for name, value in written_arguments(op, args, kwargs):
        if isinstance(value, BaseView):
            names.setdefault(value.base, []).append(name)
            written.add(id(value))
    return names, written


def operand_nodes(args: Any, kwargs: Any) -> list[Node]:
    """The nodes among arguments, those inside view descriptions left out."""
    found: list[Node] = []
    _add_nodes(args, found)
    if kwargs:
        _add_nodes(kwargs.values(), found)
    return found


def _add_nodes(values: Iterable[Any], found: list[Node]) -> None:
    for item in values:
        if type(item) is Node:
            found.append(item)
        elif isinstance(item, dict):
            _add_nodes(item.values(), found)
        elif isinstance(item, (list, tuple)) and not hasattr(item, "_fields"):
            _add_nodes(item, found)


def call_of(value: Any) -> Node | None:
    """The v1 call that `value` is a result of."""
    call = value.args[0] if isinstance(value, Node) and facts_of(value.target).kind is Kind.GETITEM else None
    return call if isinstance(call, Node) and call.target is auto_functionalized else None


def called(node: Node) -> OpFacts:
    """The operator that a v1 or v2 call wraps, or the one that is called."""
    facts = facts_of(node.target)
    return facts if facts.kind is Kind.SUBGRAPH else facts_of(node.args[0])


def result_nodes(call: Node) -> dict[int, Node]:
    """The nodes that take the results of a call, by number."""
    return {u.args[1]: u for u in call.users if facts_of(u.target).kind is Kind.GETITEM}  # type: ignore[misc]
