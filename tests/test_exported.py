"""Exported programs: re-inplaced, made pure, saved, and run where reink is not."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.fx
from support.judge import compare
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_leaves, tree_map

import reink
from reink.core.opinfo import facts_of
from reink.core.torch_internals import STOCK_V1, STOCK_V2
from reink.errors import ReinkError
from reink.report import Report, Verdict

aten = torch.ops.aten

OPERATORS = """
import torch

library = torch.library.Library("exported", "FRAGMENT")
library.define("bump(Tensor(a!) into, Tensor x) -> ()")
library.impl("bump", lambda into, x: (into.add_(x), None)[1], "CompositeExplicitAutograd")
library.define("both(Tensor(a!) x, Tensor(b!) y, Tensor z) -> Tensor")
library.impl("both", lambda x, y, z: (x.add_(z), y.mul_(2), z + 1)[2], "CompositeExplicitAutograd")
torch.library.register_fake("exported::bump", lambda into, x: None, lib=library)
torch.library.register_fake("exported::both", lambda x, y, z: torch.empty_like(z), lib=library)
"""
_registered: dict[str, Any] = {}
exec(OPERATORS, _registered)  # the text is run in a process of its own too
bump, both = torch.ops.exported.bump, torch.ops.exported.both


def module(forward: Callable[..., Any], *, constant: Tensor | None = None, **buffers: Tensor) -> Any:
    """A module that holds `buffers`, called `forward` of itself and the inputs."""
    kind: Any = type("Model", (nn.Module,), {"forward": forward})
    made = kind()
    for name, value in buffers.items():
        made.register_buffer(name, value)
    made.constant = constant
    return made


def exported(model: Any, args: tuple[Any, ...], kwargs: Any = None, **options: Any) -> ExportedProgram:
    with torch.no_grad():
        return export(model, copy.deepcopy(args), copy.deepcopy(kwargs), **options)


def runnable(program: ExportedProgram) -> Any:
    return program.module()


def saved_and_loaded(program: ExportedProgram, folder: Path) -> ExportedProgram:
    torch.export.save(program, folder / "program.pt2")
    return torch.export.load(folder / "program.pt2")


def targets(program: ExportedProgram) -> list[Any]:
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return [n.target for g in graphs for n in g.nodes if n.op == "call_function"]


def clones(program: ExportedProgram) -> int:
    return targets(program).count(aten.clone.default)


def ones(*size: int) -> Tensor:
    return torch.ones(*size)


# ---- programs ------------------------------------------------------------------------------------------


def kv_step(self: Any, row: Tensor, position: Tensor) -> Any:
    self.cache.index_copy_(0, position, row)
    self.cache[0].mul_(2)
    return self.cache.sum(0) + row, self.cache[1]


def swaps(self: Any, x: Tensor, y: Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def dict_input(self: Any, d: dict[str, Tensor], *, k: Tensor, n: int = 2) -> Any:
    d["a"].add_(d["b"])
    return {"whole": d["a"], "other": d["b"] * n, "k": k + 1}


def odd_inputs(self: Any, x: Tensor, pair: list[Tensor], none: Any, flag: bool, word: str, scale: float) -> Any:
    x.add_(pair[0])
    pair[1].mul_(scale)
    return [x, (pair[1], None)], flag


def calls(self: Any, x: Tensor, y: Tensor) -> Any:
    first = both(self.cache[0], y, x)
    second = both(self.cache[1], self.cache[2], x)
    return first + second, y


def written_twice(self: Any, x: Tensor) -> Any:
    both(self.cache, self.cache, x)
    return self.cache * 2


def branches(self: Any, x: Tensor) -> Any:
    chosen = torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v * 2, (x,))
    self.cache.add_(chosen)
    return self.cache + chosen


def branch_writes(self: Any, x: Tensor) -> Any:
    def write(v: Tensor, cache: Tensor) -> Tensor:
        cache.add_(v)
        return v + 1

    return torch.cond(x.sum() > 0, write, lambda v, cache: v * 2, (x, self.cache)) + self.cache


def branch_calls(self: Any, x: Tensor) -> Any:
    def write(v: Tensor, cache: Tensor) -> Any:
        bump(cache[0], v)
        return torch.cond(v.sum() > 8, lambda w: w + 1, lambda w: w * 3, (v,))

    return torch.cond(x.sum() > 0, write, lambda v, cache: v * 2, (x, self.cache)) + self.cache


def constants(self: Any, x: Tensor) -> Any:
    self.cache.add_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    return self.cache * self.constant + x


def replaces_buffer(self: Any, x: Tensor) -> Any:
    self.cache += x
    return x * self.cache


def by_strides(self: Any, x: Tensor) -> Any:
    corner = torch.as_strided(x, (2, 2), (2, 1), 0)
    corner.add_(1)
    return corner


def takes_nothing(self: Any) -> Any:
    self.count.add_(1)
    return self.count * 2


def returns_nothing(self: Any, x: Tensor) -> None:
    self.cache.add_(x)


def pure(self: Any, x: Tensor) -> Any:
    return x.relu() + 1


def whole_and_part(self: Any, x: Tensor) -> Any:
    self.cache.add_(x)
    x.mul_(self.cache)
    return x, self.cache, x[0]


def complex_parts(self: Any, x: Tensor) -> Any:
    self.cache.mul_(2j)
    self.cache.real.add_(x)
    return torch.view_as_real(self.cache)


def with_gradients_off(self: Any, x: Tensor) -> Any:
    with torch.no_grad():
        self.cache.add_(x)
    return self.cache * 2


class Case(NamedTuple):
    """A program: how it is made, its inputs, and how many clones remain where it was exported with its writes."""

    make: Callable[[], Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None = None
    copies: int = 0


CASES = {
    "a cache of rows": Case(lambda: module(kv_step, cache=torch.zeros(4, 3)), (ones(1, 3), torch.tensor([2]))),
    "two inputs swap": Case(lambda: module(swaps), (torch.zeros(3), ones(3)), copies=1),
    "a dict and keywords": Case(lambda: module(dict_input), ({"a": ones(4), "b": ones(4)},), {"k": ones(2), "n": 3}),
    "odd inputs": Case(lambda: module(odd_inputs), (ones(4), [ones(4), ones(4)], None, True, "word", 2.5)),
    "calls": Case(lambda: module(calls, cache=torch.zeros(4, 8)), (ones(8), ones(3, 8))),
    "one tensor written twice by a call": Case(lambda: module(written_twice, cache=torch.zeros(4, 8)), (ones(8),)),
    "branches": Case(lambda: module(branches, cache=torch.zeros(4)), (ones(4),)),
    "a branch that writes": Case(lambda: module(branch_writes, cache=torch.zeros(4)), (ones(4),)),
    "a branch that calls": Case(lambda: module(branch_calls, cache=torch.zeros(2, 4)), (ones(4),)),
    "constants": Case(lambda: module(constants, cache=torch.zeros(4), constant=ones(4) * 3), (ones(4),)),
    "a buffer that is replaced": Case(lambda: module(replaces_buffer, cache=torch.zeros(2)), (ones(2),)),
    "a view by strides": Case(lambda: module(by_strides), (ones(4),)),
    "no inputs": Case(lambda: module(takes_nothing, count=torch.tensor(0)), ()),
    "no outputs": Case(lambda: module(returns_nothing, cache=torch.zeros(4)), (ones(4),)),
    "no writes": Case(lambda: module(pure), (ones(4),)),
    "an input and a buffer that are returned": Case(lambda: module(whole_and_part, cache=ones(4)), (ones(4),)),
    "a buffer that is transposed": Case(lambda: module(returns_nothing, cache=torch.zeros(3, 2).t()), (ones(2, 3),)),
    "a buffer inside a larger storage": Case(lambda: module(whole_and_part, cache=ones(8)[4:]), (ones(4),)),
    "complex numbers": Case(lambda: module(complex_parts, cache=torch.zeros(4, dtype=torch.complex64)), (ones(4),)),
    "gradients off inside": Case(lambda: module(with_gradients_off, cache=torch.zeros(4)), (ones(4),)),
}
# stock cannot decompose a branch that writes
DECOMPOSED = [(name, True) for name in CASES if name not in ("a branch that writes", "a branch that calls")]
DECOMPOSED += [("calls", False), ("one tensor written twice by a call", False)]


def same_numbers(program: ExportedProgram, case: Case) -> None:
    """Results, inputs and buffers of three calls, the second with other numbers, against the module in eager."""
    eager, subject = case.make(), runnable(program)
    for sign in (1, -2, 1):
        (args, kwargs), (args2, kwargs2) = (scaled((case.args, case.kwargs or {}), sign) for _ in range(2))
        with torch.no_grad():
            want, got = eager(*args, **kwargs), subject(*args2, **kwargs2)
        same((got, args2, kwargs2), (want, args, kwargs))
        buffers = dict(subject.named_buffers(remove_duplicate=False))
        for name, value in eager.named_buffers(remove_duplicate=False):
            same(buffers[name], value)


def scaled(inputs: Any, factor: int) -> Any:
    """Fresh inputs, tensors of floating point numbers times `factor`."""
    return tree_map(lambda v: v * factor if isinstance(v, Tensor) and v.is_floating_point() else copy.copy(v), inputs)


def same(got: Any, want: Any) -> None:
    for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def runs_everywhere(program: ExportedProgram) -> None:
    """It holds operators of torch alone, writes where it may, and leaves nothing of reink on its nodes."""
    assert not [t for t in targets(program) if str(getattr(t, "__module__", "")).startswith("reink")]
    assert not {STOCK_V1, STOCK_V2} & set(targets(program))
    assert not [k for n in program.graph.nodes for k in n.meta if k.startswith("reink")]
    assert program.dialect == "TRAINING"


# ---- re-inplaced ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_behaves_like_the_module_in_eager(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    programs: list[ExportedProgram] = []

    def reinplaced(model: Callable[..., Any]) -> Any:
        made, report = reink.reinplace_exported(exported(model, case.args, case.kwargs))
        assert not report.fallback
        programs.append(made)
        return runnable(made)

    if not case.kwargs:
        compare(case.make(), lambda: copy.deepcopy(case.args), reinplaced, calls=2)
    reinplaced(case.make())
    runs_everywhere(programs[-1])
    assert clones(programs[-1]) == case.copies
    same_numbers(saved_and_loaded(programs[-1], tmp_path), case)


@pytest.mark.parametrize(("name", "v2"), DECOMPOSED)
def test_a_decomposed_program_gets_its_writes_back(name: str, v2: bool, tmp_path: Path) -> None:
    case = CASES[name]
    with inductor_config.patch(enable_auto_functionalized_v2=v2):
        decomposed = exported(case.make(), case.args, case.kwargs).run_decompositions({})
    made, report = reink.reinplace_exported(decomposed)
    assert not report.fallback
    runs_everywhere(made)
    loaded = saved_and_loaded(made, tmp_path)
    same_numbers(made, case)
    same_numbers(loaded, case)


def test_the_boundary_is_kept() -> None:
    program = exported(module(constants, cache=torch.zeros(4), constant=ones(4)), (ones(4),))
    made, _ = reink.reinplace_exported(program)
    assert made.graph_signature.input_specs == program.graph_signature.input_specs
    assert [s.kind for s in made.graph_signature.output_specs] == [OutputKind.USER_OUTPUT]
    assert made.call_spec == program.call_spec
    assert made.example_inputs is program.example_inputs
    assert made.state_dict is program.state_dict
    assert made.constants == program.constants


# ---- the number of the issue ---------------------------------------------------------------------------


class Slices(nn.Module):
    """A buffer of 12 KiB, three writes of a custom operator into slices of it, and one of ATen."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(48, 64))

    def forward(self, x: Tensor) -> Tensor:
        bump(self.cache[0], x)
        bump(self.cache[1], x)
        bump(self.cache[4:6], x)
        self.cache[7].copy_(x)
        return self.cache.sum()


def stock_bytes(program: ExportedProgram) -> int:
    """The bytes that a decomposed program copies in a call, without its copies into inputs at the end."""

    def size(value: Any) -> int:
        return value.numel() * value.element_size() if isinstance(value, Tensor) else 0

    copied = 0
    for node in program.graph.nodes:
        if node.target is STOCK_V2:
            copied += sum(size(base.meta["val"]) for base in node.kwargs["_all_bases"])
        elif node.op == "call_function" and isinstance(node.meta["val"], Tensor) and facts_of(node.target).window:
            copied += size(node.meta["val"])
    return copied


RUN = """
import sys
sys.path.append(sys.argv[1])  # where torch is; no .pth file is read
sys.modules["reink"] = None
{operators}
for file in sys.argv[2:]:
    program = torch.export.load(file).module()
    with torch.no_grad():
        print([program(torch.ones(64)).item() for _ in range(3)], program.cache[4:8, 0].tolist())
assert not [name for name in sys.modules if name.startswith("reink.")]
"""


def test_slices_are_written_in_place_and_run_without_reink(tmp_path: Path) -> None:
    program = exported(Slices(), (ones(64),))
    stock = program.run_decompositions({})
    assert stock_bytes(stock) == 49_152
    files = []
    for name, given in (("as_written.pt2", program), ("decomposed.pt2", stock)):
        made, report = reink.reinplace_exported(given)
        assert (report.bytes_cloned, [d.bytes for d in report.decisions]) == (0, [0, 0, 0, 0])
        assert targets(made).count(bump.default) == 3
        assert targets(made).count(aten.copy_.default) == 1
        assert not {aten.clone.default, aten.select_scatter.default, aten.slice_scatter.default} & set(targets(made))
        torch.export.save(made, tmp_path / name)
        files.append(name)
    command = [sys.executable, "-S", "-c", RUN.format(operators=OPERATORS), str(Path(torch.__file__).parents[1])]
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([*command, *files], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[320.0, 576.0, 832.0] [3.0, 3.0, 0.0, 1.0]\n" * 2


def test_lines_of_the_module_stay_on_the_nodes_and_in_the_report() -> None:
    made, report = reink.reinplace_exported(exported(Slices(), (ones(64),)))
    assert all("test_exported.py" in n.meta["stack_trace"] for n in made.graph.nodes if n.target is bump.default)
    assert report.name == "Slices"
    assert [d.source.text for d in report.decisions if d.source] == [
        "bump(self.cache[0], x)",
        "bump(self.cache[1], x)",
        "bump(self.cache[4:6], x)",
        "self.cache[7].copy_(x)",
    ]


# ---- what is shared, symbolic, refused -----------------------------------------------------------------


def test_one_buffer_under_two_names() -> None:
    def step(self: Any, x: Tensor) -> Any:
        self.first.add_(x)
        return self.second * 2

    shared = torch.zeros(4)
    model = module(step, first=shared, second=shared)
    made, report = reink.reinplace_exported(exported(model, (ones(4),)))
    assert report.bytes_cloned == 0
    assert runnable(made)(ones(4)).tolist() == [2, 2, 2, 2]
    assert shared.tolist() == [1, 1, 1, 1]


def views_of_one_storage() -> Any:
    def step(self: Any, x: Tensor) -> Any:
        self.whole.add_(x)
        self.part.mul_(2)
        return self.part + 1, self.whole

    whole = torch.zeros(4)
    return module(step, whole=whole, part=whole[1:])


def test_buffers_that_are_views_of_one_storage(tmp_path: Path) -> None:
    made, report = reink.reinplace_exported(exported(views_of_one_storage(), (ones(4),)))
    assert report.bytes_cloned == 0
    runs_everywhere(made)
    case = Case(views_of_one_storage, (ones(4),))
    loaded = saved_and_loaded(made, tmp_path)
    same_numbers(made, case)
    same_numbers(loaded, case)


def test_an_input_given_twice_is_one_input_as_it_was_exported() -> None:
    def step(self: Any, x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return x + y

    x = torch.zeros(4)
    program = export(module(step), (x, x))
    made, _ = reink.reinplace_exported(program)
    assert runnable(made)(x, x).tolist() == [2, 2, 2, 2]
    with pytest.raises(ReinkError, match="x and y share memory"):
        reink.reinplace_exported(export(module(step), (x[:3], x[1:])))


def test_sizes_stay_symbolic() -> None:
    def step(self: Any, x: Tensor) -> Any:
        self.cache[: x.shape[0]].copy_(x)
        return self.cache.sum(0), x.shape[0] * 2

    made: list[ExportedProgram] = []
    for decompose in (False, True):
        model = module(step, cache=torch.zeros(16, 4))
        program = exported(model, (ones(3, 4),), dynamic_shapes={"x": {0: Dim("rows", min=2, max=16)}})
        program = program.run_decompositions({}) if decompose else program
        made.append(reink.reinplace_exported(program)[0])
        assert made[-1].range_constraints == program.range_constraints
    for each in made:
        subject = runnable(each)
        assert subject(ones(5, 4))[1] == 10
        assert subject.cache.sum() == 20
        with pytest.raises(AssertionError, match="Guard failed"):
            subject(ones(17, 4))


def test_sizes_that_the_data_decide(tmp_path: Path) -> None:
    def step(self: Any, x: Tensor) -> Any:
        count = x.sum().item()
        torch._check(count >= 0)
        torch._check(count <= 4)
        self.cache[:count].add_(1)
        return self.cache * count

    case = Case(lambda: module(step, cache=torch.zeros(4)), (torch.tensor([1, 2]),))
    made, _ = reink.reinplace_exported(exported(case.make(), case.args))
    same_numbers(saved_and_loaded(made, tmp_path), case)
    assert len(made.range_constraints) == 1


def test_a_constant_that_an_operator_makes_is_an_input(tmp_path: Path) -> None:
    table = torch.tensor([1.0, 2.0])
    library = torch.library.Library("exported", "FRAGMENT")
    library.define("with_table(Tensor x) -> Tensor")
    library.impl("with_table", lambda x: x * table, "CompositeImplicitAutograd")
    case = Case(
        lambda: module(lambda self, x: self.cache.add_(torch.ops.exported.with_table(x)), cache=torch.zeros(2)),
        (ones(2),),
    )
    made, _ = reink.reinplace_exported(exported(case.make(), case.args))
    kinds = [s.kind for s in made.graph_signature.input_specs]
    assert kinds == [InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT]
    same_numbers(saved_and_loaded(made, tmp_path), case)


def test_an_input_that_begins_elsewhere_is_refused_when_it_runs() -> None:
    made, _ = reink.reinplace_exported(exported(module(by_strides), (ones(4),)))
    assert runnable(made)(ones(4)).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(RuntimeError, match="begins elsewhere in its storage"):
        runnable(made)(ones(8)[4:])


def test_plain_pytorch_makes_it_pure_again() -> None:
    made, _ = reink.reinplace_exported(exported(Slices(), (ones(64),)))
    again = made.run_decompositions({})
    assert again.dialect == "ATEN"
    assert stock_bytes(again) == 49_152


def test_a_program_that_fails_a_check_comes_back_as_it_was_or_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "reink.pipeline.check_ownership", lambda *given: Verdict("ownership", False, ("made up for this test",))
    )
    program = exported(Slices(), (ones(64),))
    made, report = reink.reinplace_exported(program)
    assert made is program
    assert "made up for this test" in report.fallback
    pure, report = reink.reinplace_exported(program, passes=(lambda graph: None,))
    assert "made up for this test" in report.fallback
    assert pure.dialect == "ATEN"
    same_numbers(pure, Case(Slices, (ones(64),)))


def test_options_are_those_of_a_compile() -> None:
    seen: list[int] = []

    def count(graph: torch.fx.Graph) -> None:
        seen.append(len(graph.nodes))

    program = exported(Slices(), (ones(64),))
    _, report = reink.reinplace_exported(program, passes=(count,), prove=True, strategy="v1", strict=True)
    assert len(seen) == 1
    assert [v.check for v in report.verdicts] == ["well-formed", "ownership", "values"]
    with pytest.raises(ReinkError, match="no option 'strateg'"):
        reink.reinplace_exported(program, strateg="v1")
    with pytest.raises(ReinkError, match="no code generator"):
        reink.reinplace_exported(program, codegen="inductor")


def refused(case: str) -> Callable[[], Any]:
    def changes_metadata(self: Any, x: Tensor) -> Any:
        x.t_()
        return x * 2

    def writes_constant(self: Any, x: Tensor) -> Any:
        self.constant.add_(x)
        return self.constant * 2

    def reads_what_it_writes(self: Any, x: Tensor) -> Any:
        return both(x, x, x)

    programs: dict[str, Callable[[], Any]] = {
        "no program": lambda: reink.reinplace_exported(module(pure)),
        "metadata": lambda: reink.reinplace_exported(exported(module(changes_metadata), (ones(2, 3),))),
        "constant": lambda: reink.functionalize(exported(module(writes_constant, constant=ones(4)), (ones(4),))),
        "call": lambda: reink.functionalize(exported(module(reads_what_it_writes), (ones(4),))),
        "arguments": lambda: reink.functionalize(exported(module(pure), (ones(4),)), (ones(4),)),
        "no arguments": lambda: reink.functionalize(torch.relu),
    }
    return programs[case]


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("no program", "not-a-tensor-program", "Model is no exported program"),
        ("metadata", "cannot-export", "changes sizes or strides of the input x"),
        ("constant", "cannot-export", "writes the constant constant"),
        ("call", "unknown-call", "only read lies in memory that the call writes"),
        ("arguments", "unknown-option", "for its own inputs"),
        ("no arguments", "not-a-tensor-program", "none of the example arguments is a tensor"),
    ],
)
def test_what_cannot_be_said_is_refused(case: str, code: str, words: str) -> None:
    with pytest.raises(ReinkError, match=words) as caught:
        refused(case)()
    assert caught.value.code == code


# ---- made pure -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_pure_program_computes_the_same(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    made = reink.functionalize(exported(case.make(), case.args, case.kwargs))
    assert made.dialect == "ATEN"  # whose verifier allows no operator that writes
    assert not [t for t in targets(made) if str(getattr(t, "__module__", "")).startswith("reink")]
    loaded = saved_and_loaded(made, tmp_path)
    same_numbers(made, case)
    same_numbers(loaded, case)
    assert reink.functionalize(made) is made


def test_a_tensor_copied_into_itself_leaves_nothing_behind() -> None:
    program = exported(module(replaces_buffer, cache=torch.zeros(2)), (ones(2),))
    assert targets(program) == [aten.add_.Tensor, aten.mul.Tensor, aten.copy_.default]
    assert targets(reink.functionalize(program)) == [aten.add.Tensor, aten.mul.Tensor]
    assert targets(reink.reinplace_exported(program)[0]) == [aten.add_.Tensor, aten.mul.Tensor]


def test_mutations_are_outputs_of_the_pure_program() -> None:
    made = reink.functionalize(exported(module(whole_and_part, cache=ones(4)), (ones(4),)))
    kinds = [(s.kind, s.target) for s in made.graph_signature.output_specs]
    assert kinds[:2] == [(OutputKind.BUFFER_MUTATION, "cache"), (OutputKind.USER_INPUT_MUTATION, "x")]
    assert [kind for kind, _ in kinds[2:]] == [OutputKind.USER_OUTPUT] * 3


def test_state_that_shares_memory_is_made_pure_where_stock_cannot() -> None:
    program = exported(views_of_one_storage(), (ones(4),))
    same_numbers(reink.functionalize(program), Case(views_of_one_storage, (ones(4),)))


def test_a_call_of_the_pure_program_counts_from_where_its_base_begins() -> None:
    def step(self: Any, x: Tensor) -> Any:
        self.cache.mul_(2)
        bump(self.cache[1:], x)
        return self.cache + 1

    case = Case(lambda: module(step, cache=torch.arange(8.0)[4:]), (ones(3),))
    same_numbers(reink.functionalize(exported(case.make(), case.args)), case)


def test_a_call_of_the_pure_program_on_an_input_that_begins_elsewhere_is_refused() -> None:
    pure_program = reink.functionalize(exported(module(lambda self, x: bump(x[1:], x[:1] * 2)), (ones(4),)))
    x = ones(4)
    runnable(pure_program)(x)
    assert x.tolist() == [1, 3, 3, 3]
    with pytest.raises(RuntimeError, match="begins elsewhere in its storage"):
        runnable(pure_program)(ones(8)[4:])


@pytest.mark.parametrize("strategy", ["v1", "v2"])
def test_calls_of_the_pure_program_are_those_of_pytorch(strategy: str) -> None:
    made = reink.functionalize(exported(Slices(), (ones(64),)), strategy=strategy)
    form = STOCK_V1 if strategy == "v1" else STOCK_V2
    assert targets(made).count(form) == 3
    same_numbers(made, Case(Slices, (ones(64),)))


class WithCache(nn.Module):
    """A layer, a buffer that is written in place, whole and in slices, and a slice write to a value of its own."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Any:
        hidden = self.layer(x)
        self.cache[0].add_(hidden[0])
        self.cache[1:3] = hidden
        self.cache[:, ::2].mul_(0.5)
        hidden[0, 2:5] = 1
        return self.cache.sum(0) + hidden, self.cache[1]


def test_onnx_of_the_pure_program_gives_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    x = torch.randn(2, 8)
    onnx = torch.onnx.export(reink.functionalize(exported(WithCache(), (x,))), dynamo=True, verbose=False)
    assert onnx is not None
    onnx.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        want = WithCache()(x)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other)


def test_explain_takes_an_exported_program() -> None:
    report = reink.explain(exported(Slices(), (ones(64),)))
    assert isinstance(report, Report)
    assert report.headline() == "Slices: 4 writes, 4 in place, 0 copied; 0 B cloned, 48.0 KiB avoided"
