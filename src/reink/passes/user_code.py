"""What is noted and changed while a user's own Python runs under the trace. A part of capture."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from reink.core.torch_internals import set_stack_trace, storage_key
from reink.errors import ReinkError

Tensor = torch.Tensor
_OURS = ("passes/", "core/", "backends/", "verification/", "pipeline", "api")
_LIBRARY_PARTS = ("/site-packages/torch/", *(f"/reink/{part}" for part in _OURS))


class UserLines(TorchFunctionMode):
    """Notes the user's line on every node that is traced while it is active."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # the graphs of torch.cond and its like, which Dynamo makes
            return func(*args, **(kwargs or {}))
        frame = user_frame(sys._getframe(1))
        if frame is not None:
            set_stack_trace([frame_line(frame)])
        return func(*args, **(kwargs or {}))


class IndexedWrites(TorchFunctionMode):
    """Keeps ``cache[position] = row`` a write by index when `position` is a tensor of one number.

    PyTorch would read the number, which a trace cannot. Makes ``x.data = y``, which a trace does not see, the operator
    that does it, and refuses it where there is none.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        if func == _SET_DATA:
            return _set_data(args[0], args[1], user_frame(sys._getframe(1)))
        if func is Tensor.__setitem__ and isinstance(args[1], Tensor) and _is_position(args[1]):
            return _write_row(*args)
        return func(*args, **(kwargs or {}))


# Looked up once: reading an operator of torch.ops runs Python code.
_SET = torch.ops.aten.set_.source_Tensor
# What a function mode is told of an assignment to ``.data``.
_SET_DATA: Any = getattr(Tensor.data, "__set__")  # noqa: B009  a slot wrapper that type checkers do not know


def _set_data(target: Tensor, value: Tensor, frame: FrameType | None) -> Tensor:
    """``target.data = value`` as the operator that gives `target` the memory of `value`."""
    line = frame_line(frame) if frame is not None else ""
    if _meaning(target) != _meaning(value):
        raise ReinkError(
            "metadata-mutation",
            "cannot capture: the program assigns to the .data of a tensor what is no tensor of its kind",
            where=_shown_line(frame),
            why="dtype, device or lazy bits of a tensor would change, which no operator does",
            do="assign the tensor to the name instead (x = y), or copy its values (x.copy_(y))",
        )
    if line:
        set_stack_trace([line])
    return _SET(target, value)  # type: ignore[no-any-return]


def _meaning(tensor: Tensor) -> tuple[Any, ...]:
    """All that a tensor is besides its memory, and where in that it lies."""
    return tensor.dtype, tensor.device, tensor.layout, tensor.is_conj(), tensor.is_neg()


def _write_row(target: Tensor, position: Tensor, value: Any) -> Tensor:
    """``target[position] = value`` by index, with what ``copy_`` would allow of `value`."""
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=target.dtype, device=target.device)
    while value.dim() > max(target.dim() - 1, 0) and value.shape[0] == 1:
        value = value[0]
    if storage_key(value) == storage_key(target):
        value = value.clone()
    index = position.to(torch.int64).to(target.device)
    return target.index_put_((index,), value.to(target.dtype).to(target.device))


def _is_position(index: Tensor) -> bool:
    return index.dim() == 0 and index.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)


def user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _shown_line(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else ""


def frame_line(frame: FrameType) -> str:
    return f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}\n'


def is_library(filename: str) -> bool:
    return any(part in filename for part in _LIBRARY_PARTS) or filename.startswith("<")
