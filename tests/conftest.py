"""What every test gets: the `golden` fixture, one thread, hypothesis profiles, a clean compiler state."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

torch.set_num_threads(1)  # the workers of pytest-xdist share the cores

_slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "default", max_examples=50, deadline=None, derandomize="CI" in os.environ, suppress_health_check=_slow
)
settings.register_profile("long", max_examples=2000, deadline=None, suppress_health_check=_slow)
settings.load_profile("long" if os.environ.get("REINK_LONG") == "1" else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden from what the code prints now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: `text` must be tests/golden/<name>.txt, or becomes it with --update-golden.

    Space at the end of the text does not count; a name may hold slashes.
    """
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip() + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        stored = path.read_text(encoding="utf-8") if path.exists() else ""
        if stored != text:
            pytest.fail(_difference(name, stored, text), pytrace=False)

    return compare


def _difference(name: str, stored: str, text: str) -> str:
    shown = f"tests/golden/{name}.txt"
    rows = difflib.unified_diff(stored.splitlines(), text.splitlines(), shown, "printed now", lineterm="")
    hint = "if the change is meant: pytest --update-golden, then review the diff as code"
    return "\n".join([f"{shown} {'differs' if stored else 'does not exist'}", *rows, hint])


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """No test depends on what another one compiled or drew."""
    torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
