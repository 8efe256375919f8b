"""Does an operator do what its schema says? Run it on memory that is watched, and see.

Every byte of every argument's storage, guard zones included, is compared before and after; results are asked whose
memory they are. A lie that shows in none of the calls is not found, so the answer is as good as the arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reink.core.opinfo import OpFacts, facts_of, hidden_writes
from reink.core.torch_internals import OpOverload, TorchDispatchMode, pytree, storage_key
from reink.errors import ReinkError
from reink.judge import poisoned, whole_storage
from reink.verification.answer import Audit
from reink.verification.copies import copy_tensors, is_plain
from reink.verification.variants import has_memory_for_each

# Bytes before and after each storage; a multiple of the largest element.
GUARD = 64
# So many different calls are made of an operator without arguments of the user's own.
CALLS = 6
SHAPES = ((4, 4), (8,), (2, 3, 4), (1,), ())
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64, torch.int32)

# PyTorch's own operators: their schemas are not in doubt, or known to `core.opinfo`.
OWN_NAMESPACES = frozenset({"aten", "prim", "prims", "quantized", "inductor", "c10d", "_c10d_functional"})

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def audit(op: OpOverload, calls: Sequence[Arguments] = ()) -> Audit:
    """Audit `op` on copies of the arguments of each of `calls`, or on arguments made from its schema.

    Raises ReinkError ``cannot-audit`` when it takes none of those.
    """
    written, broken, count = dict[str, None](), dict[str, None](), 0
    for args, kwargs in calls or _examples(op):
        try:
            seen = [_watched_call(op, args, kwargs, moved) for moved in (False, True)]
        except Exception:  # whatever an operator raises for arguments that it does not take
            if calls:
                raise
            continue
        for changed, lies in seen:
            written.update(dict.fromkeys(changed))
            broken.update(dict.fromkeys(lies))
        count += 1
        if not calls and count == CALLS:
            break
    if not count:
        raise ReinkError(
            "cannot-audit",
            f"cannot audit {op.name()}: it took none of the arguments that were made from its schema",
            why=str(op._schema),
            do="run reink verify on a program that calls it: it audits operators on the program's own arguments",
        )
    facts = facts_of(op)
    declared = tuple(p.name for p in facts.parameters if p.written)
    return Audit(op.name(), str(op._schema), count, declared, tuple(written), tuple(broken))


# -- one call ----------------------------------------------------------------------------------------------


def _watched_call(
    op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], moved: bool
) -> tuple[list[str], list[str]]:
    """The arguments that one call wrote, and the ways in which it broke its schema. `moved`: on other values."""
    facts = facts_of(op)
    args, kwargs = _copied(args, kwargs, moved)
    named = list(_named_tensors(facts, args, kwargs))
    storages = {storage_key(t): t for _, t in named}
    before = {key: whole_storage(t) for key, t in storages.items()}
    with torch.no_grad(), poisoned():
        results = op(*args, **kwargs)
    allowed = {facts.parameters[k].name for k in hidden_writes(facts, args, dict(kwargs))}
    written, broken = list[str](), list[str]()
    for key, old in before.items():
        new = whole_storage(storages[key])
        inside = [(name, t) for name, t in named if storage_key(t) == key]
        if new.shape != old.shape:
            broken.append(f"gives {inside[0][0]} memory of another size")
            continue
        _compare(old != new, inside, allowed, written, broken)
    broken += _aliases(facts, results, named)
    return written, broken


def _compare(
    changed: Tensor, inside: list[tuple[str, Tensor]], allowed: set[str], written: list[str], broken: list[str]
) -> None:
    """Whose bytes the changed ones of one storage are."""
    masks = [(name, _bytes_of(t, changed.numel())) for name, t in inside]
    left = changed.clone()
    for name, mask in masks:
        if name in allowed:
            if bool((changed & mask).any()):
                written.append(name)
            left &= ~mask
    for name, mask in masks:
        if name not in allowed and bool((left & mask).any()):
            written.append(name)
            broken.append(f"writes {name}, which its schema says it only reads")
            left &= ~mask
    if bool(left.any()):
        broken.append(f"writes memory beside {inside[0][0]} that belongs to none of its arguments")


def _bytes_of(tensor: Tensor, count: int) -> Tensor:
    """Which of the `count` bytes of its storage are those of `tensor`."""
    mask = torch.zeros(count, dtype=torch.bool, device=tensor.device)
    if tensor.numel():
        item = tensor.element_size()
        strides = (*(s * item for s in tensor.stride()), 1)
        mask.as_strided((*tensor.size(), item), strides, tensor.storage_offset() * item).fill_(True)
    return mask


def _aliases(facts: OpFacts, results: Any, named: list[tuple[str, Tensor]]) -> Iterator[str]:
    """Results whose memory is not what the schema says."""
    for k, (position, value) in enumerate(zip(facts.result_aliases, facts.each_result(results), strict=False)):
        whose = facts.parameters[position].name if position >= 0 else ""
        for result in pytree.tree_leaves(value):
            if not isinstance(result, Tensor) or not result.numel():
                continue
            owners = [name for name, t in named if storage_key(t) == storage_key(result)]
            if owners and not whose:
                yield f"returns memory of {owners[0]} as result {k}, which its schema does not say"
            elif whose and whose not in owners:
                yield f"returns new memory as result {k}, which its schema says is that of {whose}"


def _copied(args: tuple[Any, ...], kwargs: Mapping[str, Any], moved: bool) -> Arguments:
    """The arguments in storages of their own between guard zones; shared memory stays shared."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    tensors = [v for v in leaves if isinstance(v, Tensor)]
    memo: dict[int, Any] = {}
    copy_tensors(tensors, memo, GUARD)
    if moved:
        for tensor in {storage_key(t): t for t in memo.values() if _may_move(t)}.values():
            with torch.no_grad():
                tensor.detach().add_(1.5)
    copied, named = pytree.tree_unflatten([memo.get(id(v), v) for v in leaves], spec)
    return copied, named


def _may_move(tensor: Tensor) -> bool:
    """Whether other values are as good: numbers that are no positions, each in memory of its own."""
    return has_memory_for_each(tensor) and (tensor.is_floating_point() or tensor.is_complex())


def _named_tensors(facts: OpFacts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor among the arguments, with the name of its parameter."""
    for parameter in facts.parameters:
        for leaf in pytree.tree_leaves(parameter.given(args, kwargs)):
            if isinstance(leaf, Tensor):
                yield parameter.name, leaf


def _can_watch(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the memory of every tensor among the arguments can be compared byte by byte."""
    return all(is_plain(v) for v in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(v, Tensor))


class CustomCalls(TorchDispatchMode):
    """Keeps copies of the arguments of the first calls of each operator that is not PyTorch's own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[OpOverload, list[Arguments]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and func.namespace not in OWN_NAMESPACES and _can_watch(args, kwargs):
            known = self.calls.setdefault(func, [])
            if len(known) < CALLS:
                known.append(_copied(args, kwargs, False))
        return func(*args, **kwargs)


# -- arguments made from a schema --------------------------------------------------------------------------


def _examples(op: OpOverload) -> Iterator[Arguments]:
    """Arguments that `op` may take: all tensors of one shape, of each dtype in turn, then of mixed dtypes."""
    count = sum("Tensor" in str(a.type) for a in op._schema.arguments)
    alike = [(dtype,) * count for dtype in DTYPES]
    mixed = [m for m in itertools.product(DTYPES[:2], repeat=min(count, 4)) if len(set(m)) > 1]
    for dtypes in (*alike, *((*m, *m[-1:] * (count - len(m))) for m in mixed)):
        for shape in SHAPES:
            yield _example(op, shape, dtypes)


def _example(op: OpOverload, shape: tuple[int, ...], dtypes: Sequence[torch.dtype]) -> Arguments:
    args, kwargs, given = list[Any](), dict[str, Any](), iter(dtypes)
    for k, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if "Tensor" in kind:
            value: Any = _tensors(kind, shape, next(given), 100 * k)
        elif argument.has_default_value():
            value = argument.default_value
        else:
            value = _OTHERS.get(kind)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _tensors(kind: str, shape: tuple[int, ...], dtype: torch.dtype, start: int) -> Any:
    """A tensor that counts up, or two in a list."""

    def counting(first: int) -> Tensor:
        total = int(torch.Size(shape).numel())
        return torch.arange(first, first + total).reshape(shape).to(dtype)

    small = 0 if dtype == torch.int64 else start  # whole numbers may be positions
    return [counting(small), counting(small + 50)] if kind.startswith("List") else counting(small)


_OTHERS: dict[str, Any] = {
    "int": 1,
    "SymInt": 1,
    "float": 0.5,
    "number": 1,
    "Scalar": 1,
    "bool": False,
    "str": "",
    "List[int]": [1],
    "List[SymInt]": [1],
    "List[float]": [0.5],
    "List[bool]": [False],
}
