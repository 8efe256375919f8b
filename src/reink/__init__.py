"""reink: mutating tensor programs made pure, optimised, put back in place, and explained.

The names are loaded when they are first used, so that a saved report opens without torch. A `Report` needs no more
than the standard library; here it is told who draws it as a page.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from reink import logs
from reink.report import Report

__version__ = "0.1.0"
__all__ = [
    "Functionalized",
    "Options",
    "ReinkError",
    "Report",
    "Verification",
    "compile",
    "disable_in_inductor",
    "enable_in_inductor",
    "explain",
    "functionalize",
    "in_inductor",
    "reinplace",
    "reinplace_exported",
    "verify",
]

_HOMES = {
    "Functionalized": "reink.api",
    "Options": "reink.options",
    "ReinkError": "reink.errors",
    "Verification": "reink.verification.answer",
    "compile": "reink.api",
    "disable_in_inductor": "reink.backends.in_inductor",
    "enable_in_inductor": "reink.backends.in_inductor",
    "explain": "reink.api",
    "functionalize": "reink.api",
    "in_inductor": "reink.backends.in_inductor",
    "reinplace": "reink.backends.stock",
    "reinplace_exported": "reink.backends.exported",
    "verify": "reink.verification.verify",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'reink' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def _page(report: Report) -> str:
    drawn: str = importlib.import_module("reink.show.page").page(report)
    return drawn


def _frame(report: Report) -> str:
    drawn: str = importlib.import_module("reink.show.page").frame(report)
    return drawn


Report.drawn_by(_page, _frame)
logs.switch_on(os.environ)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
