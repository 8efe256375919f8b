"""The order of the steps: functionalize, clean up, the user's passes, reinplace, lower, each result checked."""

from __future__ import annotations

import gc
import importlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.fx

from reink.check import check_form, check_ownership, prove_values
from reink.core.boundary import AliasPattern, Watched, alias_pattern, behind
from reink.core.epilogue import with_epilogue
from reink.core.fakes import refresh_values
from reink.core.plan import Plan
from reink.core.printing import type_text
from reink.core.program import Program, copied
from reink.core.torch_internals import FakeTensor
from reink.errors import ReinkError
from reink.options import Options
from reink.passes.cleanup import cleanup
from reink.passes.decompose import decompose
from reink.passes.destinations import compute_where_joined
from reink.passes.donation import donations, keep_usable
from reink.passes.functionalize import functionalize
from reink.passes.loops import carry_in_place
from reink.passes.lower import lower
from reink.passes.placement import Rules
from reink.passes.refusals import OutsideInput
from reink.passes.reinplace import reinplace
from reink.report import Decision, Donation, Report, Verdict, amount
from reink.story import Sources, decision, functionalized, snapshot

Node = torch.fx.Node
log = logging.getLogger("reink")

Built = TypeVar("Built")


@dataclass(slots=True)
class Compiled:
    """One program, through all steps. `runs` is the program to run: the lowered one, or the fallback.

    `undonated` are inputs that the caller gave away and that are of no use. The report is made on demand (`report`): a
    compile that nobody asks about pays for no story.
    """

    captured: Program
    functional: Program
    plan: Plan | None
    lowered: Program | None
    runs: Program
    options: Options
    name: str
    verdicts: list[Verdict] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    fallback: str = ""
    undonated: list[Donation] = field(default_factory=list)

    def report(self) -> Report:
        """Everything about this compile as plain data."""
        with without_collection():
            return self._report()

    def _report(self) -> Report:
        report, sources = self.outcome(), Sources()
        report.snapshots.append(snapshot("capture", self.captured, sources, {}))
        told = functionalized(self.captured, self.options.strategy, sources)
        if told is not None:
            report.snapshots.append(told.snapshot)
            report.events = told.events
        if self.lowered is not None:
            report.snapshots.append(snapshot("cleanup", self.functional, sources, told.of if told is not None else {}))
            report.snapshots.append(snapshot("lower", self.lowered, sources))
        report.sources = sources.lines
        return report

    def outcome(self) -> Report:
        """The report without its story: what became of each write, and what the checks said."""
        report = Report(self.name, self.options.strategy, self.options.codegen, fallback=self.fallback)
        report.decisions = self.decisions()
        report.lower_bound = self.plan.lower_bound() if self.plan is not None and not self.fallback else None
        report.verdicts = list(self.verdicts)
        report.seconds = dict(self.seconds)
        report.donations = list(self.undonated)
        if self.plan is not None and not self.fallback:
            report.donations.extend(donations(self.plan))
        return report

    def decisions(self) -> list[Decision]:
        """What became of each written operand; nothing when the fallback runs."""
        if self.plan is None or self.fallback:
            return []
        return [decision(k, c) for k, c in enumerate(self.plan.every_choice())]


def reaching(
    build: Callable[[AliasPattern], Built], inputs: Sequence[Any], pure: Callable[[Built], Program]
) -> tuple[Built, AliasPattern, Watched]:
    """`build` for inputs that share nothing; where the program looks beyond an input, for a base that is its storage.

    An object that is given twice is one object as long as the program may change its sizes or strides. Returns what was
    built, for which pattern, and which inputs to watch; `pure` gives the functional program of what was built. Raises
    ReinkError.
    """
    known = all(_has_storage(v) for v in inputs if isinstance(v, torch.Tensor))
    same, whole = frozenset(range(len(inputs)) if known else ()), frozenset[int]()
    first: dict[int, OutsideInput] = {}  # it names the input as the user does, not the base
    pattern = alias_pattern(inputs, (), whole, same)
    while True:
        try:
            built = build(pattern)
            if not same or not pattern or pure(built).signature.reshaped:
                break
            same = frozenset()
        except OutsideInput as error:
            looked_beyond = behind(error.input, pattern, len(inputs)) if error.input >= 0 else set()
            if looked_beyond <= whole or not all(_has_storage(inputs[i]) for i in looked_beyond):
                raise next((first[i] for i in looked_beyond if i in first), error) from None
            first.update(dict.fromkeys(looked_beyond - whole, error))
            whole |= looked_beyond
        pattern = alias_pattern(inputs, (), whole, same)
    signature = pure(built).signature
    written, reshaped = (
        {p for k in positions for p in behind(k, pattern, len(inputs))}
        for positions in ({*signature.mutated_inputs, *signature.donated_inputs}, signature.reshaped)
    )
    return built, pattern, Watched(tuple(sorted(written)), whole, frozenset(reshaped))


def _has_storage(value: Any) -> bool:
    """Whether the memory behind an input is known: that behind a fake tensor is not."""
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and value.layout is torch.strided


def compile_program(program: Program, options: Options, name: str = "program") -> Compiled:
    """Take a captured program through every step: `begin`, then `complete`."""
    compiled = begin(program, options, name)
    complete(compiled)
    return compiled


def begin(program: Program, options: Options, name: str = "program") -> Compiled:
    """The first step alone: the pure program, and with it what the program writes and returns.

    Raises ReinkError for what cannot be said purely.
    """
    compiled = Compiled(program, program, None, None, program, options, name)
    with _timed(compiled, "functionalize"):
        functional = functionalize(program, strategy=options.strategy)
    with _timed(compiled, "check"):
        _require(check_form(functional), "functionalize")
    compiled.functional = functional
    compiled.undonated = keep_usable(functional, options.donate)
    return compiled


def complete(compiled: Compiled, dice: random.Random | None = None, *, out: bool = True) -> None:
    """The remaining steps. `dice` takes the decisions of reinplace by chance; `out`: the lowered program may call
    operators in their form with ``out``, which other compilers do not take.

    Raises ReinkError for a user pass that fails. When the ownership check or the proof fails, the captured program
    itself runs (or, when user passes changed the graph, the functional one with its epilogue): right by construction.
    """
    functional, options = compiled.functional, compiled.options
    with _timed(compiled, "cleanup"):
        cleanup(functional)
    for user_pass in options.passes:
        _run_everywhere(user_pass, functional)
    generated = None
    if options.codegen == "inductor":
        inductor = importlib.import_module("reink.core.inductor_internals")
        with _timed(compiled, "decompose"):
            decompose(functional, inductor.decomposition_table())
            cleanup(functional)
        generated = inductor.is_realized
    else:
        carry_in_place(functional, Rules(bool(options.passes)))
        if out:
            compute_where_joined(functional)
    said = copied(functional) if options.prove else functional  # reinplace may take calls apart
    with _timed(compiled, "reinplace"):
        plan = reinplace(functional, Rules(bool(options.passes), dice, generated, options.max_extra_bytes, out))
    with _timed(compiled, "lower"):
        lowered = lower(plan, rows_at_once=out and generated is None)
    compiled.plan, compiled.lowered = plan, lowered
    with _timed(compiled, "check"):
        compiled.verdicts.append(check_form(lowered))
        compiled.verdicts.extend(_ownership(plan, lowered))
    if options.prove:
        with _timed(compiled, "prove"):
            compiled.verdicts.extend(_proofs(said, lowered))
    _choose(compiled)
    _refuse_copies(compiled)


def _ownership(plan: Plan, lowered: Program) -> Iterator[Verdict]:
    """The ownership check of a graph, then of the graphs inside it, which it takes for granted."""
    yield check_ownership(plan.program, [s.node for s in plan.steps], lowered)
    for name, inner in plan.subgraphs.items():
        yield from _ownership(inner, lowered.subgraphs[name])


def _proofs(functional: Program, lowered: Program) -> Iterator[Verdict]:
    """The value proof of a graph, then of the graphs inside it, which it takes for granted."""
    yield prove_values(functional, lowered)
    for name, inner in functional.subgraphs.items():
        yield from _proofs(inner, lowered.subgraphs[name])


@contextmanager
def _timed(compiled: Compiled, step: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        compiled.seconds[step] = compiled.seconds.get(step, 0.0) + time.perf_counter() - start


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection inside: walks over large graphs cost half as much."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _require(verdict: Verdict, step: str) -> None:
    if not verdict.ok:
        raise ReinkError(
            "internal-ill-formed",
            f"{step} left a graph that is not well-formed",
            why="; ".join(verdict.details),
            do="report this as a bug of reink, with the program",
        )


def _run_everywhere(user_pass: Callable[[Any], None], functional: Program) -> None:
    """One of the user's passes on the pure graph, and on the graphs inside it."""
    for inner in functional.subgraphs.values():
        _run_everywhere(user_pass, inner)
    _run_pass(user_pass, functional)


def _run_pass(user_pass: Callable[[Any], None], functional: Program) -> None:
    """One of the user's passes on the pure graph, and a check of what it left."""
    name = getattr(user_pass, "__name__", type(user_pass).__name__)
    before = [_value(r) for r in functional.results()]
    try:
        user_pass(functional.graph)
        functional.graph.lint()
        refresh_values(functional.graph)
    except ReinkError:
        raise
    except Exception as error:
        raise _pass_failed(name, f"{type(error).__name__}: {error}") from error
    after = [_value(r) for r in functional.results()]
    if len(before) != len(after):
        raise _pass_failed(name, f"it changed the number of results from {len(before)} to {len(after)}")
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        if not _alike(old, new):
            raise _pass_failed(name, f"it changed result {k} from {type_text(old)} to {type_text(new)}")
    verdict = check_form(functional)
    if not verdict.ok:
        raise _pass_failed(name, "; ".join(verdict.details))


def _value(result: Any) -> Any:
    return result.meta.get("val") if isinstance(result, Node) else None


def _alike(old: Any, new: Any) -> bool:
    """Whether two results have one dtype and, as far as sizes are plain numbers, one size."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return True
    sizes = zip(old.size(), new.size(), strict=False)
    static = all(a == b for a, b in sizes if type(a) is int and type(b) is int)
    return old.dtype == new.dtype and old.dim() == new.dim() and static


def _pass_failed(name: str, why: str) -> ReinkError:
    return ReinkError(
        "pass-failed",
        f"the pass {name} failed or left a graph that cannot be used",
        why=why,
        do="edit only the pure graph: no writes, no missing inputs, the same results in the same order",
    )


def _choose(compiled: Compiled) -> None:
    """Run the lowered program if every check holds, else one that is right by construction; say so once."""
    failed = [v for v in compiled.verdicts if not v.ok]
    for verdict in compiled.verdicts:
        if not verdict.decided:
            log.info("%s: %s not decided: %s", compiled.name, verdict.check, "; ".join(verdict.details[:1]))
    if not failed:
        assert compiled.lowered is not None
        compiled.runs = compiled.lowered
        return
    compiled.fallback = f"{failed[0].check} check failed: {'; '.join(failed[0].details[:1])}"
    if compiled.options.passes:
        compiled.runs = with_epilogue(compiled.functional)
    log.warning("%s runs without re-inplacing: %s", compiled.name, compiled.fallback)


def _refuse_copies(compiled: Compiled) -> None:
    if not compiled.options.strict:
        return
    report = compiled.outcome()
    if report.bytes_cloned > compiled.options.strict_bytes or compiled.fallback:
        raise ReinkError(
            "strict-copy",
            f"{compiled.name} copies {amount(report.bytes_cloned)}; strict allows {compiled.options.strict_bytes} B",
            why=str(report),
            do="change the program as the report says, or raise strict_bytes",
        )
