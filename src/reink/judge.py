"""Eager PyTorch as the judge: what a call leaves behind, and in what two calls differ.

Everything that a caller can see is recorded: results (values, dtype, shape, strides, which memory they share),
every byte of every input's storage, also outside the view that was passed, the inputs' own layout, gradients,
and module state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from reink.core.torch_internals import inner_tensors, pytree, storage_key

GradMode = Literal["no_grad", "grad", "inference"]
Arguments = tuple[Any, ...]

# Rounding that generated kernels may differ by, relative and absolute; eager's own kernels may not.
GENERATED_TOLERANCE = 1e-4
# So many elements of a tensor stand in a message.
SHOWN = 24


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor lies: all but its content.

    PyTorch gives the strides of dims of one element, and those of empty tensors, no meaning (and its own operators
    differ in them): they count as 0.
    """

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


class Difference(NamedTuple):
    """One thing in which two observations differ: a word for its kind, and lines that show both sides.

    `kind` is ``structure``, ``layout``, ``aliasing``, ``value``, ``gradient``, ``state`` or ``memory``.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


def observe(
    fn: Callable[..., Any],
    args: Arguments,
    grad_mode: GradMode = "no_grad",
    state: Callable[[], object] | None = None,
    original: Callable[..., Any] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Observed:
    """Call `fn` once, with a fixed seed, and record what it leaves behind.

    `original` is the module whose parameters are watched, where `fn` is a compiled wrapper of it; `state` shows
    what the program keeps outside its arguments.
    """
    given = pytree.tree_leaves((args, kwargs or {}))
    watched = list(plain_tensors(given)) + _module_tensors(original or fn)
    torch.manual_seed(0)
    with grad_context(grad_mode):
        answer = fn(*args, **(kwargs or {}))
    if grad_mode == "grad":
        _backward(answer)
    leaves, spec = pytree.tree_flatten(answer)
    results = list(plain_tensors(leaves))
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


def differences(want: Observed, got: Observed, tolerance: float = 0.0) -> list[Difference]:
    """Each thing in which two observations differ; empty if they agree.

    `tolerance` is relative and absolute, for floating point values. Above 0 the bytes of a storage are not
    compared one by one, only their number.
    """
    found = _unequal("structure", "structure", want.structure, got.structure)
    found += _unequal("layout", "result_layouts", want.result_layouts, got.result_layouts)
    found += _unequal("value", "other_results", want.other_results, got.other_results)
    for name in ("shared_with_inputs", "shared_with_results", "is_input"):
        found += _unequal("aliasing", name, getattr(want, name), getattr(got, name))
    found += _unequal("layout", "input_layouts", want.input_layouts, got.input_layouts)
    found += _unequal_tensors("value", "result", want.results, got.results, tolerance)
    found += _unequal_tensors("gradient", "gradient of input", want.gradients, got.gradients, tolerance)
    found += _unequal_tensors("state", "state", want.state, got.state, tolerance)
    if tolerance == 0.0:
        return found + _unequal_tensors("memory", "storage of input", want.memory, got.memory, tolerance)
    for k, (a, b) in enumerate(zip(want.memory, got.memory, strict=True)):
        found += _unequal("memory", f"size of the storage of input {k}", a.shape, b.shape)
    return found


def grad_context(mode: GradMode) -> contextlib.AbstractContextManager[Any]:
    """The context in which a program of this mode is called."""
    if mode == "inference":
        return torch.inference_mode()
    return torch.no_grad() if mode == "no_grad" else contextlib.nullcontext()


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Memory comes filled with NaN or the largest number, so that a read of what was never written shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def plain_tensors(tree: object) -> Iterator[Tensor]:
    """Every tensor in `tree`; of a wrapper subclass the tensors inside it."""
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield from inner_tensors(leaf)


def whole_storage(tensor: Tensor) -> Tensor:
    """A copy of every byte of the storage of `tensor`, neighbours of the view included."""
    with torch.no_grad():
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return raw.set_(tensor.detach().untyped_storage()).clone()


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
    empty = tensor.numel() == 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    strides = tuple(0 if empty or size == 1 else stride for size, stride in pairs)
    return Layout(tensor.dtype, tuple(tensor.shape), strides, tensor.requires_grad)


def _byte_offset(tensor: Tensor) -> int:
    """Where the first element lies."""
    return int(tensor.storage_offset()) * tensor.element_size()


def _sharing(tensor: Tensor, others: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Which of `others` share the storage of `tensor`, each with the distance in bytes between the two.

    An empty tensor has no first element: it is at no distance.
    """
    here, key = _byte_offset(tensor), storage_key(tensor)
    sharing = ((k, o) for k, o in enumerate(others) if storage_key(o) == key)
    return tuple((k, here - _byte_offset(o) if tensor.numel() and o.numel() else 0) for k, o in sharing)


def _snapshot(value: object) -> object:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _unequal(kind: str, name: str, want: object, got: object) -> list[Difference]:
    if want == got:
        return []
    return [Difference(kind, f"  {name}: eager {want}\n  {' ' * len(name)}  got   {got}")]


def _unequal_tensors(
    kind: str, name: str, want: Sequence[object], got: Sequence[object], tolerance: float
) -> list[Difference]:
    if len(want) != len(got):
        return [Difference(kind, f"  number of {name}s: eager {len(want)}, got {len(got)}")]
    found: list[Difference] = []
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        if not _same(a, b, tolerance):
            text = f"  {name} {k}: eager {_short(a)}\n  {' ' * len(name)}    got   {_short(b)}"
            found.append(Difference(kind, text))
    return found


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
    shown = ", ".join(f"{x}" for x in flat[:SHOWN].tolist())
    return f"{value.dtype} {list(value.shape)} [{shown}{', ...' if flat.numel() > SHOWN else ''}]"
