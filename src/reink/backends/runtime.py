"""Calling a compiled program: one variant for each way in which the inputs share memory."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from reink.backends.announcing import announce
from reink.core.aliasing import layout_of
from reink.core.boundary import AliasPattern, address_of, behind, hand_back, has_one_storage, pack
from reink.core.extent import extent_of
from reink.core.torch_internals import FakeTensor, forward_of
from reink.pipeline import Compiled, compile_program, complete, reaching, without_collection
from reink.report import Verdict

Tensor = torch.Tensor
log = logging.getLogger("reink")

# More patterns than this and the captured program runs as it stands.
MOST_VARIANTS = 8


class Variants:
    """A program compiled once for each alias pattern that its inputs come in.

    Patterns are looked at only when an input is written, and only when the addresses differ from the last call.
    `build` compiles for a pattern; `captured` runs the program as the user wrote it.
    """

    def __init__(
        self,
        build: Callable[[AliasPattern, tuple[tuple[int, int], ...]], Compiled],
        captured: Callable[..., Any],
        inputs: Sequence[Any],
    ) -> None:
        self._build, self._captured = build, captured
        self.compiled: list[Compiled] = []
        self._variants: dict[Any, Callable[..., Any]] = {}
        self._apart, self._first, self.inputs = reaching(
            lambda pattern: build(pattern, ()), inputs, lambda begun: begun.functional
        )
        self._count = len(inputs)
        self._offsets = tuple(
            (p, offset)
            for k, offset in self._apart.functional.signature.offset_sensitive
            for p in behind(k, self._first, self._count) - self.inputs.whole
        )
        self.sensitive = tuple(p for p, _ in self._offsets)
        self.watched = self._watch(inputs)
        self._have_addresses = all(inputs[i].device.type != "meta" for i in self.watched)
        self._last: Any = None
        self._chosen: Callable[..., Any] = (
            self.choose(inputs) if _are_real(inputs) else self._variant(self._first, self._offsets)
        )

    def _watch(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Inputs whose addresses decide: every tensor when one is written and there is another to overlap with."""
        if not self.inputs and not self.sensitive:
            return ()
        return tuple(i for i, v in enumerate(inputs) if isinstance(v, Tensor))

    def function(self) -> Callable[..., Any]:
        """What to call for each run; the cheapest that is right."""
        if not self.watched or self._always_alike:
            return self._chosen
        return self._checked()

    @property
    def _always_alike(self) -> bool:
        """One tensor of fixed strides can only overlap with itself, and Dynamo guards on those strides."""
        if len(self.watched) != 1 or self.sensitive or self.inputs.whole or self._last is None:
            return False
        value = self._apart.captured.placeholders()[self.watched[0]].meta.get("val")
        return isinstance(value, Tensor) and not extent_of(*layout_of(value)[:2]).symbolic

    def _checked(self) -> Callable[..., Any]:
        watched, numbers, whole = self.watched, self._numbers, sorted(self.inputs.whole)
        objects = watched if self.inputs.reshaped else ()
        where: Callable[[Tensor], Any] = Tensor.data_ptr if self._have_addresses else address_of

        def call(*args: Any) -> Any:
            key = [where(args[i]) for i in watched]
            if numbers:
                key.extend(args[i] for i in numbers)
            if objects:  # which inputs are one object
                key.extend(id(args[i]) for i in objects)
            for i in whole:
                key += args[i].storage_offset(), args[i].untyped_storage().nbytes()
            if key != self._last:
                self._chosen = self.choose(args)
                self._last = key
            return self._chosen(*args)

        return call

    @property
    def _numbers(self) -> tuple[int, ...]:
        """Symbolic sizes among the inputs: they decide how far a tensor reaches."""
        first = self._apart.captured.placeholders()
        found = (k for k, n in enumerate(first) if isinstance(n.meta.get("val"), torch.SymInt))
        return tuple(p for k in found for p in behind(k, self._first, self._count))

    def choose(self, args: Sequence[Any]) -> Callable[..., Any]:
        """The variant for the way these inputs share memory; compiled when it is new."""
        pattern = self.inputs.pattern(args)
        offsets = tuple((i, args[i].storage_offset()) for i in self.sensitive)
        if pattern and not has_one_storage(args, pattern):
            log.info("inputs share memory across storages: the captured program runs as it stands")
            return self._captured
        return self._variant(pattern, offsets)

    def _variant(self, pattern: AliasPattern, offsets: tuple[tuple[int, int], ...]) -> Callable[..., Any]:
        found = self._variants.get((pattern, offsets))
        if found is not None:
            return found
        if len(self._variants) >= MOST_VARIANTS:
            log.info(
                "more than %d alias patterns of the inputs: the captured program runs as it stands",
                MOST_VARIANTS,
            )
            return self._captured
        as_begun = pattern == self._first and offsets == self._offsets
        compiled = self._apart if as_begun else self._build(pattern, offsets)
        with without_collection():
            complete(compiled)
        run, compiled = _run_by(compiled)
        announce(compiled)
        self.compiled.append(compiled)
        signature = compiled.functional.signature
        if signature.donated:
            run = _on_own_objects(run, signature.donated_inputs)

        def packed(*inputs: Any) -> Any:
            return tuple(hand_back(inputs, run(*pack(inputs, pattern)), signature, pattern))

        self._variants[pattern, offsets] = packed if pattern or signature.changes else run
        return self._variants[pattern, offsets]


def _are_real(inputs: Sequence[Any]) -> bool:
    """Whether the inputs have addresses: a back end may be given fake ones."""
    return not any(isinstance(v, (FakeTensor, torch.SymInt)) for v in inputs)


def _on_own_objects(run: Callable[..., Any], donated: Collection[int]) -> Callable[..., Any]:
    """`run`, given tensor objects of its own for what is donated: those that it returns are not the caller's."""
    return lambda *args: run(*(v.detach() if k in donated else v for k, v in enumerate(args)))


def _run_by(compiled: Compiled) -> tuple[Callable[..., Any], Compiled]:
    """What runs a compiled program, and that program: another one where no code can be generated for it."""
    if compiled.options.codegen != "inductor" or compiled.runs is not compiled.lowered:
        return forward_of(compiled.runs.module), compiled
    inductor = importlib.import_module("reink.backends.inductor")
    try:
        return inductor.generated(compiled.runs, compiled.options.mode), compiled
    except inductor.Unsupported as error:
        log.info("%s: no code is generated, PyTorch's own kernels run: %s", compiled.name, error)
        reason = str(error)
    with without_collection():
        other = compile_program(compiled.captured, replace(compiled.options, codegen="eager"), compiled.name)
    other.verdicts.append(Verdict("code generation", True, (f"PyTorch's own kernels run: {reason}",), decided=False))
    return forward_of(other.runs.module), other
