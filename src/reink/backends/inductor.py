"""``codegen="inductor"``: a lowered program run by what Inductor's inner compiler generates for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from reink.backends.inductor_form import InductorForm, inductor_form
from reink.backends.mutable_call import CALLS, Unsupported, decoded, own_tensors
from reink.core.inductor_internals import (
    InductorError,
    InvalidCxxCompiler,
    can_call_directly,
    compile_inner,
    fake_arguments,
    lies_as,
    lower_calls_by,
    lowered_operator,
    mode_options,
    mutating_kernel,
)
from reink.core.program import Program
from reink.core.views import step_operator
from reink.errors import ReinkError, causes

log = logging.getLogger("reink")


def generated(program: Program, mode: str | None = None) -> Callable[..., Any]:
    """A function that runs a lowered `program` by generated code, in a `mode` of `torch.compile`.

    Raises `Unsupported`, and ReinkError ``no-compiler``.
    """
    form = inductor_form(program)
    inputs = [n.meta.get("val") for n in form.module.graph.find_nodes(op="placeholder")]
    try:
        run = compile_inner(form.module, inputs, mode_options(mode))
    except InductorError as error:
        found = list(causes(error))
        if any(isinstance(e, InvalidCxxCompiler) for e in found):
            raise _no_compiler() from error
        reason: Exception = next((e for e in found if isinstance(e, Unsupported)), error)
        raise Unsupported(str(reason).partition("\n")[0]) from error
    if run is None:
        raise Unsupported("the code would hold for some sizes only")
    return _watched(_returning(run, form), form, program)


def _no_compiler() -> ReinkError:
    return ReinkError(
        "no-compiler",
        "cannot generate code: there is no C++ compiler",
        why="Inductor generates C++ for the CPU, and found no compiler that works",
        do='install one (g++ or clang++; CXX names another), or use codegen="eager", which needs none',
    )


def _returning(run: Callable[[list[Any]], Sequence[Any]], form: InductorForm) -> Callable[..., Any]:
    """`run`, with the results of the program made of those of the graph."""
    if all(k == i and not steps for i, (k, steps, _) in enumerate(form.results)):
        return lambda *args: tuple(run(list(args)))
    plans = [
        (k, [(step_operator(s), s.args) for s in steps], value, same)
        for (k, steps, value), same in zip(form.results, form.same_as, strict=True)
    ]

    def call(*args: Any) -> tuple[Any, ...]:
        made = run(list(args))
        results: list[Any] = []
        for k, steps, result, same in plans:
            if same < len(results):
                result = results[same]
            elif k >= 0:
                result = made[k]
                for op, rest in steps:
                    result = op(result, *rest)
            results.append(result)
        return tuple(results)

    return call


def _watched(run: Callable[..., Any], form: InductorForm, program: Program) -> Callable[..., Any]:
    """`run`; where operators are given inputs to write, its first call makes sure that they write nothing but data.

    The generated code has the sizes and the memory of its inputs written into it.
    """
    if not form.given_away:
        return run

    watched = True

    def call(*args: Any) -> Any:
        nonlocal watched
        if not watched:
            return run(*args)
        before = [_shape(args[k]) for k in form.given_away]
        results = run(*args)
        for k, was in zip(form.given_away, before, strict=True):
            if _shape(args[k]) != was:
                raise _reshaped(program.placeholders()[k].name)
        watched = False
        return results

    return call


def _shape(tensor: Any) -> Any:
    return tensor.data_ptr(), tensor.size(), tensor.stride()


def _reshaped(name: str) -> ReinkError:
    return ReinkError(
        "metadata-mutation",
        f"cannot run: an operator changed the size, the strides or the storage of {name}",
        why="its schema says that it writes the data of its argument, and code was generated for that",
        do='let the operator write with copy_(), or use codegen="eager"',
    )


def _lower_call(written: list[Any], read: list[Any], numbers: list[Any], how: str) -> Any:
    """What Inductor makes of a ``reink::call``: the operator itself, on the memory, wherever it can be told so."""
    call = decoded(how)
    fakes = fake_arguments()
    for tensor, value in zip(written, fakes[0], strict=True):
        if not lies_as(tensor, value):
            raise Unsupported(f"an argument of {call.op} is not memory as the program has it")
    if not call.views and can_call_directly(call.op):
        args, kwargs = call.arguments(written, read, numbers)
        own = own_tensors(call.op, mutating_kernel(call.op, written, args, kwargs))
        return tuple(own) if len(own) > 1 else own[0] if own else None
    return mutating_kernel(lowered_operator(), written, (written, read, numbers, how), {})


for _operator in CALLS:
    lower_calls_by(_operator, _lower_call)
