"""`reink.verify`: eager against compiled, on the given inputs and on inputs derived from them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from reink.core.torch_internals import inner_tensors, pytree
from reink.errors import ReinkError
from reink.judge import GENERATED_TOLERANCE, GradMode, whole_storage
from reink.options import Options
from reink.passes.capture import source_of_callable
from reink.verification.answer import Audit, Run, Verification
from reink.verification.audit import CustomCalls, audit
from reink.verification.compare import Comparison, EagerFailed
from reink.verification.copies import Case, Surroundings
from reink.verification.variants import (
    Edit,
    Variant,
    as_given,
    both,
    fresh,
    neighbours,
    one_step_on,
    pair_variants,
    pairs,
    same_tensor,
    variants,
)

Tell = Callable[[str], None]


def verify(
    fn: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    strategy: str = "v2",
    codegen: str = "eager",
    passes: Sequence[Callable[[Any], None]] = (),
    grad_mode: GradMode = "no_grad",
    tolerance: float | None = None,
    most_pairs: int = 4,
    tell: Tell | None = None,
) -> Verification:
    """Whether `fn`, compiled by reink, computes what eager computes: on `args`, and on inputs derived from them.

    Compared is everything that a caller can see: results, their strides and whom they share memory with, every
    byte of the inputs' storages, module state, and the tensors that `fn` closes over. Derived inputs are other
    values, other offsets, strides and sizes, and at most `most_pairs` pairs of inputs of one shape in one storage;
    those that eager refuses are skipped. `grad_mode` is ``no_grad``, ``grad`` or ``inference``. With PyTorch's own
    kernels (`codegen` ``eager``) numbers agree to the last bit; code that Inductor generates rounds otherwise.
    `tolerance` is relative and absolute, for floating point values: None is 0, or 1e-4 for generated code. `tell` hears
    the name of each run before it begins.

    `fn` runs on copies, dozens of times: the arguments stay as they are. What it changes outside tensors is not
    put back. Forgets what `torch.compile` has compiled in this process. Raises ReinkError ``not-a-tensor-program``
    when `fn` raises on `args` without reink, and ``unknown-option``.
    """
    options = Options.of({"strategy": strategy, "codegen": codegen, "passes": tuple(passes), "prove": True})
    tolerance = (0.0 if codegen == "eager" else GENERATED_TOLERANCE) if tolerance is None else tolerance
    _check("grad_mode", grad_mode, grad_mode in get_args(GradMode), " or ".join(map(repr, get_args(GradMode))))
    _check("most_pairs", most_pairs, type(most_pairs) is int and most_pairs >= 0, "a number, 0 or more")
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    _check("tolerance", tolerance, is_number and tolerance >= 0, "a number, 0 or more")
    source = source_of_callable(fn, args, kwargs)
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    _refuse_hidden_memory(source.names, [*leaves, *source.held()])
    case = Case(fn, tuple(leaves), spec, tuple(source.names[: len(leaves)]))
    held = _watched_names(source.names, [*leaves, *source.held()])
    comparison = Comparison(case, options, grad_mode, tolerance, Surroundings(fn), held)
    with torch.random.fork_rng(devices=_devices(leaves)):
        try:
            audits = _audits(comparison, tell or _quiet)
            runs = _runs(comparison, most_pairs, tell or _quiet)
        finally:
            comparison.surroundings.restore()
            torch.compiler.reset()
    return Verification(source.label, strategy, grad_mode, tuple(runs), tuple(audits))


def _check(name: str, value: Any, fine: bool, use: str) -> None:
    if not fine:
        why = "options are checked before anything is compiled"
        raise ReinkError("unknown-option", f"the option {name} cannot be {value!r}", why=why, do=f"use {use}")


def _refuse_hidden_memory(names: Sequence[str], values: Sequence[Any]) -> None:
    """Refuse a tensor without a storage that can be watched."""
    for name, value in zip(names, values, strict=True):
        if isinstance(value, Tensor) and any(t.layout is not torch.strided for t in inner_tensors(value)):
            raise ReinkError(
                "not-a-tensor-program",
                f"cannot verify: {name} has the layout {value.layout}",
                why="only the memory of a strided tensor can be compared byte by byte",
                do="pass the tensors that it is made of, and build it inside the program",
            )


def _quiet(name: str) -> None:
    """A `tell` that says nothing."""


def _watched_names(names: Sequence[str], values: Sequence[Any]) -> tuple[str, ...]:
    """A name for each tensor that the judge watches, in its order: those inside a wrapper have its name."""
    found: list[str] = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, Tensor):
            found += [name] * len(inner_tensors(value))
    return tuple(found)


def _devices(leaves: Sequence[Any]) -> list[int]:
    """The accelerators whose random state `observe` sets."""
    return sorted({t.device.index or 0 for t in leaves if isinstance(t, Tensor) and t.device.type == "cuda"})


def _audits(comparison: Comparison, tell: Tell) -> list[Audit]:
    """What the custom operators do that the program calls, each on the arguments that the program gives it."""
    tell("operators")
    seen = CustomCalls()
    try:
        with seen:
            comparison.eager((as_given,))
    except EagerFailed:  # the first run says so, with its place
        return []
    return [audit(op, calls) for op, calls in seen.calls.items()]


def _runs(comparison: Comparison, most_pairs: int, tell: Tell) -> list[Run]:
    """Every run, the one on the given inputs first; that one alone when it is refused."""

    def run(variant: Variant) -> Run:
        tell(variant.name)
        return comparison.run(variant)

    written = _written(comparison)
    runs = [run(Variant("as given", (as_given,)))]
    if runs[0].outcome not in ("ok", "differs"):
        return runs
    values = fresh
    try:
        comparison.eager((fresh,))
    except EagerFailed as refused:
        runs.append(Run("called again with fresh values", "skipped", f"eager raises {refused}"))
        values = as_given
    leaves = comparison.case.leaves
    runs += [run(v) for v in variants(leaves, values)]
    found = pairs(leaves, written)
    for k, (i, j) in enumerate(found[:most_pairs]):
        made = [run(v) for v in pair_variants(comparison.case.names, leaves, i, j, values)]
        runs += made
        if k == 0:
            runs += [run(v) for v in _in_turn(made, (i, j), values)]
    if found[most_pairs:]:
        runs.append(Run("other pairs of inputs", "skipped", f"{most_pairs} of {len(found)} pairs were tried"))
    return runs


def _written(comparison: Comparison) -> list[int]:
    """Flat arguments whose storage eager changes. Raises ReinkError when eager raises on the given inputs."""
    try:
        (left,) = comparison.eager((as_given,))
    except EagerFailed as refused:
        raise ReinkError(
            "not-a-tensor-program",
            "cannot verify: the program raises on the given inputs without reink",
            where=_place(refused.error),
            why=str(refused),
            do="give inputs on which it runs",
        ) from refused.error
    leaves = comparison.case.leaves
    watched = [(k, inner) for k, t in enumerate(leaves) if isinstance(t, Tensor) for inner in inner_tensors(t)]
    rows = zip(watched, left.memory, strict=False)
    return [k for (k, tensor), memory in rows if not _equal_bytes(whole_storage(tensor), memory)]


def _equal_bytes(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _place(error: BaseException) -> str:
    """The last line of neither torch nor reink that the traceback of `error` went through."""
    library = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(library)]
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}    {frames[-1].line}" if frames else ""


def _in_turn(made: Sequence[Run], pair: tuple[int, int], values: Edit) -> Iterator[Variant]:
    """Calls of one compiled function that change from one alias pattern to another, those that eager accepts."""
    edits = (same_tensor(*pair), neighbours(*pair), one_step_on(*pair))
    names = ("the same tensor", "neighbours in a storage", "overlapping in part")
    chosen = [e for e, n in zip(edits, names, strict=True) if any(n in r.name and r.outcome == "ok" for r in made)]
    calls = [values]
    for edit in chosen:
        calls += [both(values, edit), values]
    if chosen:
        yield Variant("alias patterns in turn", tuple(calls))
