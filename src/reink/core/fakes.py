"""What operators return for fake tensors, asked as while the program was traced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import torch
import torch.fx

from reink.core.torch_internals import (
    FakeTensorMode,
    HigherOrderOperator,
    detect_fake_mode,
    enable_python_dispatcher,
    pytree,
)

Node = torch.fx.Node

_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def fake_result(target: Callable[..., Any], args: Any, kwargs: Any, mode: FakeTensorMode | None) -> Any:
    """What `target` returns for arguments with values of `mode`. Raises what its fake kernel raises.

    Some operators have kernels for symbolic sizes that only PyTorch's dispatcher in Python finds; some of those that it
    finds do not know of a view of a larger storage, of which the others do.
    """
    if mode is not None and any(map(_is_symbolic, pytree.tree_leaves((args, kwargs)))):
        with suppress(RuntimeError), mode, enable_python_dispatcher():
            return target(*args, **kwargs)
    with mode or nullcontext():
        return target(*args, **kwargs)


def _is_symbolic(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return isinstance(value, torch.SymInt)
    return not all(type(n) is int for n in (*value.size(), *value.stride()))


def value_of_call(node: Node, mode: FakeTensorMode | None) -> Any:
    """What a call returns for the ``meta["val"]`` of its arguments."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return fake_result(node.target, args, kwargs, mode)  # type: ignore[arg-type]


def refresh_values(graph: torch.fx.Graph) -> None:
    """Work out ``meta["val"]`` again for every operator: a pass may have given it other operands.

    Results whose size depends on data keep the value they had, since asking again would make a new symbol.
    """
    mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])
    if mode is None:
        return
    for node in graph.nodes:
        known = node.meta.get("val")
        for stale in ("reink_window", "reink_views"):
            node.meta.pop(stale, None)
        if node.op == "call_function" and (known is None or _is_recomputable(node, known)):
            node.meta["val"] = value_of_call(node, mode)


def _is_recomputable(node: Node, known: Any) -> bool:
    leaves = pytree.tree_leaves(known)
    tensors = all(v is None or isinstance(v, torch.Tensor) for v in leaves)
    if not tensors or isinstance(node.target, HigherOrderOperator):
        return False
    return not any(t in _DATA_DEPENDENT for t in getattr(node.target, "tags", ()))
