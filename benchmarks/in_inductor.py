"""What the stock pipeline does with calls of a mutable operator after grad, and what `reink.in_inductor` does instead.

The functional graph of N custom calls on N rows of one input, as AOTAutograd makes it. Stock decides (`reinplace`) and
takes the calls apart (`lower`); reink does both, proves the result and puts it into the graph. Processor time, so that
a busy machine counts less.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable

import torch
from measure import print_table, still_collector
from rich.console import Console
from torch import Tensor, fx
from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized
from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops
from torch._inductor.fx_utils import FakeTensorUpdater
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode

import reink.backends.inductor  # noqa: F401  (loaded before anything is measured)
from reink.backends.in_inductor import Repairs

HEADINGS = ("calls", "stock s", "reink s", "stock / reink", "cloned by reink")
WIDTH = 16


@torch.library.custom_op("reink_benchmark::add_one", mutates_args=("row",))
def add_one(row: Tensor) -> None:
    """Add one."""
    row.add_(1)


def run(console: Console, quick: bool) -> None:
    """Print one table, a row for each number of calls."""
    repaired(10)
    rows = []
    for calls, by_stock in ((100, True), (300, True)) if quick else ((100, True), (1_000, True), (3_000, False)):
        seconds, cloned = repaired(calls)
        stock = stock_seconds(calls) if by_stock else None
        shown = ("-", "-") if stock is None else (f"{stock:.2f}", f"{stock / seconds:.1f}")
        rows.append([f"{calls:,}", shown[0], f"{seconds:.2f}", shown[1], f"{cloned} B"])
    print_table(
        console, "calls after grad, put in place and lowered", HEADINGS, rows, "stock is not run on 3,000 calls"
    )


def functional_graph(calls: int) -> fx.GraphModule:
    """The graph of `calls` calls on the rows of an input, in form v2, with its epilogue."""
    graph = fx.Graph()
    base = newest = graph.placeholder("x")
    with FakeTensorMode():
        base.meta["val"] = torch.empty(calls, WIDTH)
        for k in range(calls):
            views = {"_row_base_index": 0, "_row_size": [WIDTH], "_row_stride": [1], "_row_storage_offset": WIDTH * k}
            stock = torch.ops.higher_order.auto_functionalized_v2
            add_row = torch.ops.reink_benchmark.add_one.default
            call = graph.call_function(stock, (add_row,), {**views, "_all_bases": [newest]})
            call.meta["val"] = (None, torch.empty(calls, WIDTH))
            newest = graph.call_function(operator.getitem, (call, 1))
            newest.meta["val"] = call.meta["val"][1]
    copied = graph.call_function(torch.ops.aten.copy_.default, (base, newest))
    copied.meta["val"] = base.meta["val"]
    graph.output((copied,))
    return fx.GraphModule({}, graph)


def repaired(calls: int) -> tuple[float, int]:
    """Seconds of reink, and the bytes that it leaves to clone."""
    module, repairs = functional_graph(calls), Repairs()
    seconds = _seconds(lambda: repairs.repair(module.graph))
    assert not repairs.left
    return seconds, repairs.reports[0].bytes_cloned


def stock_seconds(calls: int) -> float:
    """Seconds of stock: deciding, and taking the calls apart."""
    module = functional_graph(calls)
    mode = next(iter(module.graph.nodes)).meta["val"].fake_mode
    with V.set_fake_mode(mode):
        updater = FakeTensorUpdater(module)

        def steps() -> None:
            reinplace_inplaceable_ops(updater, module.graph)
            decompose_auto_functionalized(module.graph)

        return _seconds(steps)


def _seconds(action: Callable[[], object]) -> float:
    with still_collector():
        start = time.process_time()
        action()
        return time.process_time() - start
