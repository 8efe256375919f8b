"""The value proof proves right programs, refutes wrong ones in words, and says when it cannot tell."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from test_check import PROGRAMS, captured, flat, made, mutants, shows
from torch import Tensor

import reink.pipeline
from reink.api import compile_function
from reink.backends.dynamo import compile_graph
from reink.check import contents as contents_of
from reink.check import prove_values
from reink.check.contents import Contents
from reink.check.geometry import Geometries, Geometry
from reink.check.terms import Numbering, Undecided
from reink.core.program import Program, copied
from reink.errors import ReinkError
from reink.fuzz.injection import FAULTS, Fault
from reink.options import Options
from reink.passes.functionalize import functionalize
from reink.passes.lower import lower
from reink.passes.reinplace import reinplace
from reink.report import Report, Verdict
from reink.verification.answer import Run, Verification

Node = torch.fx.Node
aten = torch.ops.aten


def both(function: Callable[..., Any], *inputs: Tensor, symbolic: bool = False) -> tuple[Program, Program]:
    """The pure and the lowered program."""
    functional = functionalize(captured(function, *inputs, symbolic=symbolic), strategy="v2")
    return functional, lower(reinplace(functional))


def node(program: Program, target: Any, number: int = 0) -> Node:
    """Call number `number` of an operator."""
    found: list[Node] = [n for n in program.graph.nodes if n.target is target]
    return found[number]


def square() -> Tensor:
    return torch.ones(4, 4)


# -- right programs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("strategy", ["v1", "v2"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_right_programs_are_proven(function: Callable[[Tensor], Any], strategy: str, late: bool) -> None:
    case = made(function, strategy, late)
    assert str(prove_values(case.functional, case.lowered)) == "values: ok"


def rows(x: Tensor) -> Tensor:
    for k in range(x.size(0)):
        x[k].add_(1)
    return x.sum()


def columns(x: Tensor) -> Tensor:
    for k in range(x.size(1)):
        x[:, k].mul_(2)
    return x * 1


def checkers(x: Tensor) -> Tensor:
    x[::2, ::2].add_(1)
    x[1::2, 1::2].add_(2)
    return x.t()[1:].clone()


def bytes_of_a_float(x: Tensor) -> Tensor:
    raw = x.view(torch.uint8)
    raw[0, 1:3] = 7
    return x + 1


def conjugate(x: Tensor) -> Any:
    z = torch.view_as_complex(x.view(4, 2, 2))
    z.conj()[0].mul_(2)
    z.conj().imag[1].add_(1)
    return z.conj() + 0, z.imag.clone()


def windows(x: Tensor) -> Tensor:
    x.unfold(0, 2, 2)[1].add_(1)
    return x.unfold(0, 3, 1) * 2


def narrow_types(x: Tensor) -> Any:
    n = (x * 3).to(torch.int8)
    n.add_(1)
    n[0].mul_(n[1].to(torch.int32))
    x.eq_(2)
    return n, x.half()


@pytest.mark.parametrize(
    "function", [rows, columns, checkers, bytes_of_a_float, conjugate, windows, narrow_types], ids=lambda f: f.__name__
)
def test_other_ways_to_look_at_memory_are_followed(function: Callable[[Tensor], Any]) -> None:
    assert str(prove_values(*both(function, square()))) == "values: ok"


@pytest.mark.parametrize("size", [(64, 1 << 22), (1 << 22, 64)], ids=["long rows", "short rows"])
def test_memory_that_is_too_large_to_look_at_piece_by_piece(size: tuple[int, int]) -> None:
    def large(x: Tensor) -> Any:
        old = x[2].clone()
        x[1:3].mul_(2)
        x[:, 3].add_(1)
        return old, x[1] + x[4], x.t().sum(0)

    assert str(prove_values(*both(large, torch.empty(size, device="meta")))) == "values: ok"


def test_symbolic_sizes_count_as_their_hints() -> None:
    assert str(prove_values(*both(PROGRAMS[0], square(), symbolic=True))) == "values: ok"


def test_four_times_as_many_writes_look_at_four_times_as_much() -> None:
    """Stores that are kept, and intervals that are walked through, not seconds: a machine may be busy."""

    def looked_at(count: int) -> int:
        functional, lowered = both(rows, torch.ones(count, 4))
        seen = 0
        shown = Contents._shown

        def counted(self: Contents, geometry: Geometry) -> Any:
            nonlocal seen
            found = shown(self, geometry)
            seen += len(found)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Contents, "_shown", counted)
            assert prove_values(functional, lowered).decided
        return seen

    assert looked_at(400) <= 4.4 * looked_at(100)


# -- wrong programs ----------------------------------------------------------------------------------------


def refuted(pair: tuple[Program, Program], change: Callable[[Program], None]) -> str:
    """What the proof says of the lowered program after `change`."""
    wrong = copied(pair[1])
    change(wrong)
    verdict = prove_values(pair[0], wrong)
    assert not verdict.ok, verdict
    assert verdict.decided
    return verdict.details[0]


def test_a_dropped_clone_is_named() -> None:
    def late(x: Tensor) -> Any:
        old = x[1].clone()
        x.mul_(2)
        return old + x[1]

    def drop(wrong: Program) -> None:
        kept = node(wrong, aten.clone.default)
        kept.replace_all_uses_with(kept.args[0])  # type: ignore[arg-type]
        wrong.graph.erase_node(kept)

    said = refuted(both(late, square()), drop)
    assert said == (
        "result 0: add_ (aten.add.Tensor) is given, as tensor 0, a part of mul (from byte 16 on), "
        "in the pure program a part of arg0_1 (from byte 16 on)"
    )


def test_two_writes_in_the_other_order_are_named() -> None:
    def twice(x: Tensor) -> Any:
        x[0:2].add_(1)
        x[1:3].mul_(2)

    def swap(wrong: Program) -> None:
        node(wrong, aten.mul_.Tensor).append(node(wrong, aten.add_.Tensor))

    said = refuted(both(twice, square()), swap)
    assert said.startswith("input arg0_1 ends with another value: ")
    assert "add_ (aten.add.Tensor) is given, as tensor 0, parts of arg0_1, mul_" in said


def test_a_read_after_the_write_is_named() -> None:
    def read_first(x: Tensor) -> Any:
        total = x[0] + 3
        x.mul_(2)
        return total

    def move(wrong: Program) -> None:
        node(wrong, aten.mul_.Tensor).append(node(wrong, aten.add.Tensor))

    said = refuted(both(read_first, square()), move)
    assert "add (aten.add.Tensor) is given, as tensor 0, a part of mul" in said
    assert said.endswith("in the pure program a part of arg0_1 (from byte 0 on)")


def test_another_region_is_named() -> None:
    def row(x: Tensor) -> Any:
        x[1].add_(1)

    def move(wrong: Program) -> None:
        view = node(wrong, aten.select.int)
        view.args = (*view.args[:2], 2)

    said = refuted(both(row, square()), move)
    assert said.startswith("input arg0_1 ends with another value: parts of arg0_1, add_, in the pure program parts of")


def test_another_operand_is_named() -> None:
    def product(x: Tensor) -> Any:
        a, b = x.sin(), x.cos()
        return x + b, a

    def change(wrong: Program) -> None:
        node(wrong, aten.add.Tensor).replace_input_with(node(wrong, aten.cos.default), node(wrong, aten.sin.default))

    said = refuted(both(product, square()), change)
    assert said == "result 0: add (aten.add.Tensor) is given, as tensor 1, sin, in the pure program cos"


def test_a_result_in_the_memory_of_another_is_named() -> None:
    def two(x: Tensor) -> Any:
        return x + 1, (x + 1).clone()

    def share(wrong: Program) -> None:
        output = wrong.output()
        first = wrong.results()[0]
        output.args = ((first, first),)

    assert "result 1 shares add" in refuted(both(two, square()), share)


def test_a_write_to_an_input_that_is_only_read_is_named() -> None:
    def read(x: Tensor) -> Any:
        return x + 1

    def write(wrong: Program) -> None:
        with wrong.graph.inserting_after(node(wrong, aten.add.Tensor)):
            wrong.graph.call_function(aten.mul_.Tensor, (wrong.placeholders()[0], 2))

    assert "input arg0_1 ends with another value: mul_" in refuted(both(read, square()), write)


def test_random_numbers_in_another_order_are_named() -> None:
    def noise(x: Tensor) -> Any:
        return torch.rand(4) - x[0], torch.randn(4) + x[1]

    def swap(wrong: Program) -> None:
        node(wrong, aten.rand.default).prepend(node(wrong, aten.randn.default))

    said = refuted(both(noise, square()), swap)
    assert said == "randn happens where the effect of rand is due"


def test_an_operand_that_the_call_itself_overwrites_is_refuted() -> None:
    """The pure call reads what the base was; the lowered one would read what it has just written."""

    def shifted(x: Tensor) -> Any:
        y = x.sin()
        y[0].copy_(x[1])
        return y

    def overlap(wrong: Program) -> None:
        copy = node(wrong, aten.copy_.default)
        base = node(wrong, aten.sin.default)
        with wrong.graph.inserting_before(copy):
            flat_base = wrong.graph.call_function(aten.view.default, (base, [16]))
            near = wrong.graph.call_function(aten.slice.Tensor, (flat_base, 0, 2, 6))
        copy.args = (copy.args[0], near)

    refuted(both(shifted, square()), overlap)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_faults_that_show_are_never_proven(fault: Fault) -> None:
    """Some of the faults that the ownership check is tried with, by the proof alone; it never calls one right."""
    rng = random.Random(fault.__name__)
    count: Counter[str] = Counter()
    for function, strategy in itertools.product(PROGRAMS, ("v1", "v2")):
        case = made(function, strategy, without_clones=True)
        for where, mutant in mutants(case, fault):
            if "copy" not in fault.__name__ and rng.random() > 0.15:
                continue
            verdict = prove_values(case.functional, mutant)
            visible = shows(case, mutant)
            count[f"{'shows' if visible else 'hidden'}, {verdict.word}"] += 1
            assert not visible or verdict.word != "ok", f"{where}\n{mutant.graph}"
    assert count["shows, FAILED"] > 10 * count["shows, not decided"], count


# -- what is not decided -----------------------------------------------------------------------------------


def test_what_cannot_be_followed_is_not_decided() -> None:
    functional, lowered = both(rows, square())
    wrong = copied(lowered)
    view = node(wrong, aten.select.int)
    view.target = aten.as_strided.default
    view.args = (view.args[0], [4], [1], 0)
    verdict = prove_values(functional, wrong)
    assert verdict.ok
    assert not verdict.decided
    assert str(verdict).startswith("values: not decided\n  select (aten.as_strided.default): no such view of a tensor")


def test_a_read_of_memory_without_content_is_no_proof() -> None:
    numbering, geometries = Numbering(), Geometries()
    memory = Contents(geometries, numbering)
    root = geometries.of(torch.empty(4, 4, device="meta"))
    half = geometries.of(root.tensor[::2])
    memory.store(half, numbering.whole(("half",), 32, "half"), 0)
    with pytest.raises(Undecided, match="never written"):
        memory.load(root)


# -- the numbers against memory that is written byte by byte -----------------------------------------------


def looked(rng: random.Random, tensor: Tensor) -> Tensor:
    """Some view of a tensor."""
    for _ in range(rng.randint(0, 3)):
        dim = rng.randrange(tensor.dim()) if tensor.dim() else 0
        kind = rng.randrange(5)
        if kind == 0 and tensor.dim():
            tensor = tensor.select(dim, rng.randrange(tensor.size(dim)))
        elif kind == 1 and tensor.dim():
            start = rng.randrange(tensor.size(dim))
            end = rng.randint(start + 1, tensor.size(dim))
            tensor = aten.slice.Tensor(tensor, dim, start, end, rng.choice([1, 1, 2]))
        elif kind == 2 and tensor.dim() > 1:
            tensor = tensor.transpose(0, dim)
        elif kind == 3 and tensor.is_contiguous():
            tensor = tensor.view(-1)
        elif kind == 4 and tensor.dim() and tensor.size(-1) > 1:
            tensor = tensor.unfold(-1, 2, 1)
    return tensor


@pytest.mark.parametrize("most_pieces", [1 << 20, 8], ids=["piece by piece", "by regions"])
def test_loads_against_bytes(most_pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load has the number of the bytes that were stored last, however they came there."""
    monkeypatch.setattr(contents_of, "MOST_PIECES", most_pieces)
    for seed in range(60):
        rng = random.Random(seed)
        numbering, geometries = Numbering(), Geometries()
        base = torch.empty([rng.randint(1, 5) for _ in range(rng.randint(1, 3))], device="meta")
        count = base.numel() * 4
        memory, plain = Contents(geometries, numbering), torch.arange(count)
        memory.store(geometries.of(base), numbering.whole(("base",), count, "base"), 0)

        def window(place: Geometry, plain: Tensor = plain) -> Tensor:
            return plain.as_strided([*place.size, 4], [*(s * 4 for s in place.stride), 1], place.lo)

        for age in range(1, 9):
            place = geometries.of(looked(rng, base))
            if not place.overlaps_itself:
                number = numbering.whole((age,), place.tensor.numel() * 4, "some")
                memory.store(place, number, age)
                window(place).copy_(numbering.codes(number, 1).view(window(place).shape))
            place = geometries.of(looked(rng, base))
            assert memory.load(place) is numbering.of_codes(window(place).flatten(), 1), (seed, age, str(place))


# -- where it is shown -------------------------------------------------------------------------------------


def test_the_option_adds_a_verdict() -> None:
    function = compile_function(rows, (square(),), {"prove": True})
    assert [str(v) for v in function.compiled.verdicts] == ["well-formed: ok", "ownership: ok", "values: ok"]
    assert not compile_function(rows, (square(),)).compiled.verdicts[2:]
    with pytest.raises(ReinkError, match="the option prove cannot be 1"):
        Options.of({"prove": 1})


def test_each_graph_inside_has_a_proof() -> None:
    def branch(x: Tensor) -> Any:
        def double(y: Tensor) -> Tensor:
            y.mul_(2)
            return y.sum()

        def rest(y: Tensor) -> Tensor:
            y[0].add_(1)
            return y.sum()

        return torch.cond(x.sum() > 0, double, rest, (x,))

    report = reink_report(branch)
    assert [v.word for v in report.verdicts if v.check == "values"] == ["ok", "ok", "ok"]


def reink_report(function: Callable[..., Any]) -> Report:
    """The report of the one graph of a program."""
    found: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_graph(module, inputs, Options.of({"prove": True}), found.append)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True)(square())
    return found[0].compiled[0].report()  # type: ignore[no-any-return]


def test_a_refuted_program_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reink.pipeline, "prove_values", lambda *_: Verdict("values", False, ("result 0 is wrong",)))
    function = compile_function(rows, (square(),), {"prove": True})
    assert function.compiled.fallback == "values check failed: result 0 is wrong"
    assert function.compiled.runs is function.compiled.captured
    x = square()
    assert flat(function(x))[0] == 32


def test_a_program_that_is_not_decided_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    unsure = Verdict("values", True, ("it is too large",), decided=False)
    monkeypatch.setattr(reink.pipeline, "prove_values", lambda *_: unsure)
    compiled = compile_function(rows, (square(),), {"prove": True}).compiled
    assert not compiled.fallback
    assert compiled.runs is compiled.lowered
    report = Report.from_json(compiled.report().to_json())
    assert report.verdicts[-1].word == "not decided"
    answer = Verification("rows", "v2", "no_grad", (Run("as given", "ok", graphs=1, checks=(unsure,)),))
    assert answer.ok
    assert str(answer.checks()[0]) == "values: not decided\n  it is too large"
