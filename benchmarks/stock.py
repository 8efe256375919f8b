"""The stock pipeline on the same programs: its time beyond tracing, and its two forms of a mutable operator.

Private parts of torch 2.13 are used here and nowhere else in the benchmarks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd.functional_utils import from_fun, has_data_mutation, to_fun
from torch._functorch.aot_autograd import aot_function
from torch._inductor import config as inductor_config
from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized
from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops
from torch._inductor.fx_utils import FakeTensorUpdater
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def stock_seconds(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> dict[str, float]:
    """Seconds of each step: ``functionalize`` (AOTAutograd less tracing), ``reinplace`` and ``lower``."""
    traced = _timed(lambda: make_fx(function, tracing_mode="fake")(*inputs))
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example_inputs: Sequence[Tensor | int | torch.SymInt | None]) -> fx.GraphModule:
        graphs.append(gm)
        return gm

    def compile_and_run() -> None:
        with torch.no_grad():
            aot_function(function, fw_compiler=keep)(*(tensor.clone() for tensor in inputs))

    seconds = {"functionalize": max(0.0, _timed(compile_and_run) - traced)}
    (module,) = graphs
    with V.set_fake_mode(_fake_mode(module)):
        updater = FakeTensorUpdater(module)
        seconds["reinplace"] = _timed(lambda: reinplace_inplaceable_ops(updater, module.graph))
        seconds["lower"] = _timed(lambda: decompose_auto_functionalized(module.graph))
    return seconds


def tracing_seconds(function: Callable[..., Tensor], inputs: Sequence[Tensor], *, functional: bool) -> float:
    """Seconds of a trace on fake tensors; `functional`: in PyTorch's functional mode, set up as AOTAutograd does.

    It sets up more than one such trace; this is the one that makes the graph.
    """
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(tensor) for tensor in inputs]

    def functionalized(*args: Tensor) -> Any:
        given = [to_fun(tensor) for tensor in args]
        result = from_fun(function(*given))
        for tensor, wrapped in zip(args, given, strict=True):
            if has_data_mutation(wrapped):
                tensor.copy_(from_fun(wrapped))  # type: ignore[arg-type]
        return result

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(enable_python_dispatcher())
        if functional:
            stack.enter_context(FunctionalTensorMode(_allow_token_discovery=True))
        return _timed(lambda: make_fx(functionalized if functional else function)(*fakes))


def stock_compiled(function: Callable[..., Any], args: Sequence[Tensor], backend: str, form: str) -> Callable[..., Any]:
    """`function` compiled by a stock back end, mutable operators in form ``v1`` or ``v2``; called once, on `args`."""
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(function, backend=backend, fullgraph=True)
    with inductor_config.patch(enable_auto_functionalized_v2=form == "v2"):
        compiled(*args)
    return compiled


def _fake_mode(module: fx.GraphModule) -> FakeTensorMode:
    value = next(node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
    mode = value.fake_mode
    assert isinstance(mode, FakeTensorMode)
    return mode


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
