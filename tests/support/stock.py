"""Graphs as PyTorch's own pipeline makes them, before anything of it is put back in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as inductor_config
import torch.fx
from torch._functorch.aot_autograd import aot_module_simplified

from reink.core.torch_internals import STOCK_V1, STOCK_V2


def stock_graph(
    fn: Callable[..., Any], args: tuple[Any, ...], *, v2: bool = True, dynamic: bool | None = None
) -> torch.fx.GraphModule:
    """The functional graph that AOTAutograd makes of `fn`, which ends in a copy into each written argument."""
    seen: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(module, inputs, fw_compiler=keep, keep_inference_input_mutations=True)

    compile_: Any = torch.compile
    with inductor_config.patch(enable_auto_functionalized_v2=v2), torch.no_grad():
        compile_(fn, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
    return seen[0]


def stock_calls(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes that are functional calls in PyTorch's own form."""
    return [n for n in graph.nodes if n.target in (STOCK_V1, STOCK_V2)]
