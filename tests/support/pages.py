"""What the tests of the page open: reports of small programs, each as a page in a browser.

The tests import it before it is a plugin, and it asserts nothing: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import why_copied
from playwright.sync_api import Browser
from torch import Tensor

import reink
from reink.report import Decision, Report, Source
from support.browser import Watched, browser

Open = Callable[..., Watched]


def written_twice(x: Tensor) -> Tensor:
    y = x.view(2, 8)
    y.add_(1)
    y.relu_()
    return x * 2


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def copied() -> Report:
    """One write, one copy of 256 B."""
    report: Report = reink.explain(*why_copied.program(), passes=(why_copied.drop_clones,), codegen="eager")
    return report


@pytest.fixture(scope="module")
def free() -> Report:
    """Two writes through a view, nothing copied."""
    report: Report = reink.explain(written_twice, (torch.ones(4, 4),), codegen="eager")
    return report


@pytest.fixture
def opened(chromium: Browser, tmp_path: Path) -> Iterator[Open]:
    """``opened(report)``: the report's page in the browser; afterwards nothing may have gone wrong there."""
    pages: list[Watched] = []

    def start(report: Report, fragment: str = "", **options: str) -> Watched:
        file = tmp_path / f"report{len(pages)}.html"
        report.save_html(file)
        pages.append(Watched(chromium, file, fragment, **options))
        return pages[-1]

    yield start
    for watched in pages:
        watched.close()


def many() -> Report:
    """500 decisions, each tenth a copy of as many bytes as its number says."""
    source = Source("/home/me/model.py", 7, "step", "x.add_(1)")
    decisions = [
        Decision(
            k, f"aten.op{k}", "self", "in place" if k % 10 else "saved", 0 if k % 10 else k + 1, 8, "", source=source
        )
        for k in range(500)
    ]
    return Report(decisions=decisions)
