"""``torch.compile(fn, backend="reink")``: one Dynamo graph in, a function that runs it out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from reink.backends.donating import watched
from reink.backends.runtime import Variants
from reink.core.boundary import AliasPattern, alias_pattern, as_they_are
from reink.core.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    inner_tensors,
    is_wrapper_subclass,
    stock_backend,
    storage_key,
)
from reink.core.wrappers import Wrappers
from reink.errors import ReinkError
from reink.options import Options
from reink.passes.capture import capture_graph, lift_attributes
from reink.pipeline import Compiled, begin, without_collection

Tensor = torch.Tensor
log = logging.getLogger("reink")

# What reink does not do itself yet and the stock pipeline may: the graph is handed over, with one INFO line.
HANDED_OVER = frozenset({"subgraph-alias", "subgraph-mutation", "needs-gradient", "tensor-subclass"})

# What Dynamo answers by splitting the graph, unless fullgraph is asked for.
GRAPH_BREAKS = (DataDependentOutputException, DynamicOutputShapeException)

# The methods that fill a tensor with random numbers.
RANDOM_WRITES = frozenset(
    {"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"}
)

Sink = Callable[[Variants], None]


def reink_backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """The back end that `torch.compile` finds under the name ``reink``; `options` are those of `Options`.

    Raises ReinkError ``unknown-option``, also for ``donate``: a back end does not see the call.
    """
    chosen = Options.of({**(options or {}), **_given(kwargs)})
    if chosen.donate:
        raise ReinkError(
            "unknown-option",
            "torch.compile cannot donate arguments",
            why="a back end is not told when a program returns an argument as it is, nor which call used it before",
            do=f"compile it with reink.compile(model, donate={chosen.donate!r})",
        )
    return compile_graph(module, inputs, chosen)


def _given(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if v is not None}


def compile_graph(
    module: torch.fx.GraphModule, inputs: Sequence[Any], options: Options, sink: Sink | None = None
) -> Callable[..., Any]:
    """Compile one Dynamo graph; `sink` is told of the compiled variants, for their reports."""
    lifted, held = lift_attributes(module)
    try:
        _refuse_gradients(module, inputs)
        wrappers = Wrappers([*inputs, *held])
        variants = _variants(lifted, [*inputs, *held], wrappers, options)
    except ReinkError as error:
        if isinstance(error.__cause__, GRAPH_BREAKS):
            # Dynamo knows these and splits the graph there
            raise error.__cause__ from error
        if error.code not in HANDED_OVER:
            raise
        return _handed_over(module, inputs, error)
    if sink is not None:
        sink(variants)
    run = watched(_around(variants.function(), wrappers))
    return (lambda *args: run(*args, *held)) if held else run


def _around(run: Callable[..., Any], wrappers: Wrappers) -> Callable[..., Any]:
    """`run`, which takes and returns plain tensors, for the wrapper tensors that hold them."""
    if not wrappers:
        return run
    return lambda *args: wrappers.rebuilt(args, run(*wrappers.apart(args)))


def _handed_over(module: torch.fx.GraphModule, inputs: Sequence[Any], reason: ReinkError) -> Callable[..., Any]:
    """The graph under the stock pipeline; `reason` is raised where stock refuses as well.

    Stock takes the way in which inputs overlap for fixed, and gets some ways wrong; of random numbers written in place
    it makes others than eager; and of two writes to one tensor in a list it loses one. Where any of these happens, the
    graph runs as the user wrote it.
    """
    log.info("handed to the stock pipeline (aot_eager): %s [%s]", reason.what, reason.code)
    if reason.code != "tensor-subclass":
        if _overlap(inputs):
            log.info("inputs overlap: the captured program runs as it stands")
            return module.forward
        if _writes_random_numbers(module):
            log.info("random numbers are written in place: the captured program runs as it stands")
            return module.forward
        if _lists_one_twice(module):
            log.info("a list holds one tensor twice: the captured program runs as it stands")
            return module.forward
    try:
        run: Callable[..., Any] = stock_backend("aot_eager")(module, list(inputs))
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        why = f"the stock pipeline refuses it as well: {said}"
        raise ReinkError(reason.code, reason.what, where=reason.where, why=why, do=reason.do) from error

    def refusing(*args: Any) -> Any:
        refuse_shared_inner_tensors(args)
        return run(*args)

    def choosing(*args: Any) -> Any:
        return module.forward(*args) if _overlap(args) else run(*args)

    return refusing if reason.code == "tensor-subclass" else choosing


def _writes_random_numbers(module: torch.fx.GraphModule) -> bool:
    """Whether the graph fills a tensor with random numbers in place."""
    names = (getattr(n.target, "__name__", n.target) for n in module.graph.nodes)
    return any(str(name).removeprefix("Tensor.") in RANDOM_WRITES for name in names)


def _lists_one_twice(module: torch.fx.GraphModule) -> bool:
    """Whether an operator is given a list with one tensor in it twice: stock loses one of the two writes."""
    lists = (a for n in module.graph.nodes if n.op == "call_function" for a in n.args if isinstance(a, (list, tuple)))
    return any(len({id(v) for v in a}) < len(a) for a in lists if all(isinstance(v, torch.fx.Node) for v in a))


def _overlap(inputs: Sequence[Any]) -> bool:
    """Whether two inputs have bytes in common."""
    real = (t for t in inputs if isinstance(t, Tensor) and not isinstance(t, FakeTensor))
    tensors = [t for t in real if t.layout is torch.strided]
    if len({storage_key(t) for t in tensors}) == len(tensors):
        return False
    return bool(alias_pattern(tensors, range(len(tensors))))


def _variants(module: torch.fx.GraphModule, inputs: Sequence[Any], wrappers: Wrappers, options: Options) -> Variants:
    plain = as_they_are(wrappers.apart(inputs))

    def build(pattern: AliasPattern, offsets: tuple[tuple[int, int], ...]) -> Compiled:
        with without_collection():
            captured = capture_graph(module, plain, pattern, offsets, wrappers, options.donate)
            return begin(captured, options, _name(module))

    def captured(*given: Any) -> Any:
        return wrappers.run(module.forward, given)

    return Variants(build, captured if wrappers else module.forward, plain)


def _name(module: torch.fx.GraphModule) -> str:
    for node in module.graph.nodes:
        trace = node.meta.get("stack_trace")
        if node.op != "placeholder" and trace and ", in " in trace:
            return str(trace.strip().splitlines()[0].rsplit(", in ", 1)[1])
    return "graph"


def _refuse_gradients(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    tracks = torch.is_grad_enabled() or _turns_gradients_on(module)
    tensors = [*inputs, *module.parameters()]
    if tracks and any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        raise ReinkError(
            "needs-gradient",
            "cannot compile: the graph needs gradients",
            why="an input requires grad and gradients are on",
            do="run it under torch.no_grad()",
        )


def _turns_gradients_on(module: torch.fx.GraphModule) -> bool:
    return any(getattr(n.target, "__name__", "") in ("_set_grad_enabled", "requires_grad_") for n in module.graph.nodes)


def refuse_shared_inner_tensors(inputs: Sequence[Any]) -> None:
    """Two inputs that share memory below a wrapper: the stock pipeline would read one of them stale."""
    owners: dict[int, int] = {}
    for position, value in enumerate(inputs):
        if not isinstance(value, Tensor):
            continue
        for inner in inner_tensors(value):
            owner = owners.setdefault(storage_key(inner), position)
            if owner != position and (is_wrapper_subclass(value) or is_wrapper_subclass(inputs[owner])):
                raise ReinkError(
                    "tensor-subclass",
                    f"cannot run: inputs {owner} and {position} share memory below a {type(value).__name__}",
                    why="a write to one of them would not be seen through the other",
                    do="clone() one of the two, or pass the plain tensors that they wrap",
                )
