"""``codegen="inductor"``: Inductor generates the code, and what reink proved stays true. Eager PyTorch is the judge."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from corpus import PROGRAMS, Program
from support.judge import allocated_bytes, compare
from support.library import LONG
from support.operators import ops
from torch import Tensor
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config, cpp_builder, metrics

import reink
from reink.backends.mutable_call import Decoded
from reink.errors import refusal_in
from reink.options import Options

CLOSE = 1e-4

STATIC = [p for p in PROGRAMS if not p.handed_over and not p.may_refuse and not p.dynamic_dims and p.fullgraph]


@pytest.fixture(autouse=True)
def _fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch._dynamo.reset()
    with config.patch(compile_threads=1):
        yield


def generated(fn: Callable[..., Any], **options: Any) -> Any:
    return reink.compile(fn, codegen="inductor", **options)


def judged(fn: Callable[..., Any], make_args: Callable[[], tuple[Any, ...]], calls: int = 1) -> Any:
    """`fn` compared with eager; what runs it."""
    made: list[Any] = []

    def factory(subject: Callable[..., Any]) -> Any:
        made.append(generated(subject))
        return made[-1]

    compare(fn, make_args, factory, calls=calls, tolerance=CLOSE)
    return made[0]


def _pure(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x @ y, -1) * 2


def _whole_input(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).add_(y)
    return x.sin()


def _part_of_an_input(x: Tensor, y: Tensor) -> Tensor:
    x[1].copy_(y[0] + x[2])
    x[:, 3:5].mul_(y[:, :2])
    return x + y


def _waiting_reader(x: Tensor, y: Tensor) -> Tensor:
    """Inductor would compute `old` after the call that changes what it reads."""
    old = x + 1
    ops.bump(x[1:])
    return old * 2 + x


def _clone_of_what_is_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    old = x.clone()
    ops.bump(x[2])
    return old, x * 2


def _shifted_within_itself(x: Tensor, y: Tensor) -> Tensor:
    x[1:].copy_(x[:-1] * 2)
    return x.sum()


def _values_from_the_written(x: Tensor, y: Tensor) -> Tensor:
    x.index_put_((torch.tensor([2, 0, 1]),), x[:3] + 1)
    return x * y


def _other_dtype(x: Tensor, y: Tensor) -> Tensor:
    before = x.sin()
    x.view(torch.int32)[0].bitwise_xor_(1 << 20)
    return before + x


def _strided_by_offset(x: Tensor, y: Tensor) -> Tensor:
    x.as_strided((2, 2), (8, 1), x.storage_offset() + 3).add_(y[:2, :2])
    return x * 2


def _reads_elsewhere_after_a_call(x: Tensor, y: Tensor) -> Tensor:
    """Inductor would fuse the second write of `x` with a reader of other elements of it."""
    ops.bump(x[0])
    diagonal, turned = x.diagonal(), x.t()
    turned -= diagonal.remainder(7)
    return turned.clone()


def _made_inside(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    ops.bump(z[1])
    z[2:].add_(1)
    return z.exp()


def _returns_views(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x.add_(1)
    z = y * 2
    return x[1], z, z.t()


PAIRS = [
    _pure,
    _whole_input,
    _part_of_an_input,
    _waiting_reader,
    _clone_of_what_is_written,
    _shifted_within_itself,
    _values_from_the_written,
    _other_dtype,
    _strided_by_offset,
    _reads_elsewhere_after_a_call,
    _made_inside,
    _returns_views,
]


def _pair() -> tuple[Tensor, Tensor]:
    x = torch.arange(128.0).reshape(16, 8)[4:12] / 7
    return x, torch.linspace(-1, 1, 64).reshape(8, 8)


def _overlapping_complex() -> tuple[Tensor, Tensor]:
    memory = torch.arange(1, 20).to(torch.complex64)
    return memory[4:].as_strided((3, 2, 1), (2, 1, 1)), memory[4:].as_strided((3, 3), (3, 1))


def _writes_both(x: Tensor, y: Tensor) -> Tensor:
    ops.bump_maybe(x.permute((1, 0, 2)), y)
    return x


def test_complex_inputs_that_overlap_at_an_offset() -> None:
    """PyTorch's own kernel makes a strided view of them, and counts from the start of the storage."""
    assert judged(_writes_both, _overlapping_complex).reports[0].codegen == "inductor"


def test_a_view_of_what_a_call_returns_is_decomposed() -> None:
    def turned(x: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        made = ops.spill(x, sink)
        return made.t(), sink

    assert judged(turned, lambda: (torch.ones(4, 3), torch.zeros(4, 3))).reports[0].codegen == "inductor"


@pytest.mark.parametrize("fn", PAIRS, ids=lambda f: f.__name__.strip("_"))
def test_equal_to_eager(fn: Callable[..., Any]) -> None:
    report = judged(fn, _pair, calls=2).reports[0]
    assert report.codegen == "inductor"
    assert not report.fallback


@pytest.mark.skipif(not LONG, reason="some seconds of C++ compiler for each program")
@pytest.mark.parametrize("program", STATIC, ids=str)
def test_the_corpus(program: Program) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=program.scalars):
        compare(
            program.build(),
            program.make_args,
            generated,
            calls=program.calls,
            grad_mode=program.grad_mode,
            state=program.state,
            reset=program.reset,
            tolerance=CLOSE,
        )


def test_sizes_may_be_symbolic() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        x[1].add_(y)
        ops.bump(x[2])
        return x * 2

    run = torch.compile(step, backend="reink", options={"codegen": "inductor"}, dynamic=True)
    for size in (4, 7):
        x, y = torch.arange(size * 6.0).reshape(size, 6), torch.ones(6)
        other = x.clone()
        assert torch.allclose(run(x, y), step(other, y))
        assert torch.equal(x, other)


def test_inputs_that_overlap_are_a_variant_of_their_own() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        ops.bump(x)
        return x + y

    def apart() -> tuple[Tensor, Tensor]:
        return torch.zeros(6), torch.ones(6)

    def shifted() -> tuple[Tensor, Tensor]:
        base = torch.arange(8.0)
        return base[:6], base[2:]

    run = generated(step)
    for make in (apart, shifted):
        mine, theirs = make(), make()
        assert torch.equal(run(*mine), step(*theirs))
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert [r.codegen for r in run.reports] == ["inductor", "inductor"]


def test_random_numbers_are_those_of_eager() -> None:
    def step(x: Tensor) -> Tensor:
        x[0].normal_()
        return torch.rand_like(x) + torch.nn.functional.dropout(x, 0.5)

    judged(step, lambda: (torch.ones(4, 8),))


# ---- what it costs -------------------------------------------------------------------------------------------


def _attention_step(x: Tensor, cache: Tensor, position: Tensor) -> Tensor:
    cache[0].index_copy_(0, position, x)
    return (x @ cache[0].T).sin() @ cache[1]


def _kernels(fn: Callable[..., Any], args: tuple[Any, ...], **how: Any) -> int:
    torch._dynamo.reset()
    metrics.reset()
    with torch.no_grad(), config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        torch.compile(fn, **how)(*args)
    return metrics.generated_kernel_count


def test_as_few_kernels_as_stock_and_no_byte_of_the_cache() -> None:
    args = (torch.randn(1, 16), torch.zeros(2, 512, 16), torch.tensor([3]))
    mine = _kernels(_attention_step, args, backend="reink", options={"codegen": "inductor"})
    assert 0 < mine <= _kernels(_attention_step, args, backend="inductor")
    run = generated(_attention_step)
    with torch.no_grad():
        run(*args)
    assert allocated_bytes(run, args).total < 512 * 16 * 4
    assert run.reports[0].bytes_cloned == 0


def test_arguments_that_share_memory_reach_an_operator_as_they_are() -> None:
    seen: list[bool] = []
    library = torch.library.Library("reink_inductor_test", "DEF")
    library.define("look(Tensor(a!) x, Tensor y) -> ()")
    library.impl(
        "look",
        lambda x, y: seen.append(x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()),
        "CompositeExplicitAutograd",
    )
    torch.library.register_fake("reink_inductor_test::look", lambda x, y: None, lib=library)

    def step(x: Tensor) -> Tensor:
        torch.ops.reink_inductor_test.look(x[1:3], x[2:])
        return x * 2

    with torch.no_grad():
        generated(step)(torch.ones(4, 4))
    assert seen == [True]


# ---- where no code can be generated --------------------------------------------------------------------------


def test_a_graph_that_inductor_cannot_be_given_runs_by_pytorchs_kernels(caplog: pytest.LogCaptureFixture) -> None:
    def step(flag: Tensor, x: Tensor) -> Tensor:
        def write(x: Tensor) -> Tensor:
            x[0].add_(1)
            return x * 2

        return torch.cond(flag, write, lambda x: x + 1, (x,))  # type: ignore[no-any-return]

    with caplog.at_level(logging.INFO, logger="reink"):
        report = judged(step, lambda: (torch.tensor(True), torch.ones(3))).reports[0]
    assert report.codegen == "eager"
    assert any(v.check == "code generation" and not v.decided for v in report.verdicts)
    assert sum("no code is generated" in r.message for r in caplog.records) == 1


def test_without_a_compiler_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise cpp_builder.exc.InvalidCxxCompiler  # type: ignore[attr-defined]

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    with config.patch(force_disable_caches=True), pytest.raises(Exception) as caught, torch.no_grad():  # noqa: PT011
        generated(lambda x: x.sin() * 3)(torch.ones(7))
    refusal = refusal_in(caught.value)
    assert refusal is not None
    assert refusal.code == "no-compiler"
    assert 'codegen="eager"' in refusal.do


def test_an_operator_that_swaps_the_storage_is_refused() -> None:
    def swap(x: Tensor, y: Tensor) -> None:
        x.set_(y)  # type: ignore[call-overload]

    library = torch.library.Library("reink_inductor_swap", "DEF")
    library.define("swap(Tensor(a!) x, Tensor y) -> ()")
    library.impl("swap", swap, "CompositeExplicitAutograd")
    torch.library.register_fake("reink_inductor_swap::swap", lambda x, y: None, lib=library)

    def step(x: Tensor, y: Tensor) -> Tensor:
        torch.ops.reink_inductor_swap.swap(x, y * 3)
        return x / 3

    with pytest.raises(Exception) as caught, torch.no_grad():  # noqa: PT011
        generated(step)(torch.zeros(3), torch.ones(3))
    refusal = refusal_in(caught.value)
    assert refusal is not None
    assert refusal.code == "metadata-mutation"


# ---- the options ---------------------------------------------------------------------------------------------


def test_it_is_the_default() -> None:
    assert Options().codegen == "inductor"
    fast = reink.compile(lambda x: x.add_(1) * 2)
    with torch.no_grad():
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 4.0))
    assert fast.reports[0].codegen == "inductor"


def test_a_mode_of_torch_compile() -> None:
    options = Options.of({"codegen": "inductor", "mode": "reduce-overhead"})
    assert options.mode == "reduce-overhead"
    x = torch.ones(4, 4)
    with torch.no_grad():
        assert torch.equal(generated(lambda x: x.add_(1) * 2, mode="reduce-overhead")(x), torch.full((4, 4), 4.0))
    assert torch.equal(x, torch.full((4, 4), 2.0))


def test_calls_are_text_that_can_be_cached() -> None:
    """What Inductor hashes and stores of a call is its text: nothing of this process."""
    how = json.dumps({"op": "aten.add_.Tensor", "args": [{"written": 0}, {"read": 0}], "kwargs": {"alpha": 2}})
    call = Decoded(how)
    args, kwargs = call.arguments(["w"], ["r"], [])
    assert (call.op, args, kwargs) == (torch.ops.aten.add_.Tensor, ["w", "r"], {"alpha": 2})


def test_code_is_found_in_the_cache_again() -> None:
    def step(x: Tensor) -> Tensor:
        ops.bump(x[0])
        return x.cos() * 5

    with torch.no_grad(), config.patch(fx_graph_cache=True):
        for _ in range(2):
            torch._dynamo.reset()
            counters.clear()
            x = torch.zeros(3, 5)
            generated(step)(x)
            assert torch.equal(x[0], torch.ones(5))
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
