"""Operators that keep to their schemas, and operators that lie: in each way in which one can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import reink.cli
from reink import verify
from reink.errors import ReinkError
from reink.verification.audit import CALLS, audit

LIBRARY = torch.library.Library("reink_audit", "FRAGMENT")


def operator(schema: str, kernel: Any) -> Any:
    """Register a kernel under a schema that may not be true of it."""
    LIBRARY.define(schema)
    name = schema.partition("(")[0]
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    return getattr(torch.ops.reink_audit, name).default


def _beyond(x: Tensor) -> None:
    """Write the element after the last of `x`."""
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(3)


def _swap(x: Tensor, y: Tensor) -> None:
    kept = x.clone()
    x.copy_(y.clone())
    y.copy_(kept)


def _grow(x: Tensor) -> None:
    x.resize_(200)


def _add(x: Tensor, y: Tensor) -> None:
    x.add_(y.clone())


def _scale(xs: list[Tensor], y: Tensor | None = None, *, scale: float) -> None:
    for t in (*xs, *([y] if y is not None else [])):
        t.mul_(2)


def _fill_at(x: Tensor, where: Tensor) -> None:
    x.view(-1)[where.view(-1)[:1]] = 7


HONEST = {
    "writes what it says": operator("honest(Tensor(a!) x, Tensor y) -> ()", _add),
    "writes nothing": operator("pure(Tensor x, int n=2) -> Tensor", lambda x, n=2: x * n),
    "lists and optionals": operator("several(Tensor(a!)[] xs, Tensor(b!)? y=None, *, float scale) -> ()", _scale),
    "returns what it says": operator("same(Tensor(a!) x) -> Tensor(a!)", lambda x: x.add_(1)),
    "whole numbers only": operator("whole(Tensor(a!) x, Tensor where) -> ()", _fill_at),
}
LYING = {
    "writes a read argument": (
        operator("sneaky(Tensor(a!) x, Tensor y) -> ()", _swap),
        ("writes y, which its schema says it only reads",),
    ),
    "writes and says nothing": (
        operator("silent(Tensor x) -> Tensor", lambda x: x.add_(1).clone()),
        ("writes x, which its schema says it only reads",),
    ),
    "returns an argument": (
        operator("hidden(Tensor x) -> Tensor", lambda x: x.view(-1)),
        ("returns memory of x as result 0, which its schema does not say",),
    ),
    "returns a copy": (
        operator("copied(Tensor(a!) x) -> Tensor(a!)", lambda x: x.add_(1).clone()),
        ("returns new memory as result 0, which its schema says is that of x",),
    ),
    "writes beyond": (
        operator("beyond(Tensor(a!) x) -> ()", _beyond),
        ("writes memory beside x that belongs to none of its arguments",),
    ),
    "grows": (operator("grows(Tensor(a!) x) -> ()", _grow), ("gives x memory of another size",)),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_operator_passes(name: str) -> None:
    answer = audit(HONEST[name])
    assert answer and answer.calls == CALLS, str(answer)
    assert set(answer.written) <= set(answer.declared)


@pytest.mark.parametrize("name", LYING)
def test_a_lie_is_named(name: str) -> None:
    op, broken = LYING[name]
    answer = audit(op)
    assert not answer
    assert answer.broken == broken
    assert broken[0] in str(answer)


def test_shared_memory_is_no_lie() -> None:
    """What is written through one argument is seen in another that shares its memory."""
    x = torch.arange(12.0)
    assert audit(HONEST["writes what it says"], [((x[:6], x[3:9]), {})])
    assert not audit(LYING["writes a read argument"][0], [((x[:6], x[3:9]), {})])


def test_an_operator_that_takes_nothing_that_is_made_up() -> None:
    def picky(x: Tensor) -> None:
        if x.shape != (13,):
            raise ValueError("thirteen elements")

    op = operator("picky(Tensor(a!) x) -> ()", picky)
    with pytest.raises(ReinkError, match="cannot audit reink_audit::picky") as caught:
        audit(op)
    assert caught.value.code == "cannot-audit"
    assert audit(op, [((torch.ones(13),), {})])


def test_arguments_stay_as_they_are() -> None:
    x = torch.arange(6.0)
    audit(HONEST["writes what it says"], [((x, x), {})])
    assert x.tolist() == list(range(6))


def test_verify_audits_what_the_program_calls() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        torch.ops.reink_audit.sneaky(x, y)
        return x + 1

    answer = verify(step, (torch.zeros(3), torch.ones(3)))
    assert not answer
    assert answer.verdict() == "no: the operator reink_audit::sneaky writes y, which its schema says it only reads"
    assert list(answer.to_json()["audits"][0]["broken"]) == ["writes y, which its schema says it only reads"]

    def honest(x: Tensor, y: Tensor) -> Tensor:
        torch.ops.reink_audit.honest(x, y)
        return x + 1

    answer = verify(honest, (torch.zeros(3), torch.ones(3)))
    assert [a.operator for a in answer.audits] == ["reink_audit::honest"] and all(answer.audits)


FILE = """
import torch

@torch.library.custom_op("reink_audit_file::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    x.mul_(by)
    return x.clone()

@torch.library.custom_op("reink_audit_file::fill", mutates_args=("x",))
def fill(x: torch.Tensor, by: float) -> None:
    x.fill_(by)
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(reink.cli.app, ["ops", *arguments], prog_name="reink")

    lying = invoke("--audit", "reink_audit_file::scale", "--load", "kernels.py")
    assert lying.exit_code == 1, lying.output
    assert "writes x, which its schema says it only reads" in lying.stdout
    fine = invoke("--audit", "reink_audit_file.fill.default")
    assert fine.exit_code == 0, fine.output
    assert fine.stdout.splitlines()[-1].startswith("reink_audit_file::fill: keeps to its schema (6 calls")
    missing = invoke("--audit", "reink_audit_file::nothing")
    assert missing.exit_code == 2
    assert "docs/errors.md#not-found" in missing.stderr
