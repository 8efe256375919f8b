"""Eager PyTorch as the judge: run a program plainly and compiled, and compare everything a caller can see.

That is: results (values, dtype, shape, strides, which memory they share), every byte of every input's
storage, also outside the view that was passed, the inputs' own layout, gradients, and module state.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

GradMode = Literal["no_grad", "grad", "inference"]
Arguments = tuple[Any, ...]
MakeArguments = Callable[[], Arguments]
Factory = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor lies: all but its content."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one call leaves behind. Tensors in here are copies."""

    results: tuple[Tensor, ...]
    result_layouts: tuple[Layout, ...]
    other_results: tuple[object, ...]
    structure: str
    shared_with_inputs: tuple[tuple[tuple[int, int], ...], ...]
    shared_with_results: tuple[tuple[tuple[int, int], ...], ...]
    is_input: tuple[int | None, ...]
    input_layouts: tuple[tuple[Layout, int], ...]
    memory: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    state: tuple[object, ...]


def compare(
    fn: Callable[..., Any],
    make_args: MakeArguments,
    compiled_factory: Factory,
    *,
    calls: int | Sequence[MakeArguments] = 1,
    grad_mode: GradMode = "no_grad",
    state: Callable[[], object] | None = None,
    reset: Callable[[], None] | None = None,
    tolerance: float = 0.0,
) -> None:
    """Fail with a readable difference unless ``compiled_factory(fn)`` behaves as `fn` does.

    `calls` is how often to call with fresh arguments, or the makers of the arguments of further calls of
    the same compiled function. `state` shows what the program keeps outside its arguments; `reset` restores
    it before each of the two sequences. A module is copied, so that both runs start from its present state.
    """
    makers = [make_args] * calls if isinstance(calls, int) else [make_args, *calls]
    expected = list(_sequence(copy.deepcopy(fn) if _is_module(fn) else fn, makers, grad_mode, state, reset))
    subject = copy.deepcopy(fn) if _is_module(fn) else fn
    actual = _sequence(compiled_factory(subject), makers, grad_mode, state, reset, original=subject)
    for k, (want, got) in enumerate(zip(expected, actual, strict=True)):
        problems = differences(want, got, tolerance)
        assert not problems, "\n".join([f"call {k + 1} differs from eager:", *problems])


def observe(
    fn: Callable[..., Any],
    args: Arguments,
    grad_mode: GradMode = "no_grad",
    state: Callable[[], object] | None = None,
    original: Callable[..., Any] | None = None,
) -> Observed:
    """Call `fn` once, with a fixed seed, and record what it leaves behind.

    `original` is the module whose parameters are watched, where `fn` is a compiled wrapper of it.
    """
    inputs = list(plain_tensors(args))
    watched = inputs + _module_tensors(original or fn)
    torch.manual_seed(0)
    with grad_context(grad_mode):
        answer = fn(*args)
    if grad_mode == "grad":
        _backward(answer)
    leaves, spec = pytree.tree_flatten(answer)
    results = list(plain_tensors(leaves))
    given = pytree.tree_leaves(args)
    return Observed(
        results=tuple(r.detach().clone() for r in results),
        result_layouts=tuple(_layout(r) for r in results),
        other_results=tuple(x for x in leaves if not isinstance(x, Tensor)),
        structure=str(spec),
        shared_with_inputs=tuple(_sharing(r, watched) for r in results),
        shared_with_results=tuple(_sharing(r, results) for r in results),
        is_input=tuple(next((k for k, a in enumerate(given) if a is x), None) for x in leaves),
        input_layouts=tuple((_layout(t), int(t.storage_offset())) for t in watched),
        memory=tuple(whole_storage(t) for t in watched),
        gradients=tuple(_gradient(t) for t in watched),
        state=tuple(_snapshot(x) for x in pytree.tree_leaves(state() if state else ())),
    )


def differences(want: Observed, got: Observed, tolerance: float = 0.0) -> list[str]:
    """One line for each thing in which two observations differ; empty if they agree."""
    problems: list[str] = []
    for name in ("structure", "result_layouts", "other_results", "shared_with_inputs", "shared_with_results"):
        problems += _unequal(name, getattr(want, name), getattr(got, name))
    problems += _unequal("is_input", want.is_input, got.is_input)
    problems += _unequal("input_layouts", want.input_layouts, got.input_layouts)
    problems += _unequal_tensors("result", want.results, got.results, tolerance)
    problems += _unequal_tensors("gradient of input", want.gradients, got.gradients, tolerance)
    problems += _unequal_tensors("state", want.state, got.state, tolerance)
    if tolerance == 0.0:
        problems += _unequal_tensors("storage of input", want.memory, got.memory, tolerance)
        return problems
    for k, (a, b) in enumerate(zip(want.memory, got.memory, strict=True)):
        problems += _unequal(f"size of the storage of input {k}", a.shape, b.shape)
    return problems


def allocated_bytes(fn: Callable[..., Any], args: Arguments, grad_mode: GradMode = "no_grad") -> int:
    """Bytes that one call of `fn` asks of the allocator, results included, whether freed again or not."""
    torch.manual_seed(0)
    with grad_context(grad_mode), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        fn(*args)
    recorder: Any = recorded.profiler
    events = recorder.kineto_results.events()
    return sum(max(0, event.nbytes()) for event in events if event.name() == "[memory]")


def grad_context(mode: GradMode) -> contextlib.AbstractContextManager[Any]:
    """The context in which a program of this mode is called."""
    if mode == "inference":
        return torch.inference_mode()
    return torch.no_grad() if mode == "no_grad" else contextlib.nullcontext()


def plain_tensors(tree: object) -> Iterator[Tensor]:
    """Every tensor in `tree`; of a wrapper subclass the tensors inside it."""
    for leaf in pytree.tree_leaves(tree):
        if is_traceable_wrapper_subclass(leaf):
            inside: Any = leaf
            yield from plain_tensors([getattr(inside, name) for name in inside.__tensor_flatten__()[0]])
        elif isinstance(leaf, Tensor):
            yield leaf


def whole_storage(tensor: Tensor) -> Tensor:
    """A copy of every byte of the storage of `tensor`, neighbours of the view included."""
    with torch.no_grad():
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return raw.set_(tensor.detach().untyped_storage()).clone()


def _sequence(
    fn: Callable[..., Any],
    makers: Sequence[MakeArguments],
    grad_mode: GradMode,
    state: Callable[[], object] | None,
    reset: Callable[[], None] | None,
    original: Callable[..., Any] | None = None,
) -> Iterator[Observed]:
    if reset is not None:
        reset()
    for make in makers:
        torch.manual_seed(0)
        yield observe(fn, make(), grad_mode, state, original)


def _is_module(fn: object) -> bool:
    return isinstance(fn, torch.nn.Module)


def _module_tensors(fn: object) -> list[Tensor]:
    if not isinstance(fn, torch.nn.Module):
        return []
    return [*fn.parameters(), *fn.buffers()]


def _backward(answer: object) -> None:
    losses = [t.sum() for t in pytree.tree_leaves(answer) if isinstance(t, Tensor) and t.requires_grad]
    if losses:
        backward: Any = sum(losses)
        backward.backward()


def _gradient(tensor: Tensor) -> Tensor | None:
    if not tensor.is_leaf or tensor.grad is None:
        return None
    return tensor.grad.clone()


def _layout(tensor: Tensor) -> Layout:
    return Layout(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)


def _byte_offset(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _sharing(tensor: Tensor, others: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Which of `others` share the storage of `tensor`, each with the distance in bytes between the two."""
    here = _byte_offset(tensor)
    return tuple((k, here - _byte_offset(o)) for k, o in enumerate(others) if _storage(o) == _storage(tensor))


def _snapshot(value: object) -> object:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _unequal(name: str, want: object, got: object) -> list[str]:
    return [] if want == got else [f"  {name}: eager {want}", f"  {' ' * len(name)}  got   {got}"]


def _unequal_tensors(name: str, want: Sequence[object], got: Sequence[object], tolerance: float) -> list[str]:
    if len(want) != len(got):
        return [f"  number of {name}s: eager {len(want)}, got {len(got)}"]
    problems: list[str] = []
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        if not _same(a, b, tolerance):
            problems += [f"  {name} {k}: eager {_short(a)}", f"  {' ' * len(name)}    got   {_short(b)}"]
    return problems


def _same(a: object, b: object, tolerance: float) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is b or a == b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point() or a.is_complex():
        return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    return torch.equal(a, b)


def _short(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    flat = value.flatten()
    shown = ", ".join(f"{x}" for x in flat[:24].tolist())
    return f"{value.dtype} {list(value.shape)} [{shown}{', ...' if flat.numel() > 24 else ''}]"
