"""Programs made from PyTorch's own operator database: each operator writes, or is written through, part of a tensor.

Three forms. ``in place``: the in-place form on a view of an input, for lists of tensors on views of one base, and the
base read afterwards. ``view``: the results are written, and every input is read afterwards, so an operator that may
return a view shows whether it did. ``out``: the ``out=`` form writes into a slice of a larger tensor. Eager PyTorch
is the judge; a program that it refuses is no trial.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as database

from reink.api import compile_function
from reink.core.torch_internals import pytree
from reink.errors import refusal_in
from reink.judge import Observed, differences, observe, poisoned
from reink.verification.copies import copy_tensors, is_plain

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
FORMS = ("in place", "view", "out")
# Samples of the database that are tried for each dtype and form; the first ones are the commonest calls.
SAMPLES = 3
# Not tried: a fake kernel of PyTorch foretells another dtype than eager gives, and no trace knows better.
FORETOLD_OTHERWISE = frozenset({("_foreach_pow", torch.bool)})
# Results of one call that are written.
WRITTEN_RESULTS = 3
# Bytes before and after every storage that nobody may touch.
GUARD = 48
# Two roads to one formula may round differently; nothing else may differ.
ROUNDING = 1e-4

Program = Callable[..., Any]
View = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Trial:
    """One small program and its inputs, all tensors. `operator` is the name that the database gives it."""

    operator: str
    form: str
    dtype: torch.dtype
    layout: str
    program: Program
    inputs: tuple[Tensor, ...]

    def __str__(self) -> str:
        shapes = ", ".join(str(list(t.shape)) for t in self.inputs)
        return f"{self.operator} {self.form} {self.dtype} {self.layout} on {shapes}"


@dataclass(frozen=True, slots=True)
class Result:
    """How a trial went: ``right``, ``refused`` with a code, ``fallback``, ``wrong`` or ``crash``, with a detail."""

    kind: str
    code: str = ""
    detail: str = ""


# -- trials ------------------------------------------------------------------------------------------------


def operators() -> list[Any]:
    """The entries of the database, in its order, those for lists of tensors last."""
    lists = (
        database.foreach_unary_op_db,
        database.foreach_binary_op_db,
        database.foreach_pointwise_op_db,
        database.foreach_reduce_op_db,
        database.foreach_other_op_db,
    )
    return [*database.op_db, *itertools.chain.from_iterable(lists)]


def full_name(entry: Any) -> str:
    """The name of an entry with that of its variant."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def trials(entry: Any, forms: Sequence[str] = FORMS, samples: int = SAMPLES) -> Iterator[Trial]:
    """Every trial of an entry that eager PyTorch may accept."""
    supported = entry.supported_dtypes("cpu")
    for dtype in DTYPES:
        if dtype in supported and (full_name(entry), dtype) not in FORETOLD_OTHERWISE:
            for sample in itertools.islice(_samples(entry, dtype), samples):
                for form in forms:
                    yield from _TRIALS_OF[form](entry, dtype, sample)


def _samples(entry: Any, dtype: torch.dtype) -> Iterator[_Call]:
    torch.manual_seed(1)
    try:
        for sample in entry.sample_inputs("cpu", dtype, requires_grad=False):
            tensors = [v for v in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if _is_tensor(v)]
            if tensors and all(is_plain(t) for t in tensors):
                yield _Call(sample.input, tuple(sample.args), dict(sample.kwargs))
    except (RuntimeError, NotImplementedError, ImportError):  # a sample that this build of PyTorch cannot make
        return


class _Call:
    """A sample of the database: its tensors apart from its other arguments."""

    def __init__(self, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self._spec = pytree.tree_flatten((first, args, kwargs))
        self.first = first
        self.tensors = tuple(v for v in leaves if _is_tensor(v))
        self._others = [None if _is_tensor(v) else v for v in leaves]
        self._is_tensor = [_is_tensor(v) for v in leaves]

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call with other tensors in their places."""
        given = iter(tensors)
        pairs = zip(self._is_tensor, self._others, strict=True)
        first, args, kwargs = pytree.tree_unflatten([next(given) if t else v for t, v in pairs], self._spec)
        return first, tuple(args), kwargs


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _in_place(entry: Any, dtype: torch.dtype, call: _Call) -> Iterator[Trial]:
    operator = entry.inplace_variant
    if operator is None:
        return
    if isinstance(call.first, list):
        yield from _in_place_of_a_list(entry, dtype, call)
    if not _is_tensor(call.first):
        return
    for layout, make in LAYOUTS.items():
        made = make(call.first)
        if made is None:
            continue
        base, view = made

        def program(base: Tensor, *rest: Tensor, view: View = view) -> Any:
            first, args, kwargs = call.arguments((view(base), *rest))
            return operator(first, *args, **kwargs), base.clone()

        yield Trial(full_name(entry), "in place", dtype, layout, program, (base, *call.tensors[1:]))


def _in_place_of_a_list(entry: Any, dtype: torch.dtype, call: _Call) -> Iterator[Trial]:
    """The tensors of the list are parts of one flat tensor, which is read afterwards."""
    given = call.tensors[: len(call.first)]
    if not all(map(_is_tensor, call.first)) or any(t.dtype != given[0].dtype for t in given):
        return
    sizes = [t.size() for t in given]
    base = torch.cat([t.reshape(-1) for t in given])

    def program(base: Tensor, *rest: Tensor) -> Any:
        parts = [p.view(size) for p, size in zip(base.split([s.numel() for s in sizes]), sizes, strict=True)]
        first, args, kwargs = call.arguments((*parts, *rest))
        entry.inplace_variant(first, *args, **kwargs)
        return base.clone()

    yield Trial(full_name(entry), "in place", dtype, "listed", program, (base, *call.tensors[len(given) :]))


def _view(entry: Any, dtype: torch.dtype, call: _Call) -> Iterator[Trial]:
    def program(*tensors: Tensor) -> Any:
        first, args, kwargs = call.arguments(tensors)
        results = _operator(entry)(first, *args, **kwargs)
        for result in itertools.islice((r for r in pytree.tree_leaves(results) if _is_tensor(r)), WRITTEN_RESULTS):
            if result.dtype == torch.bool:
                result.logical_not_()
            else:
                result.add_(1)
        return results, [t.clone() for t in tensors]

    yield Trial(full_name(entry), "view", dtype, "as given", program, call.tensors)


def _operator(entry: Any) -> Program:
    found: Program = entry.op if entry.op is not None else entry.method_variant
    return found


def _out(entry: Any, dtype: torch.dtype, call: _Call) -> Iterator[Trial]:
    if not entry.supports_out:
        return
    first, args, kwargs = call.arguments(call.tensors)
    try:
        expected = entry.op(first, *args, **kwargs)
    except (RuntimeError, NotImplementedError):
        return
    several = isinstance(expected, tuple)
    wanted = list(expected) if several else [expected]
    if not wanted or not all(_is_tensor(w) and is_plain(w) for w in wanted):
        return
    made = [_sliced(w) for w in wanted]
    views = [view for _, view in made]

    def program(*tensors: Tensor) -> Any:
        bases, rest = tensors[: len(views)], tensors[len(views) :]
        first, args, kwargs = call.arguments(rest)
        outs = tuple(view(base) for view, base in zip(views, bases, strict=True))
        results = entry.op(first, *args, **kwargs, out=outs if several else outs[0])
        return results, [b.clone() for b in bases]

    yield Trial(full_name(entry), "out", dtype, "sliced", program, (*(b for b, _ in made), *call.tensors))


_TRIALS_OF: dict[str, Callable[[Any, torch.dtype, _Call], Iterator[Trial]]] = {
    "in place": _in_place,
    "view": _view,
    "out": _out,
}


# -- layouts: a larger or rearranged base, and the view of it that holds the sample -------------------------


def _reshaped(tensor: Tensor) -> tuple[Tensor, View] | None:
    size = tensor.size()
    return tensor.reshape(-1).clone(), lambda base: base.view(size)


def _transposed(tensor: Tensor) -> tuple[Tensor, View] | None:
    if tensor.dim() < 2:
        return None
    return tensor.transpose(0, -1).contiguous().clone(), lambda base: base.transpose(0, -1)


def _sliced(tensor: Tensor) -> tuple[Tensor, View]:
    if tensor.dim() == 0:
        base = tensor.new_zeros(3)
        base[1] = tensor
        return base, lambda base: base[1]
    count = tensor.size(0)
    base = tensor.new_zeros((count + 2, *tensor.size()[1:]))
    base[1 : count + 1] = tensor
    return base, lambda base: base[1 : count + 1]


LAYOUTS: dict[str, Callable[[Tensor], tuple[Tensor, View] | None]] = {
    "reshaped": _reshaped,
    "transposed": _transposed,
    "sliced": _sliced,
}


# -- the run -----------------------------------------------------------------------------------------------


def run(trial: Trial, options: dict[str, Any] | None = None) -> Result | None:
    """Compare eager with reink's passes on one trial; None where eager refuses it."""
    with warnings.catch_warnings(), poisoned(), mock.patch.object(database, "wrapper_set_seed", _unseeded):
        warnings.simplefilter("ignore")
        try:
            want = observe(trial.program, _copied(trial.inputs))
        except Exception:  # eager is the judge of what is a program
            return None
        try:
            compiled = compile_function(trial.program, _copied(trial.inputs), options)
            got = observe(compiled, _copied(trial.inputs))
        except Exception as error:
            return _failed(error)
    found = _differences(want, got, trial.dtype)
    if found:
        return Result("wrong", "", found)
    fallback = compiled.compiled.fallback
    return Result("fallback", "", fallback) if fallback else Result("right")


def _unseeded(operator: Program, *args: Any, **kwargs: Any) -> Any:
    """The database sets the seed inside of its random operators, which no graph can hold; `observe` sets it outside."""
    return operator(*args, **kwargs)


def _copied(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    memo: dict[int, Any] = {}
    copy_tensors(tensors, memo, GUARD)
    return tuple(memo[id(t)] for t in tensors)


def _failed(error: Exception) -> Result:
    refusal = refusal_in(error)
    if refusal is not None and not refusal.code.startswith("internal"):
        return Result("refused", refusal.code, str(refusal))
    return Result("crash", type(error).__name__, f"{type(error).__name__}: {error}")


def _differences(want: Observed, got: Observed, dtype: torch.dtype) -> str:
    """What differs, but for rounding where numbers are not whole."""
    found = differences(want, got)
    inexact = any(r.is_floating_point() or r.is_complex() for r in want.results)
    if found and inexact and {d.kind for d in found} <= {"value", "memory"}:
        found = differences(want, got, ROUNDING)
    return "\n".join(map(str, found))
