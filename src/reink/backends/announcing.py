"""What a compile says of itself: one line in the log, and an artifact where PyTorch's structured trace is on."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from reink.core.plan import Choice
from reink.core.printing import program_text
from reink.core.torch_internals import trace_artifact
from reink.pipeline import Compiled
from reink.report import amount

log = logging.getLogger("reink.compile")


def announce(compiled: Compiled) -> None:
    """One INFO line on what became of each written argument; at DEBUG the program that runs; a structured artifact."""
    if compiled.plan is not None and log.isEnabledFor(logging.INFO):
        log.info("%s", outcome_line(compiled.name, compiled.plan.every_choice()))
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s runs\n%s", compiled.name, program_text(compiled.runs))
    trace_artifact("reink_report", lambda: json.dumps(compiled.report().to_json()))


def outcome_line(name: str, choices: Sequence[Choice]) -> str:
    """How many writes, what was cloned, and each written argument with where it went or what it cost and why."""
    copied = sum(c.bytes or 0 for c in choices)
    kept = sum(1 for c in choices if c.bytes == 0)
    head = f"{name}: {len(choices)} writes, {kept} in place, {amount(copied)} cloned"
    return ": ".join([head, "; ".join(map(_outcome, choices))]) if choices else head


def _outcome(choice: Choice) -> str:
    written = f"{choice.operator}({choice.argument})"
    if choice.bytes == 0:
        return f"{written} {choice.outcome}"
    cost = "unknown size" if choice.bytes is None else amount(choice.bytes)
    return f"{written} {choice.outcome}, {cost}, because {choice.reason or 'it could not go in place'}"
