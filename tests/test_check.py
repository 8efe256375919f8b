"""The checker accepts right programs and refuses every injected fault that shows on concrete inputs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.fx
from torch import Tensor

from reink.check import check_form, check_ownership
from reink.check.geometry import Geometries, Geometry
from reink.core.program import Form, InputMutation, MutationSignature, OutputKind, OutputSpec, Program, copied
from reink.core.torch_internals import FakeTensorMode, ShapeEnv, trace
from reink.fuzz.injection import FAULTS, Fault
from reink.passes.functionalize import functionalize
from reink.passes.lower import lower
from reink.passes.reinplace import reinplace

Node = torch.fx.Node
aten = torch.ops.aten


@torch.library.custom_op("reink_check::inc", mutates_args={"x"})
def inc(x: Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("reink_check::swap", mutates_args={"x", "y"})
def swap(x: Tensor, y: Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


@torch.library.custom_op("reink_check::push", mutates_args={"x"})
def push(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x.sum(0) + y.sum(0)


@push.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(x.shape[1:])


# -- programs ----------------------------------------------------------------------------------------------


def view_chain(x: Tensor) -> Any:
    y = x.view(2, 8)
    y.add_(1)
    y.relu_()
    return x * 2


def scatters(x: Tensor) -> Any:
    z = x[0]
    z[1:2].mul_(3)
    a, b = x.split(2)
    a.copy_(b)
    x[2] = x[1]
    x.diagonal().add_(1)
    x.t()[1].mul_(x[0, 0])
    return x * 2, x.view(16), z


def custom_rows(x: Tensor) -> Any:
    swap(x[0], x[1])
    inc(x[2])
    r = push(x[1:3], x[0:1])
    return r + x[3]


def late_read(x: Tensor) -> Any:
    old = x[1].clone()
    x.mul_(2)
    inc(x[0])
    return old + x[1], old * 2


def save_of_a_column(x: Tensor) -> Any:
    y = x + 1
    old = y[:, 1].clone()
    y.mul_(x)
    return y, y[:, 1] - old


def detached_base(x: Tensor) -> Any:
    y = x.sin()
    old = y.clone()
    inc(y[0])
    inc(y[2])
    return y.sum() + old, old


def untouched_input(x: Tensor) -> Any:
    y = x.clone()
    inc(y[1:3])
    y[0].add_(x[1])
    return y, x + 1


def epilogue(x: Tensor) -> Any:
    t = x.sin() + 1
    x.copy_(t.t())
    return t - x


def two_results(x: Tensor) -> Any:
    v, i = x.sort(0)
    v[0].add_(x[1])
    x.copy_(v)
    return v, i, v[1:], x[0]


def outputs_share(x: Tensor) -> Any:
    y = x + 1
    inc(y[1])
    return y[0], y, y.t(), x[1:, 1:]


def mixed_dtypes(x: Tensor) -> Any:
    n = (x * 4).to(torch.int32)
    n.clamp_(max=3)
    m = x > 0
    x.mul_(m)
    x[0].copy_(n[1])
    f = n.view(torch.float32)
    return n + 1, f.view(torch.int32)[0] * 2


def loop(x: Tensor) -> Any:
    total = x.new_zeros(4)
    for k in range(4):
        x[k].add_(total)
        total.add_(x[k])
    return total


def strided_parts(x: Tensor) -> Any:
    x[::2].add_(x[1::2])
    x[:, 1::2].mul_(2)
    w = x.unfold(0, 2, 2)
    w[0].add_(1)
    return x.as_strided((2, 2), (5, 1)) + 0


def effects(x: Tensor) -> Any:
    r = torch.rand(4)
    x[0].add_(r)
    s = torch.rand(4)
    x[1].sub_(s)
    return r - s


def snapshot(x: Tensor) -> Any:
    old = x.clone()
    x.mul_(2)
    inc(x[1:3])
    r = push(old[0:2], x[0:1])
    return r, old


def overwritten(x: Tensor) -> Any:
    y = x[0:2].clone()
    x[0:2] = x[2:4]
    x[2:4] = y
    return x.sum(0)


PROGRAMS: list[Callable[[Tensor], Any]] = [
    view_chain,
    scatters,
    custom_rows,
    late_read,
    save_of_a_column,
    detached_base,
    untouched_input,
    epilogue,
    two_results,
    outputs_share,
    mixed_dtypes,
    loop,
    strided_parts,
    effects,
    overwritten,
    snapshot,
]


def flat(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def captured(function: Callable[[Tensor], Any], *inputs: Tensor, symbolic: bool = False) -> Program:
    mode = FakeTensorMode(shape_env=ShapeEnv() if symbolic else None)
    fake = [mode.from_tensor(i) for i in inputs]
    return Program(trace(lambda *a: flat(function(*a)), fake), Form.MUTABLE)


def drop_clones(functional: Program) -> None:
    """A pass that any pure graph allows: a clone is its source. Leaves late reads of old versions."""
    for node in list(functional.graph.nodes):
        if node.target is aten.clone.default and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
            functional.graph.erase_node(node)


class Case(NamedTuple):
    """A program in pure and in lowered form, and the order of the plan."""

    name: str
    functional: Program
    order: list[Node]
    lowered: Program


def made(function: Callable[[Tensor], Any], strategy: str, without_clones: bool, symbolic: bool = False) -> Case:
    functional = functionalize(captured(function, torch.ones(4, 4), symbolic=symbolic), strategy=strategy)
    if without_clones:
        drop_clones(functional)
    plan = reinplace(functional)
    name = f"{function.__name__}-{strategy}{'-late' if without_clones else ''}"
    return Case(name, functional, [s.node for s in plan.steps], lower(plan))


def cases() -> Iterator[Case]:
    for function, strategy, late in itertools.product(PROGRAMS, ("v1", "v2"), (False, True)):
        yield made(function, strategy, late)


def inputs() -> list[Tensor]:
    return [
        torch.arange(16.0).view(4, 4) / 7 - 1,
        torch.randn(4, 4, generator=torch.Generator().manual_seed(3)),
    ]


def observed(run: Callable[..., Any], value: Tensor) -> list[Any]:
    """What a caller can see: results, the input afterwards, and who shares memory with whom."""
    torch.manual_seed(0)
    given = value.clone()
    results = flat(run(given))
    tensors = [r for r in (*results, given) if isinstance(r, Tensor)]
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    sharing = [storages.index(s) for s in storages]
    layouts = [(t.size(), t.stride(), t.dtype) for t in tensors]
    return [[t.clone() for t in tensors], sharing, layouts]


def same(a: list[Any], b: list[Any]) -> bool:
    if a[1:] != b[1:]:
        return False
    return all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))


# -- right programs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("strategy", ["v1", "v2"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_right_programs_are_accepted(function: Callable[[Tensor], Any], strategy: str, late: bool) -> None:
    case = made(function, strategy, late)
    for value in inputs():
        assert same(observed(case.lowered.module, value), observed(function, value))
    assert str(check_form(case.functional)) == "functional: ok"
    assert str(check_form(case.lowered)) == "well-formed: ok"
    assert str(check_ownership(case.functional, case.order, case.lowered)) == "ownership: ok"


@pytest.mark.parametrize("function", [view_chain, late_read, loop], ids=lambda f: f.__name__)
def test_symbolic_sizes_are_checked_at_their_hints(function: Callable[[Tensor], Any]) -> None:
    case = made(function, "v2", True, symbolic=True)
    assert str(check_ownership(case.functional, case.order, case.lowered)) == "ownership: ok"


# -- faults ------------------------------------------------------------------------------------------------


def mutants(case: Case, fault: Fault) -> Iterator[tuple[str, Program]]:
    """Every program with one `fault`."""
    for position, _ in enumerate(case.lowered.graph.nodes):
        for number in itertools.count():
            mutant = copied(case.lowered)
            node = list(mutant.graph.nodes)[position]
            apply = next(itertools.islice(fault(mutant.graph, node), number, None), None)
            if apply is None:
                break
            where = f"{case.name}: {fault.__name__} {number} at {node.name}"
            apply()
            yield where, mutant


def shows(case: Case, mutant: Program) -> bool:
    """Whether a caller can see the fault on one of the inputs."""
    interpreter = torch.fx.Interpreter(mutant.module, garbage_collect_values=False)
    interpreter.extra_traceback = False
    for value in inputs():
        try:
            found = observed(interpreter.run, value)
        except Exception:
            return True
        if not same(found, observed(case.lowered.module, value)):
            return True
    return False


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_faults_that_show_are_caught(fault: Fault) -> None:
    """Each fault at each place of each program; a fault that changes nothing may be accepted."""
    count: Counter[str] = Counter()
    missed = []
    for case in cases():
        for where, mutant in mutants(case, fault):
            refused = not check_ownership(case.functional, case.order, mutant).ok
            visible = shows(case, mutant)
            count[f"{'shows' if visible else 'hidden'}, {'caught' if refused else 'accepted'}"] += 1
            if visible and not refused:
                missed.append(f"{where}\n{mutant.graph}")
    print(fault.__name__, dict(count))
    assert count["shows, caught"] >= 10, count
    assert not missed, "\n".join([str(count), *missed[:3]])


# -- what a refusal says -----------------------------------------------------------------------------------


def edited(case: Case, change: Callable[[torch.fx.Graph], None]) -> tuple[bool, str]:
    mutant = copied(case.lowered)
    change(mutant.graph)
    verdict = check_ownership(case.functional, case.order, mutant)
    return verdict.ok, "\n".join(verdict.details)


def named(graph: torch.fx.Graph, target: Any, number: int = 0) -> Node:
    found: Node = [n for n in graph.nodes if n.target is target][number]
    return found


def test_a_lost_copy_is_told_as_value_place_and_writer() -> None:
    case = made(late_read, "v2", True)

    def lose(graph: torch.fx.Graph) -> None:
        clone = named(graph, aten.clone.default)
        clone.replace_all_uses_with(clone.args[0])  # type: ignore[arg-type]
        graph.erase_node(clone)

    ok, words = edited(case, lose)
    assert not ok
    assert "reads select in select" in words
    assert "select was there, and mul_ (aten.mul_.Tensor) overwrote it" in words


def test_swapped_writes_are_refused() -> None:
    def writes(x: Tensor) -> Any:
        x.add_(1)
        x.mul_(2)
        return x + 0

    case = made(writes, "v2", False)
    ok, _ = edited(case, lambda g: named(g, aten.mul_.Tensor).append(named(g, aten.add_.Tensor)))
    assert not ok


def test_swapped_effects_are_refused() -> None:
    case = made(lambda x: torch.rand(4) - torch.rand(4) + x, "v2", False)
    ok, words = edited(case, lambda g: named(g, aten.rand.default, 1).append(named(g, aten.rand.default)))
    assert not ok
    assert "effects out of order" in words


def test_a_lost_epilogue_names_the_input() -> None:
    case = made(epilogue, "v2", False)
    ok, words = edited(case, lambda g: g.erase_node(named(g, aten.copy_.default)))
    assert not ok
    assert "arg0_1" in words


def test_writes_of_inputs_that_do_not_change_are_refused() -> None:
    case = made(lambda x: torch.relu(x + 1), "v2", False)

    def write(graph: torch.fx.Graph) -> None:
        add = named(graph, aten.add.Tensor)
        add.target = aten.add_.Tensor
        add.meta["reink_role"] = "in place"

    ok, words = edited(case, write)
    assert not ok
    assert "an input that the program does not write" in words


def test_a_node_without_a_claim_is_refused() -> None:
    case = made(view_chain, "v2", False)

    def add(graph: torch.fx.Graph) -> None:
        with graph.inserting_before(named(graph, aten.mul.Tensor)):
            graph.call_function(aten.zero_.default, (named(graph, aten.view.default),))

    ok, words = edited(case, add)
    assert not ok
    assert "carries out nothing" in words


def test_results_that_share_memory_where_eager_has_two_are_refused() -> None:
    case = made(lambda x: (x + 1, x + 2), "v2", False)
    assert check_ownership(case.functional, case.order, case.lowered).ok
    ok, words = edited(case, lambda g: g.output_node().replace_input_with(*named_adds(g)))
    assert not ok
    assert "result" in words


def named_adds(graph: torch.fx.Graph) -> tuple[Node, Node]:
    return named(graph, aten.add.Tensor, 1), named(graph, aten.add.Tensor, 0)


def test_a_program_that_cannot_be_followed_is_refused() -> None:
    case = made(view_chain, "v2", False)
    verdict = check_ownership(case.functional, [], case.lowered)
    assert not verdict.ok
    assert "not in the order" in verdict.details[0]


def rows_written(whole: Tensor, count: int) -> tuple[bool, str]:
    """The verdict on a program that adds to `count` rows in place, and only then carries them back."""
    graph, pure, mode = torch.fx.Graph(), torch.fx.Graph(), FakeTensorMode()
    value = mode.from_tensor(whole)
    with mode:
        row = torch.ones(whole.shape[1])
    pairs = [pure.placeholder("x"), graph.placeholder("x")]
    pairs[0].meta["val"] = value
    order, updates, version = [], [], pairs[0]
    for k in range(count):
        view = pure.call_function(aten.select.int, (pairs[0], 0, k))
        update = pure.call_function(aten.add.Tensor, (view, 1))
        order += [view, update]
        updates.append(update)
        seen = graph.call_function(aten.select.int, (pairs[1], 0, k))
        write = graph.call_function(aten.add_.Tensor, (seen, 1))
        seen.meta.update(reink_of=update, reink_role="view")
        write.meta.update(reink_of=update, reink_role="in place")
    for k, update in enumerate(updates):
        version = pure.call_function(aten.select_scatter.default, (version, update, 0, k))
        version.meta["val"] = value
        order.append(version)
    for node in pure.nodes:
        node.meta.setdefault("val", row)
    pure.output((version,))
    graph.output(())
    signature = MutationSignature(("x",), (), (InputMutation(0, 0),))
    functional = Program(torch.fx.GraphModule({}, pure), Form.FUNCTIONAL, signature)
    lowered = Program(torch.fx.GraphModule({}, graph), Form.LOWERED, signature)
    verdict = check_ownership(functional, order, lowered)
    return verdict.ok, "\n".join(verdict.details)


def test_rows_may_be_carried_back_after_all_are_written() -> None:
    assert rows_written(torch.ones(6, 2), 6) == (True, "")


def test_too_many_fragments_are_refused() -> None:
    ok, words = rows_written(torch.ones(600, 2), 600)
    assert not ok
    assert "too many fragments" in words


def test_a_write_that_shows_in_other_elements_is_refused() -> None:
    """All rows of an expanded tensor are one: a write of the first is a write of every one."""
    ok, words = rows_written(torch.ones(2).expand(4, 2), 1)
    assert not ok
    assert "share memory" in words


# -- form --------------------------------------------------------------------------------------------------


def functional_program(fill: Callable[[torch.fx.Graph, Node], Any], outputs: int) -> Program:
    graph = torch.fx.Graph()
    graph.output(fill(graph, graph.placeholder("x")))
    specs = tuple(OutputSpec(OutputKind.FRESH) for _ in range(outputs))
    module = torch.fx.GraphModule({}, graph)
    return Program(module, Form.FUNCTIONAL, MutationSignature(("x",), specs))


ILL_FORMED: dict[str, tuple[Callable[[torch.fx.Graph, Node], Any], int, str]] = {
    "write": (lambda g, x: (g.call_function(aten.add_.Tensor, (x, 1)),), 1, "writes a tensor"),
    "custom write": (
        lambda g, x: (x, g.call_function(torch.ops.reink_check.inc.default, (x,)))[:1],
        1,
        "writes a tensor",
    ),
    "metadata": (lambda g, x: (g.call_function(aten.t_.default, (x,)),), 1, "writes a tensor"),
    "method": (lambda g, x: (g.call_method("relu", (x,)),), 1, "call_method"),
    "arity": (lambda g, x: (x, x), 1, "2 results, the signature has 1"),
}


@pytest.mark.parametrize("name", ILL_FORMED)
def test_ill_formed_graphs_are_told(name: str) -> None:
    fill, outputs, words = ILL_FORMED[name]
    verdict = check_form(functional_program(fill, outputs))
    assert not verdict.ok
    assert words in verdict.details[0]


def test_pure_graphs_are_well_formed() -> None:
    verdict = check_form(functional_program(lambda g, x: (g.call_function(aten.add.Tensor, (x, 1)),), 1))
    assert str(verdict) == "functional: ok"


def test_late_inputs_are_told() -> None:
    program = functional_program(lambda g, x: (g.call_function(aten.relu.default, (x,)),), 1)
    nodes = list(program.graph.nodes)
    nodes[1].append(nodes[0])
    verdict = check_form(program)
    assert not verdict.ok
    assert "which is not defined before it" in verdict.details[0]


# -- byte sets ---------------------------------------------------------------------------------------------


def bytes_of(geometry: Geometry) -> set[int]:
    steps = [range(0, n * s, s) if s else [0] for n, s in geometry.dims]
    return set() if geometry.is_empty else {geometry.lo + sum(at) for at in itertools.product(*steps)}


def some_geometry(draw: random.Random, geometries: Geometries) -> Geometry:
    rank = draw.randrange(4)
    size = [draw.choice([1, 2, 3, 4, 0 if draw.random() < 0.1 else 5]) for _ in range(rank)]
    stride = [draw.choice([0, 1, 2, 3, 4, 6, 8, 12, 24]) for _ in range(rank)]
    dtype = draw.choice([torch.uint8, torch.int16, torch.float32])
    room = torch.empty(4096, dtype=dtype, device="meta")
    return geometries.of(room.as_strided(size, stride, draw.randrange(40)))


def test_byte_sets_agree_with_sets() -> None:
    draw, geometries, seen = random.Random(5), Geometries(), Counter[tuple[bool, bool]]()
    for _ in range(6000):
        a, b = some_geometry(draw, geometries), some_geometry(draw, geometries)
        first, second = bytes_of(a), bytes_of(b)
        assert geometries.overlap(a, b) == bool(first & second), f"{a} / {b}"
        assert geometries.inside(a, b) == (first <= second), f"{a} / {b}"
        if first:
            assert (a.lo, a.hi) == (min(first), max(first) + 1)
            assert not a.is_solid or len(first) == a.hi - a.lo
        spread = a.tensor.numel() * a.dtype.itemsize
        assert a.overlaps_itself == (len(first) != spread), str(a)
        seen[bool(first & second), first <= second] += 1
    assert min(seen.values()) > 100
    assert len(seen) == 4


def test_large_byte_sets_whose_strides_nest_are_exact() -> None:
    geometries = Geometries()
    big = torch.empty(1 << 16, 1 << 14, device="meta")
    left, right = geometries.of(big[:, : 1 << 13]), geometries.of(big[:, 1 << 13 :])
    odd, even = geometries.of(big[1::2]), geometries.of(big[::2, ::4])
    assert not geometries.overlap(left, right)
    assert not geometries.overlap(odd, even)
    assert geometries.overlap(left, even)
    assert geometries.inside(geometries.of(big[5:7, 3:9]), left)
    assert not geometries.inside(geometries.of(big[5:7, 3 : 1 << 14]), left)


def test_undecided_byte_sets_may_overlap_and_are_not_inside() -> None:
    geometries = Geometries()
    room = torch.empty(1 << 30, dtype=torch.uint8, device="meta")
    a = geometries.of(room.as_strided((1 << 14, 1 << 14), (30011, 7), 0))
    b = geometries.of(room.as_strided((1 << 14, 1 << 14), (30013, 11), 3))
    assert geometries.overlap(a, b)
    assert not geometries.inside(a, b)
