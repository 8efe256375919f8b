"""Arguments that the caller gives away: ``reink.compile(fn, donate=("state",))``.

The compiled program takes the memory of such an argument for its own. It gets a tensor over a storage object of its own
(the old one keeps the memory alive), so that a result that lies there does not share a storage with what the caller
still holds; the caller's storage object is remembered as given away, and what lies in it is refused from then on.
"""

from __future__ import annotations

import difflib
import inspect
import linecache
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MethodType, NoneType
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack

from reink.core.torch_internals import inner_tensors, living, pytree, storage_key
from reink.errors import ReinkError
from reink.report import Source

Tensor = torch.Tensor

_PACKAGE = str(Path(__file__).parents[1])
# Devices whose memory a second storage object can be made for.
_DEVICES = ("cpu", "cuda")
# What may stand beside tensors in an argument.
_PLAIN = (int, float, complex, str, NoneType, torch.dtype, torch.device)


class _Given(NamedTuple):
    """A storage that was given away as argument `name`, in `line` of the caller's program."""

    storage: StorageWeakRef
    name: str
    line: Source


class _Held(NamedTuple):
    """A storage that `taken_over` made, and the one that it made it from."""

    storage: StorageWeakRef
    origin: StorageWeakRef


_Call = tuple[Callable[..., Any], Callable[[], Collection[str]]]

# By storage. A storage that is gone keeps its number to itself until its entry is dropped.
_given: dict[int, _Given] = {}
_held: dict[int, _Held] = {}
_lock = threading.Lock()
# How many entries there may be before those of storages that are gone are looked for, by dict once that happened.
MOST_UNSWEPT = 64
_limits: dict[int, int] = {}


def parameters_of(model: Any, donate: Sequence[str]) -> inspect.Signature:
    """How `model` is called. Raises ReinkError ``unknown-option`` if one of `donate` is no parameter of it."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    if not isinstance(function, (FunctionType, MethodType)):
        raise ReinkError(
            "unknown-option",
            f"cannot donate arguments of a {type(model).__name__}",
            why="which of them a graph gets is known by their names in a function",
            do="give a function or a module",
        )
    signature = inspect.signature(function, follow_wrapped=False)  # the names that the traced function has for them
    for name in donate:
        if name not in signature.parameters:
            close = difflib.get_close_matches(name, list(signature.parameters), 1)
            raise ReinkError(
                "unknown-option",
                f"cannot donate {name!r}: there is no such argument",
                why=f"the arguments are {', '.join(signature.parameters) or 'none'}",
                do=f"did you mean {close[0]!r}?" if close else "donate arguments by the names of the parameters",
            )
    return signature


class Donor:
    """A callable whose caller gives the arguments `donate` away with each call.

    `compiled` is asked once for each set of names that can be taken, and for why others cannot: for the function to
    call, and for one that says which of the names a graph takes the memory of.
    """

    def __init__(self, model: Any, donate: Sequence[str], compiled: Callable[[Mapping[str, str]], _Call]) -> None:
        self._model, self._donate, self._compiled = model, tuple(donate), compiled
        self._signature = parameters_of(model, donate)
        self._calls: dict[tuple[str, ...], _Call] = {}

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call with `args`, parts of which belong to the compiled program from then on."""
        bound, line = self._signature.bind(*args, **kwargs), _callers_line()
        refused = undonatable(bound.arguments, self._donate, self._model)
        names = tuple(n for n in self._donate if n not in refused)
        given = [(n, t) for n in names for t in _leaves(bound.arguments[n]) if isinstance(t, Tensor)]
        taken = {id(t): (n, taken_over(t)) for n, t in given}
        for name in names:
            bound.arguments[name] = pytree.tree_map(lambda v: taken.get(id(v), ("", v))[1], bound.arguments[name])
        if names not in self._calls:
            self._calls[names] = self._compiled({n: refused.get(n, "") for n in self._donate})
        call, used = self._calls[names]
        try:
            answer = call(*bound.args, **bound.kwargs)
        finally:  # what was overwritten before an error is lost as well
            for name, tensor in given:
                if name in used():
                    _give_away(name, tensor, line)
        _refuse_returned(answer, [(n, t) for n, t in taken.values() if n in used()], line)
        return answer


def undonatable_of(model: Any, donate: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str]:
    """`undonatable` for a call of `model`. Raises ReinkError ``unknown-option`` for what is no parameter of it."""
    if not donate:
        return {}
    return undonatable(parameters_of(model, donate).bind(*args, **kwargs).arguments, donate, model)


def undonatable(arguments: Mapping[str, Any], donate: Sequence[str], model: Any = None) -> dict[str, str]:
    """Why arguments among `donate` cannot be given away as they are, by name."""
    others = model.state_dict(keep_vars=True) if isinstance(model, torch.nn.Module) else {}
    owners: dict[int, list[str]] = {}
    for name, value in (*others.items(), *arguments.items()):
        for tensor in _strided(value):
            owners.setdefault(storage_key(tensor), []).append(name)
    found: dict[str, str] = {}
    for name in donate:
        reason = "it is not given"
        if name in arguments:
            reason = next(filter(None, (_why_not(name, leaf, owners) for leaf in _leaves(arguments[name]))), "")
        if reason:
            found[name] = reason
    return found


def _leaves(value: object) -> Iterator[object]:
    """What a tuple holds, at any depth: the program cannot change it, and does not see that it is another one."""
    if type(value) is tuple:
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _why_not(name: str, tensor: object, owners: Mapping[int, list[str]]) -> str:
    if isinstance(tensor, _PLAIN):
        return ""
    if not isinstance(tensor, Tensor):
        return f"it is or holds a {type(tensor).__name__}, and only tensors and tuples of them can be given away"
    if tensor.requires_grad:
        return "it requires grad"
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.__dict__ and tensor.grad is None
    if not plain or tensor.is_conj() or tensor.is_neg():
        return "it is no plain tensor"
    if tensor.device.type not in _DEVICES:
        return f"memory of {tensor.device.type} cannot be given away"
    if storage_key(tensor) not in _held and not tensor.untyped_storage().resizable():
        return "PyTorch did not allocate its memory"
    if tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes():
        return "it is a part of its storage, and what lies beside it would be given away too"
    sharing = owners[storage_key(tensor)]
    if len(sharing) > 1:
        others = dict.fromkeys(n for n in sharing if n != name) or ["itself"]
        return f"it shares memory with {' and '.join(others)}"
    return ""


def refuse_given_away(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises ReinkError ``donated-input`` if a tensor among the arguments lies in memory that was given away."""
    if _given:
        for leaf in pytree.tree_leaves((args, dict(kwargs))):
            _refuse_if_given(leaf, _callers_line)


def watched(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, a compiled graph, that refuses inputs of whatever origin that were given away."""

    def call(*args: Any) -> Any:
        if _given:
            for value in args:
                _refuse_if_given(value, _callers_line)
        return run(*args)

    return call


def _refuse_if_given(value: Any, where: Callable[[], object]) -> None:
    for tensor in _strided(value):
        entry = _given.get(storage_key(tensor))
        if entry is not None and not entry.storage.expired():
            raise ReinkError(
                "donated-input",
                f"cannot run: memory that was given away as {entry.name} is used again",
                where=str(where()),
                why=f"{entry.name} was donated at {entry.line}: other values may lie there since",
                do="use the result of that call, or do not donate what is needed afterwards",
            )


def _give_away(name: str, tensor: Tensor, line: Source) -> None:
    """Remember the memory of a tensor as given away; autograd is told that what was saved of it is gone."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
    _note(_given, storage_key(tensor), _Given(StorageWeakRef(tensor.untyped_storage()), name, line))


def taken_over(tensor: Tensor) -> Tensor:
    """A tensor like `tensor` over the same memory, in a storage object of its own."""
    known = _held.get(storage_key(tensor))
    origin = living(known.origin) if known is not None else None
    if origin is None:  # else this would keep every storage object alive through which the memory ever went
        origin = _another(tensor.untyped_storage(), tensor.device)
    storage = _another(origin, tensor.device)
    _note(_held, storage._cdata, _Held(StorageWeakRef(storage), StorageWeakRef(origin)))
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _another(storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    """Another storage object for the same memory, which keeps the first one."""
    flat = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    found: Tensor = from_dlpack(flat)
    return found.untyped_storage()


def _note(entries: dict[int, Any], key: int, entry: Any) -> None:
    """Add an entry; now and then drop those of storages that are gone."""
    with _lock:
        entries[key] = entry
        if len(entries) > _limits.get(id(entries), MOST_UNSWEPT):
            for gone in [k for k, known in entries.items() if known.storage.expired()]:
                del entries[gone]
            _limits[id(entries)] = 2 * len(entries) + MOST_UNSWEPT


def _refuse_returned(answer: Any, taken: Sequence[tuple[str, Tensor]], line: Source) -> None:
    """What is returned as it is never reaches the graph, which took the memory for its own: an argument, or a tensor
    from elsewhere in the same memory."""
    for leaf in pytree.tree_leaves(answer):
        gone = isinstance(leaf, Tensor) and any(storage_key(t) in _given for t in _strided(leaf))
        for name, tensor in taken:
            if leaf is tensor or gone:
                raise ReinkError(
                    "donated-input",
                    f"cannot run: {name} is donated, and the program returns it",
                    where=str(line),
                    why="other values may lie in its memory",
                    do="return a copy of it (clone()), or do not donate it",
                )


def _strided(value: Any) -> Iterator[Tensor]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield from (t for t in inner_tensors(leaf) if t.layout is torch.strided)


def _callers_line() -> Source:
    """The line of the user's program that called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return Source(code.co_filename, frame.f_lineno, code.co_name, text)
