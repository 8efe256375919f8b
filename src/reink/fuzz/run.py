"""Running one random program against eager: through reink's passes alone, or through `torch.compile`.

An `Outcome` says in one word how it went, and for a fault what was seen.
"""

from __future__ import annotations

import logging
import random
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from reink.api import CompiledFunction, compile_function
from reink.backends.donating import taken_over
from reink.backends.in_inductor import in_inductor
from reink.errors import causes, refusal_in
from reink.fuzz.draft import REFUSALS
from reink.fuzz.injection import Tally, inject
from reink.fuzz.prediction import wrong_prediction
from reink.fuzz.program import FuzzProgram
from reink.fuzz.shuffle import shuffle_pass
from reink.judge import GENERATED_TOLERANCE, Observed, differences, observe, poisoned
from reink.options import Options

# What a run is compared with eager: reink without Dynamo, a back end of torch.compile, or stock's repaired by reink.
THROUGH_PASSES, REPAIRED = "passes", "in_inductor"
BACKENDS = ("reink", REPAIRED, "aot_eager", "inductor")

# Answers that are no fault of a back end: right, refused with a code, or never reached.
HARMLESS = frozenset({"ok", "refused", "dynamo", "stock", "foreseen"})

# What eager says of operands that overlap in part, which it tells by their strides.
OVERLAP = "refer to a single memory location"

Program = Callable[..., Any]
Makers = Sequence[Callable[[], tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program went. `kind` is one of

    - ``ok``; ``refused``, with the code as `cause`;
    - ``value``, ``layout``, ``aliasing``, ``memory``, ``gradient``, ``structure``, ``state``: the first difference
      from eager;
    - ``crash``: an error without a code, its type as `cause`;
    - ``foreseen``: another layout than eager's, or an overlap that eager does not see, in a program with an operator
      whose fake kernel foresees another layout, as `cause` says: no compiler that trusts the trace knows better;
    - ``dynamo``: an error that Dynamo raises under its own back end ``eager`` as well, so whatever back end is asked;
    - ``stock``: the same fault comes from the stock pipeline without the repair that was tried;
    - ``fallback``: right, but by a program that reink did not re-inplace because a check failed;
    - ``escaped``: an injected fault shows in a result and no check refused it;
    - ``died``, ``timeout``: the process that ran it.

    `stock` tells that reink handed a graph to the stock pipeline, which then gave the answer. `undecided` is the reason
    why the values of the program could not be proven, if they could not.
    """

    kind: str
    cause: str = ""
    detail: str = ""
    stock: bool = False
    tally: Tally = field(default_factory=Tally)
    undecided: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether somebody has to mend something."""
        return self.kind not in HARMLESS

    @property
    def key(self) -> tuple[str, str]:
        """What stays the same while the program is made smaller."""
        return self.kind, self.cause


@dataclass(frozen=True, slots=True)
class Settings:
    """How programs are run. `against` is ``passes`` or a back end; `inject` counts faults for each program; `codegen`
    is the code generator of reink."""

    against: str = THROUGH_PASSES
    inject: int = 0
    codegen: str = "eager"

    @property
    def tolerance(self) -> float:
        """By how much numbers may differ."""
        generated = self.against in (REPAIRED, "inductor") or self.codegen == "inductor"
        return GENERATED_TOLERANCE if generated else 0.0

    @property
    def gradients(self) -> bool:
        """Whether programs may track gradients: the passes alone know none."""
        return self.against != THROUGH_PASSES


def run_program(program: FuzzProgram, settings: Settings) -> Outcome:
    """Run the program plainly and compiled, and compare. Raises nothing."""
    function, make_inputs = program.functions()
    with poisoned(), _listening() as heard:
        expected = observe(function, make_inputs(), program.grad_mode)
        try:
            if settings.against == THROUGH_PASSES:
                outcome = _through_passes(program, function, make_inputs, expected, settings)
            else:
                outcome = _through_compile(program, function, make_inputs, expected, settings)
        except Exception as error:  # whatever comes out of a compiler is a finding, not an error of the fuzzer
            outcome = _failed(error)
            if outcome.kind == "crash" and settings.against != THROUGH_PASSES and _dynamo_fails(program, function):
                outcome = Outcome("dynamo", outcome.cause, outcome.detail)
        if outcome.is_fault and settings.against == REPAIRED:
            outcome = _unrepaired(program, outcome)
        if outcome.kind == "layout" or (outcome.kind == "crash" and OVERLAP in outcome.detail):
            outcome = _blamed(outcome, function, make_inputs)
    handed = any("handed to the stock pipeline" in line for line in heard)
    fallback = next((line for line in heard if "without re-inplacing" in line), "")
    if outcome.kind == "ok" and fallback:
        outcome = replace(outcome, kind="fallback", cause=_shape(fallback.split(":", 1)[-1]), detail=fallback)
    return replace(outcome, stock=handed)


# -- two ways to run ---------------------------------------------------------------------------------------


def _through_passes(
    program: FuzzProgram, function: Program, make_inputs: Any, expected: Observed, settings: Settings
) -> Outcome:
    """Without Dynamo. Every second program has its pure graph shuffled, every third is decided at random, and to every
    fifth the inputs are given for good."""
    number = program.number
    donate = () if number % 5 != 2 or settings.inject else _donatable(program)
    options = Options.of({**_options(number), "codegen": settings.codegen, "donate": donate})
    dice = random.Random(f"{program.seed}:{number}:decisions") if number % 3 == 0 else None
    compiled = compile_function(function, make_inputs(), options, dynamic=program.dynamic, dice=dice)
    found = _given_away(program, compiled, make_inputs(), expected) if donate else observe(compiled, make_inputs())
    outcome = _compared(expected, found, 0.0)
    if outcome.kind != "ok":
        return outcome
    stopped = next((v.details[0] for v in compiled.compiled.verdicts if not v.decided), "")
    outcome = replace(outcome, undecided=_shape(stopped.split(": ", 1)[-1]))
    if not settings.inject:
        return outcome
    rng = random.Random(f"{program.seed}:{number}:faults")
    _, make_others = program.shifted().functions()
    tally = inject(compiled, (make_inputs, make_others), rng, settings.inject)
    if tally.escaped:
        return replace(outcome, kind="escaped", cause=tally.escaped[0].split()[0], detail=tally.escaped[0], tally=tally)
    return replace(outcome, tally=tally)


def _donatable(program: FuzzProgram) -> tuple[str, ...]:
    """The inputs that are alone in their storage."""
    storages = [i.storage for i in program.inputs]
    return tuple(i.name for i in program.inputs if storages.count(i.storage) == 1)


def _given_away(
    program: FuzzProgram, compiled: CompiledFunction, inputs: tuple[Any, ...], expected: Observed
) -> Observed:
    """What a call leaves behind. Bytes of inputs that were given away count as `expected`, those around them do not."""
    taken = {d.argument for d in compiled.compiled.functional.signature.donated}
    donated = [k for k, given in enumerate(program.inputs) if given.name in taken]

    def run(*args: Any) -> Any:
        return compiled(*(taken_over(v) if k in donated else v for k, v in enumerate(args)))

    found = observe(run, inputs)
    memory = list(found.memory)
    for k in donated:
        own = _bytes_of(memory[k], inputs[k])
        own.copy_(_bytes_of(expected.memory[k], inputs[k]))
    return replace(found, memory=tuple(memory))


def _bytes_of(memory: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in a copy of its storage."""
    item = tensor.element_size()
    strides = (*(s * item for s in tensor.stride()), 1)
    return memory.as_strided((*tensor.size(), item), strides, tensor.storage_offset() * item)


def _through_compile(
    program: FuzzProgram, function: Program, make_inputs: Any, expected: Observed, settings: Settings
) -> Outcome:
    """Through Dynamo: first call, inputs in memory of their own, and the first inputs again."""
    repair = in_inductor() if settings.against == REPAIRED else nullcontext()
    with repair:
        return _in_three_calls(program, function, make_inputs, expected, settings)


def _in_three_calls(
    program: FuzzProgram, function: Program, make_inputs: Any, expected: Observed, settings: Settings
) -> Outcome:
    options = {**_options(program.number), "codegen": settings.codegen} if settings.against == "reink" else None
    backend = "inductor" if settings.against == REPAIRED else settings.against
    compiled, mode, tolerance = _compiled(program, function, backend, options), program.grad_mode, settings.tolerance
    outcome = _compared(expected, observe(compiled, make_inputs(), mode), tolerance)
    if outcome.is_fault:
        return outcome
    _, make_apart = program.apart().functions()
    for label, make in (("inputs apart", make_apart), ("first inputs again", make_inputs)):
        try:
            want = observe(function, make(), mode)
        except REFUSALS:
            continue
        outcome = _compared(want, observe(compiled, make(), mode), tolerance)
        if outcome.is_fault:
            return Outcome(outcome.kind, f"{outcome.cause} ({label})".strip(), f"{label}:\n{outcome.detail}")
    return outcome


def _options(number: int) -> dict[str, Any]:
    """Both strategies in turn, every second pure graph shuffled, and all values proven."""
    passes = (shuffle_pass(number),) if number % 2 else ()
    return {"strategy": "v1" if number % 4 < 2 else "v2", "passes": passes, "prove": True}


def _compiled(program: FuzzProgram, function: Program, backend: str, options: dict[str, Any] | None = None) -> Any:
    """The program under a back end, as if nothing had been compiled before."""
    torch.compiler.reset()
    torch_compile: Any = torch.compile
    return torch_compile(function, backend=backend, dynamic=program.dynamic, options=options)


def _blamed(outcome: Outcome, function: Program, make_inputs: Any) -> Outcome:
    """The outcome, or that PyTorch does not foresee the layouts of the program."""
    wrong = wrong_prediction(function, make_inputs())
    return Outcome("foreseen", wrong.partition(":")[0], f"{wrong}\n{outcome.detail}") if wrong else outcome


def _dynamo_fails(program: FuzzProgram, function: Program) -> bool:
    """Whether Dynamo cannot run the program even with the graph as it is."""
    compiled = _compiled(program, function, "eager")
    _, make_inputs = program.functions()
    _, make_apart = program.apart().functions()
    try:
        for make in (make_inputs, make_apart, make_inputs):
            observe(compiled, make(), program.grad_mode)
    except Exception:  # of whatever kind: no back end had a say in it
        return True
    return False


def _unrepaired(program: FuzzProgram, outcome: Outcome) -> Outcome:
    """The outcome, or that stock by itself does no better."""
    alone = run_program(program, Settings("inductor"))
    return (
        replace(outcome, kind="stock", cause=f"{outcome.kind} {outcome.cause}".strip()) if alone.is_fault else outcome
    )


def _compared(want: Observed, got: Observed, tolerance: float) -> Outcome:
    found = differences(want, got, tolerance)
    if not found:
        return Outcome("ok")
    return Outcome(found[0].kind, "", "\n".join(map(str, found)))


def _failed(error: BaseException) -> Outcome:
    refusal = refusal_in(error)
    if refusal is not None and not refusal.code.startswith("internal"):
        return Outcome("refused", refusal.code, str(refusal))
    coded = re.search(r"docs/errors\.md#([a-z-]+)\)", str(error))
    if coded is not None:  # raised by an assertion in the graph
        return Outcome("refused", coded[1], str(error))
    last = [e for e in causes(error) if type(e).__module__ != "torch._dynamo.exc"] or [error]
    said = str(last[0]).strip().splitlines()
    cause = f"{type(last[0]).__name__}: {_shape(said[0] if said else '')}"
    return Outcome("crash", cause, "".join(traceback.format_exception(error))[-6000:])


def _shape(message: str) -> str:
    """A message without what differs from program to program: numbers, names of values, lists."""
    short = re.sub(r"\b(arg|v|a|s|u)?\d+(_\d+)?\b", "#", message.strip())
    return re.sub(r"\[[^\]]*\]|\([^)]*\)", "[]", short)[:90]


# -- surroundings ------------------------------------------------------------------------------------------


@contextmanager
def _listening() -> Iterator[list[str]]:
    """What reink's log says meanwhile; nothing of it is printed."""
    heard: list[str] = []

    class Listener(logging.Handler):
        """Keeps every message."""

        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener, logger = Listener(logging.INFO), logging.getLogger("reink")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield heard
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
        logger.propagate = propagates
