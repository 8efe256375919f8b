"""Does PyTorch foresee its own layouts? Each operator of a program, run for real and on fake tensors.

Capture believes the fake kernels. Where one of them is wrong about strides (of dims of one element, mostly), every
compiler that is built on them gives another layout than eager, and no pass can know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reink.core.torch_internals import (
    FakeTensorMode,
    ShapeEnv,
    TorchDispatchMode,
    enable_python_dispatcher,
    pytree,
)


def wrong_prediction(function: Callable[..., Any], inputs: tuple[Any, ...]) -> str:
    """The first operator whose fake kernel foresees another size or stride than eager gives; empty if there is none."""
    watch = _Predictions()
    try:
        with torch.no_grad(), watch:
            function(*inputs)
    except Exception:  # what it raises is found elsewhere
        return watch.found
    return watch.found


class _Predictions(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = pytree.tree_map_only(Tensor, _Description, (args, kwargs))
        result = func(*args, **kwargs)
        if not self.found and not func._schema.is_mutable:
            self._compare(func, before, result)
        return result

    def _compare(self, func: Any, before: Any, result: Any) -> None:
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        try:
            with mode, enable_python_dispatcher():
                args, kwargs = pytree.tree_map_only(_Description, lambda d: d.tensor(), before)
                foreseen = func(*args, **kwargs)
        except Exception:  # torch cannot say, so capture refuses it
            return
        pairs = zip(_layouts(foreseen), _layouts(result), strict=False)
        for a, b in pairs:
            if a != b:
                self.found = f"{func}: foreseen {a}, made {b}"
                return


class _Description:
    """What an operator was given, before it ran."""

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        self.dtype, self.count = tensor.dtype, tensor.untyped_storage().nbytes() // tensor.element_size()
        self.is_conj, self.is_neg = tensor.is_conj(), tensor.is_neg()

    def tensor(self) -> Tensor:
        """A tensor of this layout, fake under a fake mode."""
        made = torch.empty((self.count,), dtype=self.dtype).as_strided(self.size, self.stride, self.offset)
        made = made.conj() if self.is_conj else made
        return made._neg_view() if self.is_neg else made


def _layouts(result: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    tensors = (t for t in pytree.tree_leaves(result) if isinstance(t, Tensor))
    return [(tuple(map(int, t.size())), tuple(map(int, t.stride()))) for t in tensors if _is_static(t) and t.numel()]


def _is_static(tensor: Tensor) -> bool:
    return all(type(n) is int for n in tensor.size())
