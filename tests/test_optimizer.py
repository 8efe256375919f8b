"""A compiled ``optimizer.step()``: parameters and state are written in place, nothing is cloned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import reink

CASES: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": False}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    (torch.optim.Adam, {"lr": 0.1, "foreach": False}),
    (torch.optim.Adam, {"lr": 0.1, "foreach": True}),
    (torch.optim.RMSprop, {"lr": 0.1}),
]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=[f"{k.__name__}-{o.get('foreach')}" for k, o in CASES])
def test_optimizer_step_is_in_place_and_equals_stock(kind: Any, options: dict[str, Any]) -> None:
    """The peer is the stock back end with eager kernels: Dynamo makes Adam's step count a tensor in both."""
    torch.manual_seed(0)
    models = [nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [kind(m.parameters(), **options) for m in models]
    compile_: Any = torch.compile
    fast = reink.compile(optimizers[1].step, codegen="eager")
    steps = [compile_(optimizers[0].step, backend="aot_eager"), fast]
    for turn in range(3):
        for model, step in zip(models, steps, strict=True):
            model.zero_grad()
            model(torch.full((1, 3), float(turn))).sum().backward()
            step()
    for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    reports = fast.reports
    assert reports
    assert not any(r.fallback for r in reports)
    assert sum(r.bytes_cloned for r in reports) == 0
    assert sum(len(r.decisions) for r in reports) > 0
