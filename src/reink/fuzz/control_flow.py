"""Branches and loops in random programs, whose functions write what lies around them."""

from __future__ import annotations

import copy
import re

import torch

from reink.fuzz.draft import Draft, NoFit
from reink.fuzz.program import Statement
from reink.fuzz.statements import FLOATS, Kind, make, names_of, rule

_INSIDE: tuple[Kind, ...] = ("view", "write", "write", "custom", "read")
_NUMBERS = (*FLOATS, torch.int32, torch.int64)
# An assignment to a name of outside would make another variable of it.
_REBINDS = re.compile(r"^\w+ [-+*]=")
MOST_INSIDE = 3


@rule("control")
def _branch(d: Draft, rule: str) -> Statement:
    flag, operand = d.tensor(0, _NUMBERS), d.tensor(0, _NUMBERS)
    (name,) = d.fresh()
    yes = _function(d, f"yes_{name}(t)", operand, d.pick("t + 1", "t * 2", "t.clone()"))
    no = _function(d, f"no_{name}(t)", operand, d.pick("t - 1", "t * -1", "t.neg()"))
    call = f"{name} = branch({flag}.sum() > {d.number(-3, 40)}, yes_{name}, no_{name}, {operand})"
    return Statement(rule, "\n".join([*yes, *no, call]), (name,))


@rule("control")
def _loop(d: Draft, rule: str) -> Statement:
    state = f"{d.tensor(0, _NUMBERS)}.clone()"
    (name,) = d.fresh()
    body = _function(d, f"body_{name}(i, t)", state, "i + 1, t - 1", keep="t")
    goes_on = f"lambda i, t: i < {d.number(0, 3)}"
    call = f"_, {name} = loop({goes_on}, body_{name}, torch.tensor(0), {state})"
    return Statement(rule, "\n".join([*body, call]), (name,))


def _function(d: Draft, head: str, operand: str, result: str, keep: str = "") -> list[str]:
    """Lines of a function of `t`, which is `operand`: a few statements that may write whatever exists, but not `keep`.

    The statements are tried on copies, for the function may never be called.
    """
    inside = Draft(d.rng, copy.deepcopy(d.values))
    inside.values["t"] = inside.value(operand)
    inside.continue_names(d)
    for _ in range(d.number(1, MOST_INSIDE)):
        try:
            statement = make(inside, d.rng.choice(names_of(d.rng.choice(_INSIDE))))
        except NoFit:
            continue
        kept = keep and any(re.match(rf"{keep}\b", w) for w in statement.written)
        if not _REBINDS.match(statement.text) and not kept:
            inside.add(statement)
    d.continue_names(inside)
    lines = [line for s in inside.statements for line in s.text.splitlines()]
    return [f"def {head}:", *(f"    {line}" for line in (*lines, f"return {result}"))]
