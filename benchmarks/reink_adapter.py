"""The one place where the benchmarks touch reink's inside."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor, fx

from reink.core.program import Form, Program
from reink.core.torch_internals import forward_of
from reink.options import Options
from reink.passes.cleanup import cleanup
from reink.passes.functionalize import functionalize
from reink.passes.optimum import Kept, cheapest
from reink.passes.reinplace import reinplace
from reink.pipeline import compile_program

CODEGEN = "codegen"


def functionalize_seconds(mutable_graph_module: fx.GraphModule) -> float:
    """Seconds of the functionalize step alone, which leaves the given graph as it was."""
    program = Program(mutable_graph_module, Form.MUTABLE)
    start = time.perf_counter()
    functionalize(program)
    return time.perf_counter() - start


def reinplace_seconds(mutable_graph_module: fx.GraphModule) -> float:
    """Seconds of the re-inplacing step alone, on the pure graph of the given one."""
    functional = functionalize(Program(mutable_graph_module, Form.MUTABLE))
    cleanup(functional)
    start = time.perf_counter()
    reinplace(functional)
    return time.perf_counter() - start


def optimum_seconds(detaching: Sequence[int], kept: Sequence[tuple[int, int, int]]) -> float:
    """Seconds to find the fewest bytes: what each write copies if detached, and of each old value that is read late
    the write that it came with, the one that destroys it, and its bytes."""
    values = [Kept(*value) for value in kept]
    start = time.perf_counter()
    cheapest(detaching, values)
    return time.perf_counter() - start


def compile_graph(mutable_graph_module: fx.GraphModule, example_inputs: Sequence[Tensor]) -> dict[str, float]:
    """Seconds of each step of one compile, from the captured graph to the lowered one.

    Lint and ownership check are steps too; user passes are not run. Generating Python code of the
    lowered graph is the step `CODEGEN`, which is reported apart. The given graph is left as it was.
    """
    program = Program(mutable_graph_module, Form.MUTABLE)
    compiled = compile_program(program, Options())
    assert not compiled.fallback, compiled.fallback
    seconds = dict(compiled.seconds)
    start = time.perf_counter()
    forward_of(compiled.runs.module)
    seconds[CODEGEN] = time.perf_counter() - start
    return seconds
