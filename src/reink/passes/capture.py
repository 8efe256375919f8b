"""From a callable, a module or a graph to a `Program` of ATen operators, mutations as the user wrote them."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from reink.core.boundary import AliasPattern, as_they_are, fake_inputs, members_of, pack, unpack
from reink.core.program import Donated, Form, MutationSignature, ObjectChange, Program, attribute_of
from reink.core.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    UnsupportedOperatorException,
    argument_of,
    detect_fake_mode,
    expression,
    hint_of,
    insert_size_checks,
    pytree,
    rename_placeholder,
    storage_key,
    trace,
)
from reink.core.wrappers import Wrappers
from reink.errors import ReinkError
from reink.passes.user_code import IndexedWrites, UserLines, is_library

Tensor = torch.Tensor

# What an assertion says that fails because the data decide a size otherwise than tracing took it for.
SIZE_CHECK = "a size that the data decide is not what the program was traced for (docs/errors.md#data-dependent-python)"


@dataclass(slots=True)
class Source:
    """What can be traced: a flat function over `inputs`, and how to flatten a call and rebuild its result.

    `names` are the inputs as the user calls them. `held` gives the tensors that the program holds now (parameters
    and buffers of a module), which come after the arguments. Of wrapper tensors, which `function` takes as they are,
    `inputs` and `names` have the plain ones inside: `wrappers` says how those are put together. `parameters` has for
    each input the parameter of the callable that it is given as, or nothing.
    """

    function: Callable[..., Any]
    wrappers: Wrappers
    inputs: list[Any]
    names: list[str]
    in_spec: Any
    held: Callable[[], list[Tensor]]
    label: str
    parameters: list[str]


def source_of_callable(fn: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Source:
    """A callable or module with example arguments as a flat function. Raises ReinkError ``not-a-tensor-program``."""
    if not callable(fn):
        raise _not_a_program(f"a {type(fn).__name__} cannot be called")
    if not isinstance(args, (tuple, list)):
        raise _not_a_program(f"args has to be a tuple of example arguments, not a {type(args).__name__}")
    leaves, in_spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    named = _held_by(fn)
    extra = [t for _, t in named]
    if not any(isinstance(v, Tensor) for v in (*leaves, *extra)):
        raise _not_a_program("none of the example arguments is a tensor")
    label = getattr(fn, "__name__", None) or type(fn).__name__

    def flat(*values: Any) -> Any:
        call_args, call_kwargs = pytree.tree_unflatten(list(values[: len(leaves)]), in_spec)
        if not named:
            return fn(*call_args, **call_kwargs)
        state = {name: value for (name, _), value in zip(named, values[len(leaves) :], strict=True)}
        return torch.func.functional_call(fn, state, call_args, call_kwargs)

    arguments = _arguments(fn, leaves, in_spec)
    names = [name for _, name in arguments] + [n.replace(".", "_") for n, _ in named]
    wrappers = Wrappers([*leaves, *extra])
    inputs = as_they_are(wrappers.apart([*leaves, *extra]))
    parameters = wrappers.names([parameter for parameter, _ in arguments] + [""] * len(named))

    def held() -> list[Tensor]:
        return [t for _, t in _held_by(fn)]

    return Source(flat, wrappers, inputs, wrappers.names(names), in_spec, held, label, parameters)


def _held_by(fn: Any) -> list[tuple[str, Tensor]]:
    if not isinstance(fn, torch.nn.Module):
        return []
    return [*fn.named_parameters(), *fn.named_buffers()]


def _arguments(fn: Any, leaves: list[Any], in_spec: Any) -> list[tuple[str, str]]:
    """What the user calls each flat input: the parameter, and with it the way into it when it is nested."""
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
        parameters = [n for n, p in signature.parameters.items() if p.kind is not p.VAR_POSITIONAL]
    except (TypeError, ValueError):
        parameters = []
    names = []
    for (kind, *path), _ in pytree.tree_flatten_with_path(pytree.tree_unflatten(leaves, in_spec))[0]:
        keys = [str(getattr(k, "idx", getattr(k, "key", k))) for k in path]
        if getattr(kind, "idx", 1) == 0:
            position = int(keys[0])
            keys[0] = parameters[position] if position < len(parameters) else f"arg{position}"
        names.append((keys[0], "_".join(keys)))
    return names


def capture_callable(
    source: Source, pattern: AliasPattern = (), *, dynamic: bool = False, donate: Collection[str] = ()
) -> Program:
    """Trace `source` for inputs that share memory as `pattern` says; sizes are symbolic when `dynamic`.

    The caller gives the arguments `donate` away.
    """
    environment = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    packed = pack(source.inputs, pattern)
    fakes = fake_inputs(packed, mode)
    if dynamic:  # but for the bases, whose pattern holds for one size
        own = len(packed) - len(pattern)
        fakes[:own] = [mode.from_tensor(v) if isinstance(v, Tensor) else v for v in packed[:own]]
    count, specs, objects = len(source.inputs), [], _Objects(source.names)
    # without gradients Dynamo, which captures the graphs of torch.cond, allows them to write
    tracks = torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in source.inputs)

    def called(*inputs: Any) -> list[Any]:
        leaves, out_spec = pytree.tree_flatten(source.function(*inputs))
        specs.append(out_spec)
        return leaves

    def flat(*values: Any) -> Any:
        inputs = unpack(values, pattern, count)
        objects.begin(inputs)
        with UserLines(), IndexedWrites(), torch.set_grad_enabled(tracks):
            leaves = source.wrappers.run(called, inputs)
        return objects.end(leaves)

    program = _trace(flat, fakes, source.label, objects)
    insert_size_checks(program.module, environment, SIZE_CHECK)
    _name_inputs(program, source.names, pattern)
    _note_donated(program, source.parameters, donate, pattern)
    program.out_spec = specs[-1]
    return program


def capture_graph(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    pattern: AliasPattern = (),
    offsets: Sequence[tuple[int, int]] = (),
    wrappers: Wrappers | None = None,
    donate: Collection[str] = (),
) -> Program:
    """Trace an fx graph (Dynamo's, with the user's source lines, or any other) to ATen.

    `inputs` are real or fake; the placeholders' own example values are preferred, since they carry symbols. `offsets`
    are storage offsets in elements that inputs have instead of the examples' own. Where the graph takes wrapper
    tensors, as `wrappers` says, `inputs` are the plain ones inside them, and so are those of the program. `donate`
    names arguments of Dynamo's frame that the caller gives away.
    """
    wrappers = wrappers or Wrappers(inputs)
    known = wrappers.apart(_example_values(module, wrappers.together(inputs)))
    mode = detect_fake_mode(known) or FakeTensorMode(allow_non_fake_inputs=True)
    count = len(known)
    fakes = fake_inputs(known, mode, dict(offsets))
    if pattern:
        fakes = pack_fakes(fakes, pattern, dict(offsets), mode)
    placeholders = module.graph.find_nodes(op="placeholder")
    names = wrappers.names([_dynamo_name(str(n.target)) for n in placeholders])
    objects = _Objects(names)

    def flat(*values: Any) -> Any:
        given = unpack(values, pattern, count)
        objects.begin(given)
        with IndexedWrites():
            results = wrappers.run(torch.fx.Interpreter(module).run, given)
        return objects.end(results)

    program = _trace(flat, fakes, "graph", objects)
    _name_inputs(program, names, pattern)
    _note_donated(program, wrappers.names([argument_of(n) for n in placeholders]), donate, pattern)
    return program


def _dynamo_name(name: str) -> str:
    """``cache`` for Dynamo's ``L_cache_`` and ``L_self_modules_cache_``."""
    short = re.sub(r"^l_(self_)?(modules_|parameters_|buffers_)*", "", name.lower() if name.startswith("L_") else name)
    return short.strip("_") or name


def _name_inputs(program: Program, names: Sequence[str], pattern: AliasPattern) -> None:
    """Call the inputs of the graph as the user does; flat bases of inputs that share memory are bases."""
    inside = members_of(pattern)
    shown = [n for k, n in enumerate(names) if k not in inside] + ["base"] * len(pattern)
    for node, name in zip(program.placeholders(), shown, strict=True):
        rename_placeholder(node, name)


def _note_donated(program: Program, parameters: Sequence[str], donate: Collection[str], pattern: AliasPattern) -> None:
    """Note which inputs of the graph the caller gives away: none that shares memory with another."""
    inside = members_of(pattern)
    outside = (name for k, name in enumerate(parameters) if k not in inside)
    donated = (Donated(k, name) for k, name in enumerate(outside) if name in donate)
    program.signature = replace(program.signature, donated=tuple(donated))


def lift_attributes(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[Tensor]]:
    """The graph with the tensors that it holds (parameters, optimizer state) as further inputs, and those tensors.

    The program may write them, and the caller sees it: they are inputs in all but name.
    """
    named = {n: attribute_of(module, str(n.target)) for n in module.graph.nodes if n.op == "get_attr"}
    held = {n: value for n, value in named.items() if isinstance(value, Tensor)}
    if not held:
        return module, []
    graph, copied = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in (*(n for n in module.graph.nodes if n.op == "placeholder"), *held):
        copied[node] = graph.placeholder(node.name)
        copied[node].meta = dict(node.meta)
    returned = graph.graph_copy(module.graph, copied)
    graph.output(returned)
    return torch.fx.GraphModule(module, graph), list(held.values())


class _Objects:
    """The tensor objects that a program is given, while it is traced: which results are one of them, and which of them
    are made views of themselves."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.identical: tuple[tuple[int, int], ...] = ()
        self.changes: tuple[ObjectChange, ...] = ()

    def begin(self, inputs: Sequence[Any]) -> None:
        """What the program is given, before it runs."""
        self._inputs = inputs
        self._known = {id(v): i for i, v in reversed(list(enumerate(inputs))) if isinstance(v, Tensor)}
        self._before = {i: _kept_in(inputs[i]) for i in self._known.values()}

    def end(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """The results, and after them the inputs that the program has changed."""
        changed = [i for i in sorted(self._before) if self._before[i] != _kept_in(self._inputs[i])]
        self.identical = tuple((k, self._known[id(r)]) for k, r in enumerate(results) if id(r) in self._known)
        self.changes = tuple(ObjectChange(i, len(results) + k, self._names[i]) for k, i in enumerate(changed))
        return (*results, *(self._inputs[i] for i in changed))


def _kept_in(tensor: Tensor) -> tuple[Any, ...]:
    """The memory of a tensor, and how it lies there; symbolic integers as expressions, which adds no guard."""
    if tensor.layout is not torch.strided:
        return ()
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    return (storage_key(tensor), tensor.dim(), *(expression(n) for n in numbers))


def pack_fakes(fakes: list[Any], pattern: AliasPattern, offsets: Mapping[int, int], mode: FakeTensorMode) -> list[Any]:
    """`pack` for fake inputs, which do not really share memory: the bases are made up.

    `offsets` has the storage offsets of the inputs for which they count; a base starts where such a member says.
    """
    inside = {m.input for c in pattern for m in c.members}
    bases = []
    for cluster in pattern:
        told = (offsets[m.input] * m.dtype.itemsize - m.offset for m in cluster.members if m.input in offsets)
        start = next(told, 0) // cluster.dtype.itemsize
        with mode:
            device = fakes[cluster.members[0].input].device
            bases.append(torch.empty((start + cluster.length,), dtype=cluster.dtype, device=device)[start:])
    return [v for i, v in enumerate(fakes) if i not in inside] + bases


def _example_values(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    values = []
    for node, given in zip(placeholders, inputs, strict=True):
        known = node.meta.get("example_value", node.meta.get("val"))
        described = known is not None and isinstance(given, (Tensor, int, torch.SymInt)) and _describes(known, given)
        values.append(known if described else given)
    return values


def _describes(known: Any, given: Any) -> bool:
    """Whether an input is as the graph says.

    Where a program makes an input a view of itself by a name that Dynamo takes for another tensor (``x.contiguous()``),
    the graph says what the input has become. Raises ReinkError if sizes are symbolic, as only the graph has them.
    """
    if not isinstance(known, Tensor) or not isinstance(given, Tensor) or isinstance(given, FakeTensor):
        return True
    if known.layout is not torch.strided or given.layout is not torch.strided:
        return True
    numbers = (*known.size(), *known.stride())
    fixed = all(type(n) is int for n in (*numbers, known.storage_offset()))
    if known.dim() == given.dim():
        pairs = zip(map(hint_of, numbers), (*given.size(), *given.stride()), strict=True)
        if all(a == b for a, b in pairs if type(a) is int):
            return not fixed or known.storage_offset() == given.storage_offset()
    if fixed:
        return False
    raise ReinkError(
        "metadata-mutation",
        "cannot capture: the program makes an input of symbolic size a view of itself",
        why="the graph that Dynamo gives has the sizes of that view, and no longer those of the input",
        do="make a new view and use that instead (y = x.t()), or call mark_static on the input",
    )


def _trace(flat: Callable[..., Any], fakes: list[Any], label: str, objects: _Objects) -> Program:
    """The captured program of `flat`, which while it runs notes in `objects` what becomes of its inputs."""
    try:
        module = trace(flat, fakes)
    except ReinkError:
        raise
    except Exception as error:
        refused = _refusal(error, label)
        if refused is None:
            raise
        raise refused from error
    _describe_constants(module, fakes)
    signature = MutationSignature(known=False, identical=objects.identical, changes=objects.changes)
    return Program(module, Form.MUTABLE, signature)


def _describe_constants(module: torch.fx.GraphModule, fakes: list[Any]) -> None:
    """Give the constants of the graph, and of the graphs in it, values of the same fake mode as everything else."""
    mode = detect_fake_mode(fakes)
    if mode is None:
        return
    for owner in (m for m in module.modules() if isinstance(m, torch.fx.GraphModule)):
        for node in owner.graph.find_nodes(op="get_attr"):
            constant = attribute_of(owner, str(node.target))
            if isinstance(constant, Tensor):
                node.meta["val"] = fake_inputs([constant], mode)[0]


def _refusal(error: Exception, label: str) -> ReinkError | None:
    """The coded form of what tracing raised; None for an error of the user's own program."""
    text, where = str(error).splitlines()[0] if str(error) else type(error).__name__, _user_line(error)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)):
        return ReinkError(
            "data-dependent-python",
            f"cannot capture {label}: its Python depends on the values of a tensor",
            where=where,
            why=f"while tracing, tensors have shapes but no values ({text})",
            do="use torch.where or torch.cond, or compute the value outside the program",
        )
    if isinstance(error, SyntaxError):
        return ReinkError(
            "not-a-tensor-program",
            f"cannot capture {label}: an operator takes an argument that is named like a word of Python",
            where=where,
            why=f"the traced graph cannot be written as Python ({text})",
            do="use another form of the operator, such as a new tensor and copy_",
        )
    if isinstance(error, UnsupportedOperatorException) or "fake impl" in str(error) or "Meta' backend" in str(error):
        return ReinkError(
            "no-fake-kernel",
            f"cannot capture {label}: an operator has no fake kernel",
            where=where,
            why=f"the shapes of its results are unknown ({text})",
            do="register one with torch.library.register_fake",
        )
    if "single memory location" in str(error):
        return ReinkError(
            "written-self-overlap",
            f"cannot capture {label}: several elements of a written tensor are one memory cell",
            where=where,
            why=f"eager refuses the write as well ({text})",
            do="write the tensor before it is expanded, or clone() the expanded one",
        )
    if _raised_by_torch(error):
        return ReinkError(
            "cannot-trace",
            f"cannot capture {label}: PyTorch raised while it was traced",
            where=where,
            why=text,
            do="run it without reink first; if it works there, use another form of the operator in that line",
        )
    return None


def _raised_by_torch(error: BaseException) -> bool:
    """Whether the error comes out of PyTorch rather than out of the user's own lines."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and is_library(frames[-1].filename)


def _user_line(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno} in {last.name}    {last.line or ''}".rstrip()


def _not_a_program(why: str) -> ReinkError:
    return ReinkError(
        "not-a-tensor-program",
        "cannot capture: this is not a program over tensors",
        why=why,
        do="give a function or module and a tuple of example arguments with at least one tensor",
    )
