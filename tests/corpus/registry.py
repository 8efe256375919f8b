"""The list of programs, and the makers of inputs whose every element differs from every other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from support.judge import MakeArguments
from torch import Tensor

from reink.judge import GradMode

Function = TypeVar("Function", bound=Callable[..., Any])

PROGRAMS: list[Program] = []


@dataclass(frozen=True, slots=True)
class Program:
    """One program with the inputs to judge it on.

    `zero_extra`: a compiled call may allocate no byte more than the eager call. `may_refuse`: a `ReinkError`
    is as good an answer as eager's. `handed_over`: reink may leave the program to stock PyTorch, so no
    pass of the user sees it. `calls`: makers of the arguments of further calls. `dynamic` and `fullgraph`
    are those of `torch.compile`;
    `dynamic_dims` marks (input, dim) pairs; `scalars` lets Dynamo capture ``item()``. `state` and `reset`
    are the judge's.
    """

    name: str
    kind: str
    fn: Callable[..., Any]
    inputs: MakeArguments
    grad_mode: GradMode = "no_grad"
    zero_extra: bool = True
    may_refuse: bool = False
    handed_over: bool = False
    dynamic: bool | None = None
    dynamic_dims: tuple[tuple[int, int], ...] = ()
    calls: tuple[MakeArguments, ...] = ()
    scalars: bool = False
    fullgraph: bool = True
    state: Callable[[], object] | None = None
    reset: Callable[[], None] | None = None

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"

    def build(self) -> Callable[..., Any]:
        """The function, or a fresh instance where the program is a module class."""
        instance: Callable[..., Any] = self.fn() if isinstance(self.fn, type) else self.fn
        return instance

    def make_args(self) -> tuple[Any, ...]:
        """Fresh arguments, with dynamic dims marked."""
        args = self.inputs()
        for index, dim in self.dynamic_dims:
            torch._dynamo.mark_dynamic(args[index], dim)
        return args


def program(name: str, inputs: MakeArguments, **options: Any) -> Callable[[Function], Function]:
    """Register the decorated function (or module) as a program of the kind that its file is named for."""

    def register(fn: Function) -> Function:
        kind = fn.__module__.rsplit(".", 1)[-1]
        assert all(p.name != name or p.kind != kind for p in PROGRAMS), f"{kind}-{name} exists"
        PROGRAMS.append(Program(name, kind, fn, inputs, **options))
        return fn

    return register


def counting(*shape: int, dtype: torch.dtype = torch.float32, start: float = 1) -> Tensor:
    """A contiguous tensor of `shape` that counts up from `start` in quarters (in ones for whole numbers)."""
    count = torch.arange(math.prod(shape))
    step = count / 4 if dtype.is_floating_point or dtype.is_complex else count
    return (step + start).to(dtype).reshape(shape)


def inside(*shape: int, before: int = 5, after: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    """A contiguous tensor of `shape` that lies inside a larger storage, `before` elements from its start."""
    size = math.prod(shape)
    return counting(before + size + after, dtype=dtype)[before : before + size].view(shape)


def tensors(*shapes: Sequence[int]) -> MakeArguments:
    """A maker of one counting tensor for each shape; each starts at another number."""
    return lambda: tuple(counting(*shape, start=1 + 50 * k) for k, shape in enumerate(shapes))
