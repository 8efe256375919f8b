"""The small examples run, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMISES = {
    "views": "0 B cloned",
    "kv_cache": "0 B cloned",
    "why_copied": "256 B cloned",
    "optimizer_step": "0 B cloned",
    "engine_passes": "1 in place, 0 copied; 0 B cloned",
}


@pytest.mark.parametrize(("name", "promise"), PROMISES.items(), ids=PROMISES)
def test_example_runs_and_prints_its_promise(name: str, promise: str) -> None:
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert promise in run.stdout
