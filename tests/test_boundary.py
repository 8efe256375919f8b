"""What the memory of the caller demands: bases with gaps, version counters, other inputs, other storages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
from support.judge import compare
from support.library import compiled, piped
from support.operators import ops
from test_passes import drop_clones
from torch import Tensor

import reink
from reink.backends.dynamo import compile_graph
from reink.core.boundary import alias_pattern, members_of
from reink.errors import ReinkError
from reink.options import Options

aten = torch.ops.aten


def _three(x: Tensor, y: Tensor, z: Tensor) -> None:
    x.add_(1)
    y.mul_(2)
    z.add_(5)


def _in_a_gap() -> tuple[Tensor, Tensor, Tensor]:
    """The first two are one tensor; the third lies between its elements."""
    s = torch.zeros(6)
    return s[0:6:2], s[0:6:2], s[1:2]


def _copy_the_base(graph: torch.fx.Graph) -> None:
    """Makes the new base in other memory, so that it has to be copied back."""
    for node in list(graph.nodes):
        if node.target is aten.as_strided_scatter.default:
            with graph.inserting_after(node):
                copied = graph.call_function(aten.clone.default, (node,))
            node.replace_all_uses_with(copied, lambda user, new=copied: user is not new)


def test_a_base_takes_in_the_inputs_in_its_gaps() -> None:
    assert members_of(alias_pattern(_in_a_gap(), (0, 1, 2))) == {0, 1, 2}
    apart = torch.zeros(6)
    assert alias_pattern((apart[0::2], apart[1::2]), (0, 1)) == ()


def test_a_base_that_begins_at_a_multiple_of_an_element_takes_in_what_lies_there() -> None:
    """It begins before its first member, and may be copied back as a whole."""
    storage = torch.zeros(48, dtype=torch.int16)
    first, second, wide = storage[0], storage[2:20], storage.view(torch.int64)[2:8]
    assert members_of(alias_pattern((first, second, wide), (0, 2))) == {0, 1, 2}


@pytest.mark.parametrize("passes", [(), (_copy_the_base,)], ids=["in place", "copied back"])
def test_a_write_in_the_gap_of_another_base_is_kept(passes: tuple[Callable[..., None], ...]) -> None:
    with torch.no_grad():
        compare(_three, _in_a_gap, lambda fn: compiled(fn, passes=passes))
        compare(_three, _in_a_gap, lambda fn: reink.functionalize(fn, _in_a_gap()))


def test_a_fresh_output_stays_fresh_when_a_pass_drops_its_clone() -> None:
    fast = piped(lambda x: x.clone(), (torch.zeros(6)[::2],), passes=(drop_clones,))
    compare(lambda x: x.clone(), lambda: (torch.zeros(6)[::2],), lambda _: fast)
    assert not fast.compiled.fallback  # type: ignore[attr-defined]


def test_autograd_hears_of_writes_through_a_base() -> None:
    weight = torch.ones(8, requires_grad=True)
    grown = weight.exp()
    loss = grown.sum()
    fast = compiled(lambda x, y: (x.add_(1), y.mul_(2))[1].sum())
    with torch.no_grad():
        fast(grown[:6], grown[2:])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_memory_shared_across_storages_runs_as_written() -> None:
    def shared() -> tuple[Tensor, Tensor]:
        array = np.zeros(8, np.float32)
        return torch.from_numpy(array[0:4]), torch.from_numpy(array[2:6])

    def step(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        total: Tensor = y.mul_(2).sum()
        return total

    fast, (a, b), (c, d) = compiled(step), shared(), shared()
    assert torch.equal(fast(a, b), step(c, d))
    assert torch.equal(a, c)
    assert torch.equal(b, d)


def _scaled(x: Tensor, k: Any) -> Tensor:
    x.add_(k)
    product: Tensor = x * k
    return product


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((torch.zeros(3), 5), id="other number"),
        pytest.param((torch.zeros(6), 2), id="other size"),
        pytest.param((torch.zeros(6)[::2], 2), id="other strides"),
        pytest.param((torch.zeros(3, dtype=torch.int32), 2), id="other dtype"),
        pytest.param((torch.zeros(3), torch.tensor(2)), id="a tensor for a number"),
        pytest.param((torch.zeros(3),), id="fewer"),
    ],
)
def test_other_inputs_are_refused(args: tuple[Any, ...]) -> None:
    pure = reink.functionalize(_scaled, (torch.zeros(3), 2))
    with pytest.raises(ReinkError) as caught:
        pure(*args)
    assert caught.value.code == "other-inputs"
    assert caught.value.why


_CLOSED_OVER = torch.zeros(4)


def test_an_argument_that_is_memory_of_a_constant_is_refused() -> None:
    pure = reink.functionalize(lambda x: (x.add_(1), _CLOSED_OVER * 1)[1], (torch.zeros(4),))
    with pytest.raises(ReinkError) as caught:
        pure(_CLOSED_OVER[:])
    assert caught.value.code == "mutated-constant"


def _changes_dtype(graph: torch.fx.Graph) -> None:
    output = next(n for n in graph.nodes if n.op == "output")
    first = output.args[0][0]
    with graph.inserting_before(output):
        other = graph.call_function(aten._to_copy.default, (first,), {"dtype": torch.float64})
    output.args = ((other, *output.args[0][1:]),)


def _writes_through_python(graph: torch.fx.Graph) -> None:
    next(n for n in graph.nodes if n.target is aten.mul.Tensor).target = torch.Tensor.mul_


@pytest.mark.parametrize("bad", [_changes_dtype, _writes_through_python])
def test_a_pass_that_changes_results_or_writes_is_refused(bad: Callable[[torch.fx.Graph], None]) -> None:
    with pytest.raises(ReinkError) as caught:
        piped(lambda x: (x.add_(1) * 2, x.sum()), (torch.zeros(3),), passes=(bad,))
    assert caught.value.code == "pass-failed"


def _row_of_itself(x: Tensor, at: Tensor) -> Tensor:
    x[at] = x[1]
    return x


def _row_with_leading_ones(x: Tensor, at: Tensor) -> Tensor:
    x[at] = torch.ones(1, 1, 4)
    return x


@pytest.mark.parametrize("fn", [_row_of_itself, _row_with_leading_ones])
def test_a_row_is_written_at_a_position_that_is_a_tensor(fn: Callable[..., Tensor]) -> None:
    with torch.no_grad():
        compare(fn, lambda: (torch.arange(16.0).view(4, 4), torch.tensor(2)), compiled)


def test_an_empty_input_may_begin_anywhere() -> None:
    """Its strides say nothing of how far it reaches."""

    def program(x: Tensor, empty: Tensor) -> Any:
        x.add_(1)
        return empty.sum() + x

    def make_args() -> tuple[Tensor, ...]:
        return torch.arange(12.0).view(3, 4), torch.arange(40.0).as_strided((2, 0), (0, 6), 2)

    compare(program, make_args, lambda fn: piped(fn, make_args()))


def test_a_size_that_depends_on_data_reaches_a_mutable_operator() -> None:
    def program(x: Tensor) -> Any:
        return ops.bump_and_square(x[x > 2].view(-1)), x.add_(1)

    def make_args() -> tuple[Tensor, ...]:
        return (torch.arange(6.0),)

    compare(program, make_args, lambda fn: piped(fn, make_args()))


def _windows_and_a_weight(second: int) -> tuple[Tensor, ...]:
    memory = torch.arange(12.0)
    return memory[:4], memory[second : second + 4], torch.ones(4, requires_grad=True)


@pytest.mark.parametrize("order", [(6, 2), (2, 6)], ids=["apart first", "overlapping first"])
def test_a_graph_with_gradients_sees_inputs_that_overlap(order: tuple[int, int]) -> None:
    """Stock compiles for the way in which the inputs of the first call share memory, and takes it for fixed."""

    def program(x: Tensor, y: Tensor, weight: Tensor) -> Any:
        x.mul_(3)
        return (y * weight).sum(), x + 1

    makers = [lambda second=second: _windows_and_a_weight(second) for second in order]
    compare(program, makers[0], compiled, calls=makers[1:], grad_mode="grad")


def test_an_operator_that_reads_what_it_writes_is_kept_as_a_call() -> None:
    """Element by element that is harmless; ``index_put_`` sees rows that it has already written."""

    def program(x: Tensor) -> Tensor:
        x.mul_(x)
        return x[0:].index_put_((torch.tensor([2, 1, 0]),), x, accumulate=True)

    text = str(reink.functionalize(program, (torch.ones(3, 8)[:, ::2],)))
    assert "mul(x, x)" in text
    assert "auto_functionalized_v2(index_put_" in text


# --- inputs whose sizes or strides change ---------------------------------------------------------------


class _Graph(torch.nn.Module):
    """A program of two tensors, to be traced as it is written."""

    def __init__(self, program: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.program(x, y)


def _turns_one(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.t_()
    y.add_(1)
    return y + 1, x


def _turns_there_and_back(x: Tensor, y: Tensor) -> tuple[Tensor]:
    x.t_()
    total = y.sum(0)
    x.t_()
    return (total,)


def _square() -> Tensor:
    return torch.arange(9.0).view(3, 3)


def _apart() -> tuple[Tensor, Tensor]:
    return _square(), _square()


def _one_object() -> tuple[Tensor, Tensor]:
    x = _square()
    return x, x


def _one_layout() -> tuple[Tensor, Tensor]:
    x = _square()
    return x, x.view_as(x)


def _overlapping() -> tuple[Tensor, Tensor]:
    memory = torch.arange(12.0)
    return memory[:9].view(3, 3), memory[3:].view(3, 3)


PAIRS = {"apart": _apart, "one object": _one_object, "one layout": _one_layout, "overlapping": _overlapping}


@pytest.mark.parametrize("program", [_turns_one, _turns_there_and_back])
@pytest.mark.parametrize("first", PAIRS)
def test_a_graph_tells_one_object_from_two(program: Callable[..., Any], first: str) -> None:
    """Also between calls at the same addresses: whether two inputs are one object is no matter of memory."""
    makers = [PAIRS[name] for name in (first, *PAIRS, "one object", "one layout", "one object")]

    def factory(fn: Callable[..., Any]) -> Callable[..., Any]:
        return compile_graph(torch.fx.symbolic_trace(_Graph(fn)), makers[0](), Options.of({}))

    compare(program, makers[0], factory, calls=makers[1:])


@pytest.mark.parametrize("program", [_turns_one, _turns_there_and_back])
@pytest.mark.parametrize("first", PAIRS)
def test_a_functionalized_program_tells_one_object_from_two(program: Callable[..., Any], first: str) -> None:
    compare(program, PAIRS[first], lambda fn: reink.functionalize(fn, PAIRS[first]()), calls=list(PAIRS.values()))


def test_a_program_stays_made_for_its_inputs_as_they_were() -> None:
    """The very objects that it is made for are changed by the first call."""
    x, y = PAIRS["apart"]()
    z = x[:2]
    pure = reink.functionalize(lambda a, b: (a.t_(), b.add_(1))[0] + 1, (z, y))
    pure(z, y)
    assert z.shape == (3, 2)
    with pytest.raises(ReinkError, match="other-inputs"):
        pure(z, y)
    again = x[:2]
    assert torch.equal(pure(again, again.new_zeros(3, 3)), z + 1)
    assert again.shape == (3, 2)


def test_the_signature_says_what_an_input_becomes() -> None:
    pure = reink.functionalize(_turns_one, (torch.ones(2, 3), torch.ones(2)), keep_input_mutations=False)
    (change,) = pure.signature.changes
    assert (change.input, change.name, change.output) == (0, "x", 2)
    assert [step.op for step in pure.signature.outputs[2].steps] == ["aten.t.default"]
    assert str(pure).splitlines()[-2:] == ["    input x becomes t(x)", "    epilogue y <- add"]


def test_symbolic_sizes_of_an_input_that_changes() -> None:
    def program(x: Tensor) -> Tensor:
        x.unsqueeze_(0).transpose_(1, 2)
        x.add_(1)
        return x * 2

    def maker(rows: int) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: (torch.arange(4.0 * rows).view(rows, 4),)

    def factory(fn: Callable[..., Any]) -> Callable[..., Any]:
        pure: Callable[..., Any] = reink.functionalize(fn, maker(3)(), dynamic_shapes=True)
        return pure

    compare(program, maker(3), factory, calls=[maker(5), maker(2)])


def test_an_input_that_a_graph_changes_by_another_name() -> None:
    """Dynamo takes what ``contiguous`` returns for a new tensor, and says the sizes of the input as they become."""

    def program(x: Tensor) -> Tensor:
        y = x.contiguous()
        y.t_()
        return y + 1

    compare(program, lambda: (torch.arange(6.0).view(2, 3),), compiled, calls=2)
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match="metadata-mutation"):
        compiled(program, dynamic=True)(torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
def test_an_input_changes_in_every_mode(mode: Any) -> None:
    compare(_turns_one, PAIRS["apart"], lambda fn: reink.functionalize(fn, PAIRS["apart"]()), grad_mode=mode)


def _bytes_of_a_turned_tensor(x: Tensor) -> Tensor:
    x.T.sign_()
    return x.view(torch.uint8) + 0


def test_the_pure_graph_runs_where_a_view_insists_on_strides_of_dims_of_one_element() -> None:
    """What is computed from a turned tensor lies otherwise than the input, also once it is turned back."""
    pure = reink.functionalize(_bytes_of_a_turned_tensor, (torch.tensor([[3], [-5]]),), keep_input_mutations=False)
    found, new = pure.graph_module(torch.tensor([[3], [-5]]))
    assert torch.equal(new, torch.tensor([[1], [-1]]))
    assert torch.equal(found, torch.tensor([[1], [-1]]).view(torch.uint8))
