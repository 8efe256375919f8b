"""What the log says of a compile, and the ways to see it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.fx
from support.library import compiled
from torch import Tensor

from reink import logs

SCRIPT = """
import torch, reink
torch.compile(lambda x: x.add_(1), backend="reink", options={"codegen": "eager"})(torch.ones(4))
"""


def test_a_compile_says_in_one_line_what_became_of_each_write(caplog: pytest.LogCaptureFixture) -> None:
    def drop_clones(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    def program(x: Tensor, y: Tensor) -> Tensor:
        old = x.clone()
        x.mul_(2)
        y.add_(1)
        return x[3] + old[3]

    with caplog.at_level(logging.INFO, logger="reink"):
        compiled(program, passes=(drop_clones,))(torch.ones(64, 4), torch.ones(4))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "reink.compile"]
    assert line.startswith("program: 2 writes, 1 in place, 16 B cloned: ")
    assert "aten.add_.Tensor(self) in place" in line
    assert "aten.mul_.Tensor(self) saved, 16 B, because a later read needs the old value" in line


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({}, False),
        ({"REINK_LOG": "info"}, True),
        ({"REINK_LOG": "warning"}, False),
        ({"TORCH_LOGS": "+reink"}, True),
    ],
)
def test_the_log_is_switched_on_from_outside(variables: dict[str, str], seen: bool) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    assert ("1 in place" in run.stderr) is seen


def test_a_level_that_is_none_is_said(caplog: pytest.LogCaptureFixture) -> None:
    logs.switch_on({"REINK_LOG": "loud"})
    assert "REINK_LOG=loud is no level: use one of debug, info, warning, error" in caplog.text


def test_the_report_is_in_the_structured_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[Any, Any]] = []

    def trace(kind: str, metadata_fn: Any, payload_fn: Any) -> None:
        heard.append((kind, metadata_fn()["name"]))
        assert json.loads(payload_fn())["bytes_cloned"] == 0

    monkeypatch.setattr("reink.core.torch_internals.trace_structured", trace)
    compiled(lambda x: x.add_(1))(torch.ones(4))
    assert heard == [("artifact", "reink_report")]
