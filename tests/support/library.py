"""The library under test, as the tests call it: one place that knows names which are still being written."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from reink.options import Options

LONG = os.environ.get("REINK_LONG") == "1"
"""Whether to run the long form of tests: all seeds, thousands of random programs."""


def compiled(
    fn: Callable[..., Any],
    *,
    strategy: str = "v2",
    passes: tuple[Callable[..., None], ...] = (),
    dynamic: bool | None = None,
    fullgraph: bool = True,
) -> Callable[..., Any]:
    """`fn` through ``torch.compile(backend="reink")`` with eager kernels, so that results are exact."""
    options: Any = {"codegen": "eager", "strategy": strategy, "passes": passes, "prove": True}
    compile_: Any = torch.compile
    result: Callable[..., Any] = compile_(fn, backend="reink", options=options, dynamic=dynamic, fullgraph=fullgraph)
    return result


def piped(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    strategy: str = "v2",
    passes: tuple[Callable[..., None], ...] = (),
) -> Callable[..., Any]:
    """`fn` captured without Dynamo on example `args` and taken through the whole pipeline."""
    pipeline: Any = importlib.import_module("reink.api")
    options = Options.of({"codegen": "eager", "strategy": strategy, "passes": passes, "prove": True})
    result: Callable[..., Any] = pipeline.compile_function(fn, args, options)
    return result


def called(graph: torch.fx.Graph) -> list[Any]:
    """The operators of a graph, in order."""
    return [n.target for n in graph.nodes if n.op == "call_function"]


@contextlib.contextmanager
def no_fallback() -> Iterator[None]:
    """Fail if reink warns inside, or cannot decide a proof: a fallback is right by construction, and so hides the bug
    behind it."""
    heard: list[str] = []

    class Listener(logging.Handler):
        """Keeps the text of every warning, and of every proof that was not decided."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING or "not decided" in record.getMessage():
                heard.append(record.getMessage())

    listener, logger = Listener(logging.INFO), logging.getLogger("reink")
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
    assert not heard, "\n".join(heard)
