"""The public functions: `compile`, `functionalize`, `explain`."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch
import torch.fx
from torch.export import ExportedProgram

from reink.backends.donating import Donor, refuse_given_away, undonatable_of
from reink.backends.dynamo import compile_graph
from reink.backends.exported import explain_exported, functionalize_exported
from reink.backends.runtime import Variants
from reink.core.boundary import AliasPattern, Watched, hand_back, has_one_storage, pack
from reink.core.epilogue import with_epilogue
from reink.core.printing import program_text
from reink.core.program import MutationSignature, Program
from reink.core.torch_internals import pytree, storage_key
from reink.errors import ReinkError
from reink.options import Options
from reink.passes.capture import Source, capture_callable, source_of_callable
from reink.passes.functionalize import functionalize as functionalize_program
from reink.pipeline import Compiled, begin, complete, reaching, without_collection
from reink.report import Donation, Report

log = logging.getLogger("reink")

_TORCH_COMPILE = ("dynamic", "fullgraph", "disable")


class CompiledCallable:
    """What `reink.compile` returns: call it like the original. `reports` has one Report for each graph so far."""

    def __init__(self, model: Any, options: Options, torch_options: dict[str, Any]) -> None:
        self._variants: list[Variants] = []
        self._model, self._options, self._torch_options = model, options, torch_options
        if not callable(model):
            raise ReinkError(
                "not-a-tensor-program",
                f"cannot compile a {type(model).__name__}",
                why="it cannot be called",
                do="give a function or a module",
            )
        self._donor = Donor(model, options.donate, self._donating) if options.donate else None
        self._call = self._compiled(options, self._variants.append)
        functools.update_wrapper(self, model, updated=())

    def _compiled(self, options: Options, sink: Callable[[Variants], None]) -> Callable[..., Any]:
        def backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return compile_graph(module, inputs, options, sink)

        torch_compile: Any = torch.compile
        called: Callable[..., Any] = torch_compile(self._model, backend=backend, **self._torch_options)
        return called

    def _donating(self, refused: Mapping[str, str]) -> tuple[Callable[..., Any], Callable[[], Collection[str]]]:
        """The program for those donated arguments that are not `refused`, and which of them its graph takes."""
        made: list[Variants] = []
        names = tuple(n for n, reason in refused.items() if not reason)
        undonated = [Donation(n, reason=reason) for n, reason in refused.items() if reason]
        for donation in undonated:
            log.warning("%s", donation)

        def sink(variants: Variants) -> None:
            for compiled in variants.compiled:
                compiled.undonated.extend(undonated)
            made.append(variants)
            self._variants.append(variants)

        def used() -> Collection[str]:
            signatures = (c.functional.signature for v in made for c in v.compiled)
            return {d.argument for s in signatures for d in s.donated}

        return self._compiled(replace(self._options, donate=names), sink), used

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refuse_given_away(args, kwargs)
        return self._call(*args, **kwargs) if self._donor is None else self._donor(args, kwargs)

    @property
    def reports(self) -> list[Report]:
        """One Report for each graph and alias pattern compiled so far, oldest first."""
        return [c.report() for v in self._variants for c in v.compiled]


def compile(model: Any, **given: Any) -> CompiledCallable:
    """`torch.compile` with this back end; takes the options of `Options`, and ``dynamic`` and ``fullgraph``.

    With ``donate`` the whole program has to be one graph: what comes after a graph break could read what the graph
    before it took for its own. Raises ReinkError ``unknown-option``.
    """
    torch_options = {k: given.pop(k) for k in _TORCH_COMPILE if k in given}
    options = Options.of(given)
    if options.donate and not torch_options.setdefault("fullgraph", True):
        raise ReinkError(
            "unknown-option",
            "donate needs fullgraph=True",
            why="after a graph break, memory that the graph before it took for its own could be read",
            do="leave fullgraph out, or donate nothing",
        )
    return CompiledCallable(model, options, torch_options)


class Functionalized:
    """A program made pure. Called, it behaves like the original: same results, same mutations, same aliasing.

    `graph_module` is the pure ATen graph; with `keep_input_mutations` it ends in one ``copy_`` for each
    written input, else the new values are extra results, as `signature` says.
    """

    def __init__(
        self,
        source: Source,
        keep_input_mutations: bool,
        build: Callable[[AliasPattern], Program],
    ) -> None:
        """`build` makes the program for a way in which the inputs share memory."""
        self._source, self._build = source, build
        apart, first, self._watched = reaching(build, source.inputs, lambda program: program)
        self._dynamic, self._constants = _has_symbols(apart), _constants(apart)
        pattern = self._watched.pattern(source.inputs)
        program = apart if pattern == first else build(pattern)
        complete = with_epilogue(program)
        self.program = complete if keep_input_mutations else program
        self.graph_module: torch.fx.GraphModule = self.program.module
        self.signature: MutationSignature = self.program.signature
        self._complete: dict[AliasPattern, Program] = {pattern: complete}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._source.in_spec:
            raise _other_inputs(f"the arguments are {spec}, not {self._source.in_spec}")
        given = [*leaves, *self._source.held()]
        if not self._source.wrappers.fit(given):
            raise _other_inputs("wrapper tensors among them are of other kinds, or the module holds other tensors")
        inputs = self._source.wrappers.apart(given)
        for name, made_for, value in zip(self._source.names, self._source.inputs, inputs, strict=True):
            self._expect(name, made_for, value)
        pattern = self._watched.pattern(inputs)
        return run_flat(self._for(pattern), self._source, given, pattern)

    def _expect(self, name: str, made_for: Any, given: Any) -> None:
        """Refuse an input that the traced program may not fit."""
        if not isinstance(made_for, torch.Tensor) or not isinstance(given, torch.Tensor):
            same = type(made_for) is type(given) and bool(made_for == given)
        else:
            same = _kind(made_for) == _kind(given) and (self._dynamic or _layout(made_for) == _layout(given))
        if not same:
            raise _other_inputs(f"{name} is {_shown(given)}, not {_shown(made_for)}")
        if isinstance(given, torch.Tensor) and any(storage_key(c) == storage_key(given) for c in self._constants):
            raise ReinkError(
                "mutated-constant",
                f"cannot run: {name} shares memory with a constant of the program",
                why="the program was traced with the constant apart from its inputs",
                do="pass the tensor as an argument instead of closing over it",
            )

    def _for(self, pattern: AliasPattern) -> Program:
        found = self._complete.get(pattern)
        if found is None:
            found = self._complete[pattern] = with_epilogue(self._build(pattern))
        return found

    def __str__(self) -> str:
        return program_text(self.program)


def _other_inputs(why: str) -> ReinkError:
    return ReinkError(
        "other-inputs",
        "cannot run: the inputs are not like those that the program was made for",
        why=why,
        do="functionalize the program for these inputs, or with dynamic_shapes when only sizes differ",
    )


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tensor.layout, tensor.dim()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.size(), tensor.stride()) if tensor.layout is torch.strided else (tensor.size(),)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.size())} strides {list(value.stride())} on {value.device}"
    return repr(value)


def _has_symbols(program: Program) -> bool:
    values = [n.meta.get("val") for n in program.placeholders()]
    return any(isinstance(v, torch.Tensor) and not all(type(n) is int for n in v.size()) for v in values)


def _constants(program: Program) -> list[torch.Tensor]:
    """The tensors that the graph holds."""
    held = [getattr(program.module, str(n.target), None) for n in program.graph.nodes if n.op == "get_attr"]
    return [t for t in held if isinstance(t, torch.Tensor)]


def run_flat(program: Program, source: Source, given: Sequence[Any], pattern: AliasPattern) -> Any:
    """Run a program that carries its epilogue on the flat inputs of a call, and rebuild the user's result."""
    inputs = source.wrappers.apart(given)
    if not has_one_storage(inputs, pattern):
        raise _other_inputs("two inputs share memory and belong to different storages")
    results = program.module.forward(*pack(inputs, pattern))
    handed = hand_back(inputs, results, program.signature, pattern)
    return pytree.tree_unflatten(source.wrappers.rebuilt(given, handed), program.out_spec)


@overload
def functionalize(fn: ExportedProgram, *, strategy: str = "v2") -> ExportedProgram: ...


@overload
def functionalize(
    fn: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    strategy: str = "v2",
    keep_input_mutations: bool = True,
    dynamic_shapes: Any = None,
) -> Functionalized: ...


def functionalize(
    fn: Any,
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    strategy: str = "v2",
    keep_input_mutations: bool = True,
    dynamic_shapes: Any = None,
) -> Functionalized | ExportedProgram:
    """The pure form of `fn`, traced with example `args`; of an exported program, which has its inputs already, another.

    `dynamic_shapes`: None for the sizes of the example, anything else makes all sizes symbolic. Raises
    ReinkError for what cannot be captured or said purely.
    """
    options = Options.of({"strategy": strategy})
    if isinstance(fn, ExportedProgram):
        if not (args is None and kwargs is None and dynamic_shapes is None and keep_input_mutations):
            raise _already_exported("functionalized")
        return functionalize_exported(fn, options.strategy)
    source = source_of_callable(fn, () if args is None else args, kwargs)

    def build(pattern: AliasPattern) -> Program:
        with without_collection():
            captured = capture_callable(source, pattern, dynamic=dynamic_shapes is not None)
            return functionalize_program(captured, strategy=options.strategy)

    return Functionalized(source, keep_input_mutations, build)


def _already_exported(done: str) -> ReinkError:
    return ReinkError(
        "unknown-option",
        f"an exported program is {done} as it was exported, for its own inputs",
        why="what it takes, which sizes may change and where its mutations go is settled in its signature",
        do="give the exported program alone, or the module with its example arguments",
    )


class CompiledFunction:
    """One callable through the whole pipeline without Dynamo, for arguments like the example's.

    Called, it behaves like the original. `compiled` holds every step, and `run` takes another program in its place.
    """

    def __init__(self, source: Source, compiled: Compiled, pattern: AliasPattern, watched: Watched) -> None:
        self._source, self._pattern, self._watched, self.compiled = source, pattern, watched, compiled

    def __call__(self, *args: Any) -> Any:
        return self.run(self.compiled.runs, args)

    def run(self, program: Program, args: Sequence[Any]) -> Any:
        """Run `program`, which takes the same inputs, on `args`."""
        given = [*pytree.tree_leaves((tuple(args), {})), *self._source.held()]
        watched = self._watched
        looks = watched.whole or watched.reshaped
        if looks and watched.pattern(self._source.wrappers.apart(given)) != self._pattern:
            raise _other_inputs("the inputs share memory or objects in another way, or their storages differ")
        return run_flat(program, self._source, given, self._pattern)


def compile_function(
    fn: Any,
    args: Sequence[Any],
    options: Options | dict[str, Any] | None = None,
    *,
    dynamic: bool = False,
    dice: random.Random | None = None,
) -> CompiledFunction:
    """The whole pipeline on one callable without Dynamo: a function that behaves like `fn` on such arguments.

    `dynamic` makes all sizes symbolic; `dice` takes the decisions of reinplace by chance, for tests. PyTorch's own
    kernels run, for which `options` are meant unless they name another code generator.
    """
    source = source_of_callable(fn, args)
    chosen = options if isinstance(options, Options) else Options.of({"codegen": "eager", **(options or {})})
    return CompiledFunction(source, *_compile_source(source, chosen, dynamic, dice))


def _compile_source(
    source: Source, options: Options, dynamic: bool = False, dice: random.Random | None = None
) -> tuple[Compiled, AliasPattern, Watched]:
    """Compiled for the example inputs, how those share memory, and which of them decide that."""

    def build(pattern: AliasPattern) -> Compiled:
        captured = capture_callable(source, pattern, dynamic=dynamic, donate=options.donate)
        return begin(captured, options, source.label)

    with without_collection():
        compiled, first, watched = reaching(build, source.inputs, lambda begun: begun.functional)
        pattern = watched.pattern(source.inputs)
        if pattern != first:
            compiled = build(pattern)
        complete(compiled, dice)
    return compiled, pattern, watched


@overload
def explain(fn: ExportedProgram, **given: Any) -> Report: ...


@overload
def explain(fn: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, **given: Any) -> Report: ...


def explain(fn: Any, args: Sequence[Any] | None = None, kwargs: dict[str, Any] | None = None, **given: Any) -> Report:
    """Compile `fn` for example `args`, or an exported program, and report what became of each write. Runs nothing.

    Takes the options of `Options`.
    """
    if isinstance(fn, ExportedProgram):
        if args is not None or kwargs is not None:
            raise _already_exported("explained")
        return explain_exported(fn, **given)
    options, args = Options.of(given), () if args is None else args
    source = source_of_callable(fn, args, kwargs)
    refused = undonatable_of(fn, options.donate, args, kwargs or {})
    donate = tuple(n for n in options.donate if n not in refused)
    compiled = _compile_source(source, replace(options, donate=donate))[0]
    compiled.undonated.extend(Donation(n, reason=reason) for n, reason in refused.items())
    return compiled.report()
