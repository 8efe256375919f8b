"""An inference engine's passes: a pattern on functional calls, then all of them back in place, by no table."""

import torch._inductor.config
from torch._functorch.aot_autograd import aot_module_simplified

import reink

for schema in ("norm(Tensor(a!) out, Tensor x)", "relu(Tensor(a!) x)", "norm_relu(Tensor(a!) out, Tensor x)"):
    torch.library.define(f"engine::{schema.partition('(')[0]}", schema[schema.index("(") :] + " -> ()")
torch.library.impl("engine::norm_relu", "CPU", lambda out, x: print(out.copy_((x / x.norm()).relu())[0, 0]))
engine, v1 = torch.ops.engine, torch.ops.higher_order.auto_functionalized


def step(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Two kernels on one buffer."""
    engine.norm(buffer, x)
    engine.relu(buffer)
    return buffer.sum()


def passes(gm: torch.fx.GraphModule, example_inputs: object) -> object:
    """``norm`` then ``relu`` becomes one kernel; to a pattern both are pure calls. Then the writes come back."""
    for relu in gm.graph.find_nodes(op="call_function", target=v1):
        if relu.args[0] is engine.relu.default:
            relu.args, relu.kwargs = (engine.norm_relu.default,), relu.kwargs["x"].args[0].kwargs
    gm.graph.eliminate_dead_code()
    gm, report = reink.reinplace(gm)  # proven, and no branch for any operator
    print(report.snapshot("lower").text, report, sep="\n")
    return gm.forward


def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
    """The functional graph that PyTorch makes for a compiler, which ends in a ``copy_`` into the buffer."""
    return aot_module_simplified(module, inputs, passes, keep_inference_input_mutations=True)


with torch.no_grad(), torch._inductor.config.patch(enable_auto_functionalized_v2=False):
    torch.compile(step, backend=backend)(torch.zeros(4, 8), torch.ones(4, 8))
