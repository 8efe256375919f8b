"""What reink refuses, it refuses with a code, a reason and something to do; never with a bare error."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.library import compiled
from support.operators import ops
from torch import Tensor

from reink.errors import CODES, refusal_in

reink: Any = importlib.import_module("reink")

Attempt = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Refused:
    """One misuse: what is tried, the code it must get, and whether eager would have accepted the program."""

    attempt: Attempt
    code: str
    eager_accepts: bool


_CLOSED_OVER = torch.zeros(3)


def _double(x: Tensor) -> Tensor:
    return x * 2


def _branches_on_values(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def _asks_for_a_number(x: Tensor) -> Tensor:
    return x * int(x.max())


def _without_fake_kernel(x: Tensor) -> Tensor:
    x.add_(1)
    result: Tensor = ops.unfaked(x)
    return result


def _writes_a_constant(x: Tensor) -> Tensor:
    _CLOSED_OVER.add_(x)
    return x + 1


def _writes_expanded(x: Tensor) -> Tensor:
    return x.expand(3, 4).add_(1)


def _writes_expanded_part(x: Tensor) -> Tensor:
    x.expand(3, 4)[1:].copy_(torch.ones(2, 4))
    return x


def _grows_a_viewed_tensor(x: Tensor) -> Tensor:
    y = x + 1
    row = y[:1]
    y.resize_(64)
    return row + y[0]


def _grows_an_empty_view(x: Tensor) -> Tensor:
    """Eager has the view begin where `x` does, the fake kernel of `diagonal` three elements later."""
    part = x[None].diagonal(-1)
    part.resize_(2)
    return part


def _grows_an_input(x: Tensor) -> Tensor:
    x.resize_(64)
    return x[:1] + 1


def _swaps_storage(x: Tensor) -> Tensor:
    y = x + 1
    torch.ops.aten.set_(x, y)
    return x * 2


def _assigns_data(x: Tensor) -> Tensor:
    x.data = x + 1
    return x * 2


def _assigns_data_of_another_dtype(x: Tensor) -> Tensor:
    y = x + 1
    y.data = x.double()
    return y


def _names_another_input(x: Tensor, y: Tensor) -> Tensor:
    x.set_(y)  # type: ignore[call-overload]
    return x + 1


def _grows_by_an_operator(x: Tensor, y: Tensor) -> Tensor:
    torch.add(y, 1, out=x)
    return x * 2


def _empties_beyond_its_end(x: Tensor) -> Tensor:
    x.as_strided_((0,), (1,), 4 + x.numel())
    return x.sum()


def _turns_a_constant(x: Tensor) -> Tensor:
    _CLOSED_OVER.unsqueeze_(0)
    return x + 1


def _resizes(x: Tensor) -> Tensor:
    x.resize_(2)
    return x + 1


def _grows_a_copy_of_a_storage(x: Tensor) -> Tensor:
    y = torch.select_scatter(x, x[1], 0, 0)
    y.resize_(12)
    return y


def _squeezes_unknown_size(x: Tensor) -> Tensor:
    return x[x > 2].squeeze(0)


def _bumped(x: Tensor) -> None:
    ops.bump(x)


def _functionalized(fn: object, *args: object) -> Attempt:
    return lambda: reink.functionalize(fn, args)


def _run_compiled(options: dict[str, object]) -> object:
    compile_: Any = torch.compile
    return compile_(_double, backend="reink", options=options)(torch.ones(2))


CASES: dict[str, Refused] = {
    "not callable": Refused(_functionalized(3), "not-a-tensor-program", False),
    "no tensor argument": Refused(_functionalized(_double, "text"), "not-a-tensor-program", True),
    "arguments not in a tuple": Refused(
        lambda: reink.functionalize(_double, torch.ones(2)), "not-a-tensor-program", False
    ),
    "branch on values": Refused(_functionalized(_branches_on_values, torch.ones(3)), "data-dependent-python", True),
    "number from a tensor": Refused(_functionalized(_asks_for_a_number, torch.ones(3)), "data-dependent-python", True),
    "squeezed size that data decide": Refused(
        _functionalized(_squeezes_unknown_size, torch.ones(3)), "data-dependent-python", True
    ),
    "no fake kernel": Refused(_functionalized(_without_fake_kernel, torch.ones(3)), "no-fake-kernel", True),
    "written constant": Refused(_functionalized(_writes_a_constant, torch.ones(3)), "mutated-constant", True),
    "written overlap": Refused(_functionalized(_writes_expanded, torch.ones(4)), "written-self-overlap", False),
    "written part of an overlap": Refused(
        _functionalized(_writes_expanded_part, torch.ones(4)), "written-self-overlap", False
    ),
    "viewed tensor grows": Refused(_functionalized(_grows_a_viewed_tensor, torch.ones(4)), "metadata-mutation", True),
    "input grows": Refused(_functionalized(_grows_an_input, torch.ones(4)), "metadata-mutation", True),
    "data assigned": Refused(_functionalized(_assigns_data, torch.ones(4)), "metadata-mutation", True),
    "data of another dtype": Refused(
        _functionalized(_assigns_data_of_another_dtype, torch.ones(4)), "metadata-mutation", True
    ),
    "memory of another input": Refused(
        _functionalized(_names_another_input, torch.ones(4), torch.ones(3)), "metadata-mutation", True
    ),
    "operator grows an input": Refused(
        _functionalized(_grows_by_an_operator, torch.empty(0), torch.ones(3)), "metadata-mutation", True
    ),
    "input grows beyond its storage": Refused(
        _functionalized(_grows_an_input, torch.ones(80)[70:74]), "metadata-mutation", True
    ),
    "empty input begins elsewhere": Refused(
        _functionalized(_empties_beyond_its_end, torch.ones(4)), "metadata-mutation", True
    ),
    "constant turned": Refused(_functionalized(_turns_a_constant, torch.ones(3)), "cannot-trace", True),
    "lazy conjugate resized": Refused(
        _functionalized(_resizes, torch.ones(3, dtype=torch.complex64).conj()), "metadata-mutation", True
    ),
    "copy of a storage grows": Refused(
        _functionalized(_grows_a_copy_of_a_storage, torch.ones(4, 2)), "metadata-mutation", True
    ),
    "untraceable": Refused(_functionalized(lambda x: x @ x, torch.ones(2, 3)), "cannot-trace", True),
    "sparse input": Refused(
        _functionalized(lambda x: x @ x, torch.eye(3).to_sparse_csr()), "not-a-tensor-program", True
    ),
    "storage swapped": Refused(_functionalized(_swaps_storage, torch.ones(4)), "metadata-mutation", True),
    "unknown option of the back end": Refused(lambda: _run_compiled({"codgen": "eager"}), "unknown-option", True),
    "unknown value of an option": Refused(lambda: _run_compiled({"strategy": "v3"}), "unknown-option", True),
    "pass that is no function": Refused(lambda: _run_compiled({"passes": 7}), "unknown-option", True),
    "unknown option of reink.compile": Refused(lambda: reink.compile(_double, strategi="v1"), "unknown-option", True),
    "unknown strategy of functionalize": Refused(
        lambda: reink.functionalize(_double, (torch.ones(2),), strategy="v9"), "unknown-option", True
    ),
}


def _refusal_of(attempt: Attempt) -> Any:
    """The `ReinkError` that `attempt` raises, itself or wrapped."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        attempt()
    found = refusal_in(caught.value)
    assert found is not None, f"a bare {type(caught.value).__name__}: {caught.value}"
    return found


def _check_words(error: Any) -> None:
    assert error.code in CODES
    assert error.what
    assert not error.what.endswith(".")
    assert error.do, f"{error.code} does not say what to do"
    assert error.code in str(error)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_misuse_is_refused_with_a_code(case: Refused) -> None:
    error = _refusal_of(case.attempt)
    assert error.code == case.code, str(error)
    _check_words(error)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        pytest.param(_writes_expanded, (torch.ones(4),), id="written overlap"),
        pytest.param(_writes_expanded_part, (torch.ones(4),), id="written part of an overlap"),
    ],
)
def test_eager_refuses_a_write_into_elements_that_share_memory(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        fn(*args)


@pytest.mark.parametrize(
    ("fn", "line"),
    [
        pytest.param(_without_fake_kernel, "ops.unfaked(x)", id="no fake kernel"),
        pytest.param(_writes_a_constant, "_CLOSED_OVER.add_(x)", id="written constant"),
        pytest.param(_grows_a_viewed_tensor, "y.resize_(64)", id="viewed tensor grows"),
        pytest.param(_grows_an_input, "x.resize_(64)", id="input grows"),
        pytest.param(_grows_an_empty_view, "part.resize_(2)", id="empty view grows"),
        pytest.param(_assigns_data, "x.data = x + 1", id="data assigned"),
        pytest.param(_writes_expanded, "x.expand(3, 4).add_(1)", id="written overlap"),
    ],
)
def test_a_refusal_names_the_line_of_the_user(fn: Callable[..., Any], line: str) -> None:
    error = _refusal_of(_functionalized(fn, torch.ones(3 if fn is not _writes_expanded else 4)))
    assert line in error.where
    assert "test_refusals.py" in error.where


def test_a_program_without_tensor_results_is_no_reason_to_refuse_a_write() -> None:
    x = torch.zeros(3)
    pure = reink.functionalize(_bumped, (torch.zeros(3),))
    assert pure(x) is None
    assert torch.equal(x, torch.ones(3))


def test_a_refused_program_leaves_its_inputs_alone() -> None:
    x = torch.ones(3)
    _refusal_of(_functionalized(_without_fake_kernel, x))
    assert torch.equal(x, torch.ones(3))


def test_compiled_refusals_survive_the_wrapping_by_dynamo() -> None:
    error = _refusal_of(lambda: compiled(_writes_expanded)(torch.ones(4)))
    assert error.code == "written-self-overlap"
    _check_words(error)


def test_a_constant_that_is_only_read_is_fine() -> None:
    pure = reink.functionalize(lambda x: x.add_(_CLOSED_OVER), (torch.ones(3),))
    x = torch.ones(3)
    assert pure(x) is x


def _takes_three(x: Tensor) -> Tensor:
    rows = (x > 2).nonzero()
    torch._check(rows.shape[0] == 3)
    return rows.expand(3, 1) + 1


def test_what_is_taken_for_granted_of_a_size_is_checked() -> None:
    """By the user (`torch._check`) or by PyTorch while it traces: in eager, `expand` takes one row for three."""
    pure = reink.functionalize(_takes_three, (torch.arange(6.0),))
    assert pure(torch.arange(6.0)).tolist() == [[4], [5], [6]]
    with pytest.raises(RuntimeError, match=r"docs/errors\.md#data-dependent-python"):
        pure(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 9.0]))


def _writes_copy(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.nonzero()
    flat = rows.reshape(-1)
    flat.add_(1)
    return rows + 0, flat


def _writes_original(x: Tensor) -> Tensor:
    rows = x.nonzero()
    flat = rows.reshape(-1)
    rows.add_(1)
    return flat * 2


def _returns_both(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.nonzero()
    return rows, rows.contiguous()


def _reads_copy_of_input(x: Tensor, flag: Tensor) -> Tensor:
    some = x[:, : flag.nonzero().shape[0]].reshape(-1)
    x.add_(1)
    return some * 2


def _writes_in_branch(x: Tensor, flag: Tensor) -> Tensor:
    rows = x.nonzero()
    flat = rows.reshape(-1)
    torch.cond(flag, lambda r: r.add_(1).sum(), lambda r: r.sum(), (flat,))
    return rows + 0


@pytest.mark.parametrize("program", [_writes_copy, _writes_original, _returns_both])
def test_what_is_a_view_for_one_row_only_is_refused_where_it_would_show(program: Callable[..., Any]) -> None:
    """`nonzero` of one row: `reshape` and `contiguous` are views in eager; of more they are copies."""
    error = _refusal_of(lambda: reink.functionalize(program, (torch.eye(2),)))
    assert error.code == "data-dependent-python"
    assert program.__name__ in error.where
    _check_words(error)


def test_a_doubtful_copy_of_an_input_or_written_in_a_branch_is_refused() -> None:
    for program in (_reads_copy_of_input, _writes_in_branch):
        flag = torch.ones(2) if program is _reads_copy_of_input else torch.tensor(True)
        error = _refusal_of(lambda program=program, flag=flag: reink.functionalize(program, (torch.eye(2), flag)))  # type: ignore[misc]
        assert error.code == "data-dependent-python"


def _writes_copy_only(x: Tensor) -> tuple[Tensor, Tensor]:
    flat = x.nonzero().reshape(-1)
    flat.add_(1)
    own = x.nonzero()
    return flat, own.reshape(-1).clone().mul_(2) + own.sum()


def test_what_is_a_view_for_one_row_only_is_right_where_it_does_not_show() -> None:
    pure = reink.functionalize(_writes_copy_only, (torch.eye(2),))
    for x in (torch.eye(2), torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.zeros(2, 2)):
        assert all(map(torch.equal, pure(x), _writes_copy_only(x)))


def _writes_expanded_copy(x: Tensor, mask: Tensor) -> Tensor:
    rows = x[mask][:, None, :].expand(-1, 3, -1).reshape(-1, 2)
    rows[0] = 100
    return rows.sum(1)


def _returns_expanded_copy(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask][:, None, :].expand(-1, 3, -1).reshape(-1, 2)


def test_a_doubtful_copy_of_an_expanded_tensor_is_refused_where_it_is_written_or_returned() -> None:
    """Of one row eager returns a view whose elements share memory."""
    given = (torch.eye(2), torch.tensor([True, False]))
    for program in (_writes_expanded_copy, _returns_expanded_copy):
        error = _refusal_of(lambda program=program: reink.functionalize(program, given))  # type: ignore[misc]
        assert error.code == "data-dependent-python"
    pure = reink.functionalize(lambda x, mask: _returns_expanded_copy(x, mask).sum(1), given)
    assert torch.equal(pure(*given), _returns_expanded_copy(*given).sum(1))
