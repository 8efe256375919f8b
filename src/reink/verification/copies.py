"""Copies of a program and its arguments, so that both sides of a comparison start from the same state."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from reink.core.torch_internals import pytree, storage_key
from reink.errors import ReinkError

_COPIED = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Case:
    """The program under test and its arguments, flat. Nothing in here is ever run: only copies are."""

    fn: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: Any
    names: tuple[str, ...]

    def copies(self) -> tuple[Callable[..., Any], list[Any]]:
        """A copy of the program and of the flat arguments that share memory as the originals do."""
        memo: dict[int, Any] = {}
        copy_tensors([t for t in _tensors_of((self.fn, *self.leaves)) if is_plain(t)], memo)
        if type(self.fn).__module__.startswith("torch.") and not isinstance(self.fn, torch.nn.Module):
            memo[id(self.fn)] = self.fn  # an operator: it has no state, and a copy of its registration would end it
        try:
            fn, leaves = copy.deepcopy((self.fn, list(self.leaves)), memo)
        except Exception as error:
            raise ReinkError(
                "not-a-tensor-program",
                "cannot verify: the program or an argument cannot be copied",
                why=f"{type(error).__name__}: {error}",
                do="give plain tensors and modules: eager and reink each need a copy of their own",
            ) from error
        return fn, leaves

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Flat arguments as ``(args, kwargs)``."""
        args, kwargs = pytree.tree_unflatten(list(leaves), self.spec)
        return args, kwargs


def is_plain(value: object) -> bool:
    """Whether a value is a tensor over memory of its own or a view, which can be laid out anew."""
    if type(value) not in _COPIED:
        return False
    assert isinstance(value, Tensor)
    return value.layout is torch.strided and not value.is_quantized and value.device.type != "meta"


def copy_tensors(tensors: Iterable[Tensor], memo: dict[int, Any], guard: int = 0) -> None:
    """Put a copy of each tensor into `memo` under its id: same layout, and shared memory stays shared.

    `guard` is how many bytes each new storage has before and after the old content; a multiple of 16.
    """
    storages: dict[int, Tensor] = {}
    for tensor in tensors:
        if id(tensor) in memo:
            continue
        raw = storages.get(storage_key(tensor))
        if raw is None:
            raw = storages[storage_key(tensor)] = _copied_storage(tensor, guard)
        memo[id(tensor)] = _like(tensor, raw, guard)


def _copied_storage(tensor: Tensor, guard: int) -> Tensor:
    """A new flat tensor of bytes: guard, the whole storage of `tensor`, guard."""
    size = tensor.untyped_storage().nbytes()
    raw = torch.full((size + 2 * guard,), 0xA5, dtype=torch.uint8, device=tensor.device)
    held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.detach().untyped_storage())
    raw[guard : guard + size] = held
    return raw


def _like(tensor: Tensor, raw: Tensor, guard: int) -> Tensor:
    with torch.no_grad():
        offset = tensor.storage_offset() + guard // tensor.element_size()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made = made.set_(raw.untyped_storage(), offset, tensor.size(), tensor.stride())
        if tensor.is_conj():
            made = made.conj()
        if tensor.is_neg():
            made = made._neg_view()
    return with_kind(tensor, made)


def with_kind(tensor: Tensor, made: Tensor) -> Tensor:
    """`made` as a tensor of its own and no view: a parameter, or one that requires grad, where `tensor` is or does."""
    if not made.is_conj() and not made.is_neg():
        with torch.no_grad():
            whole = torch.empty(0, dtype=made.dtype, device=made.device)
            made = whole.set_(made.untyped_storage(), made.storage_offset(), made.size(), made.stride())
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    elif tensor.requires_grad:
        made.requires_grad_()
    made.__dict__.update(tensor.__dict__)
    return made


def _tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among `values`, and those that modules among them, or modules behind methods, hold."""
    for value in values:
        owner = getattr(value, "__self__", value)
        if isinstance(value, Tensor):
            yield value
        elif isinstance(owner, torch.nn.Module):
            yield from owner.parameters()
            yield from owner.buffers()


class Surroundings:
    """The tensors that a function reads or writes without being given them: closed over, or global.

    Functions of the same file that it calls are searched as well. They cannot be copied, since the code names
    them; so `restore` puts back what they held before each run.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._modules: list[tuple[torch.nn.Module, dict[str, Any], dict[str, Any]]] = []
        self.tensors: list[Tensor] = []
        for value in _reached(fn):
            if isinstance(value, torch.nn.Module):
                self._modules += [(m, dict(m._parameters), dict(m._buffers)) for m in value.modules()]
        known = {id(t): t for t in _tensors_of(_reached(fn)) if is_plain(t)}
        self.tensors = list(known.values())
        self._saved = [(t, t.grad, t.untyped_storage().clone()) for t in self.tensors]

    def restore(self) -> None:
        """Give every tensor the content that it had, and every module the tensors that it had."""
        for module, parameters, buffers in self._modules:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
        for tensor, gradient, content in self._saved:
            tensor.grad = gradient
            if tensor.untyped_storage().nbytes() == content.nbytes():
                tensor.untyped_storage().copy_(content)


def _reached(fn: Callable[..., Any]) -> list[Any]:
    """What the code of `fn`, and of functions of its file that it names, takes from around it."""
    found: list[Any] = []
    waiting: list[Any] = [fn]
    seen: set[int] = set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        names = inspect.getclosurevars(function)
        around = pytree.tree_leaves((dict(names.nonlocals), dict(names.globals)))
        found += around
        waiting += [v for v in around if getattr(v, "__module__", None) == function.__module__]
    return found
