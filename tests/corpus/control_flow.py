"""Branches and loops as operators: what their graphs write is written outside, whichever way is taken."""

from __future__ import annotations

from typing import Any

import torch
from support.judge import MakeArguments
from support.operators import ops
from torch import Tensor

from corpus.registry import counting, program
from reink.fuzz.program import branch, loop


def either(make: MakeArguments) -> dict[str, Any]:
    """Inputs of a program whose first one decides: once it is true, on the next call false."""
    return {
        "inputs": lambda: (torch.tensor(True), *make()),
        "calls": (lambda: (torch.tensor(False), *make()),),
    }


def _four_rows() -> tuple[Tensor, ...]:
    return counting(4, 3), counting(3, start=40)


# --- branches -------------------------------------------------------------------------------------------


@program("taken_branch_writes", **either(lambda: (counting(3, 4),)))
def taken_branch_writes(flag: Tensor, x: Tensor) -> Tensor:
    # pytorch#147210
    def yes(x: Tensor) -> Tensor:
        ops.bump(x[0])
        return x * 2

    return branch(flag, yes, lambda x: x * 3, x)


@program("branch_writes_captured_cache", **either(_four_rows))
def branch_writes_captured_cache(flag: Tensor, cache: Tensor, row: Tensor) -> Tensor:
    # pytorch#159009
    def yes(row: Tensor) -> Tensor:
        cache[2].copy_(row)
        return row.sum()

    return branch(flag, yes, lambda row: row.sum() * 0, row)


@program("both_branches_write", **either(_four_rows))
def both_branches_write(flag: Tensor, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    # each writes another part, and one of them a tensor that is not an input
    y = x * 2

    def yes(row: Tensor) -> Tensor:
        y[0].add_(row)
        x[1:].mul_(2)
        return row + 1

    def no(row: Tensor) -> Tensor:
        x.t()[0].zero_()
        return (row * 3).sub_(1)

    return branch(flag, yes, no, row), y


@program("branch_writes_what_it_made", **either(_four_rows))
def branch_writes_what_it_made(flag: Tensor, x: Tensor, row: Tensor) -> Tensor:
    def yes(x: Tensor, row: Tensor) -> Tensor:
        z = x + row
        z[1].fill_(5)
        return z

    result: Tensor = branch(flag, yes, lambda x, row: (x - row).relu_(), x, row)
    return result.mul_(2)


@program("branch_is_given_overlapping_views", **either(_four_rows))
def branch_is_given_overlapping_views(flag: Tensor, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    # what is written through one of them is read through the other
    def yes(whole: Tensor, part: Tensor, column: Tensor) -> Tensor:
        part.add_(whole[0])
        return column * whole.sum()

    return branch(flag, yes, lambda whole, part, column: column - 1, x, x[1:3], x[:, 1]), row * x[1]


@program("branch_writes_a_typed_view", **either(lambda: (counting(2, 4, dtype=torch.int32),)))
def branch_writes_a_typed_view(flag: Tensor, x: Tensor) -> Tensor:
    bits = x[1].view(torch.float32)

    def yes(bits: Tensor) -> Tensor:
        bits[1:].fill_(1.5)
        return bits.sum()

    result: Tensor = branch(flag, yes, lambda bits: bits.amax(), bits)
    return result + x[0, 0]


@program("result_of_branch_is_written", **either(lambda: (counting(3, 4),)))
def result_of_branch_is_written(flag: Tensor, x: Tensor) -> Tensor:
    y: Tensor = branch(flag, lambda x: x + 1, lambda x: x * 2, x)
    ops.bump(y[0])
    x[1].zero_()
    return y


@program("branch_in_a_branch", **either(_four_rows))
def branch_in_a_branch(flag: Tensor, x: Tensor, row: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        ops.bump(x[3])
        return x[3] * 2

    def yes(x: Tensor) -> Tensor:
        x[0].neg_()
        return branch(x[1, 1] > 0, inner, lambda x: x[2] + 1, x)

    result: Tensor = branch(flag, yes, lambda x: x[1] * 3, x)
    return result + row


@program("writes_before_and_after_a_branch", **either(_four_rows))
def writes_before_and_after_a_branch(flag: Tensor, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x[0].add_(1)
    old = x[1] * 1
    flat = x.view(-1)

    def yes(row: Tensor) -> Tensor:
        flat[3:6].mul_(3)
        return row + 1

    new = branch(flag, yes, lambda row: row * 2, row)
    x[1].sub_(new)
    return old, new, x.sum(0)


@program("old_content_is_read_after_a_branch", **either(_four_rows), zero_extra=False)
def old_content_is_read_after_a_branch(flag: Tensor, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    # the clone has to stay: its content is asked for after the branch has written the other
    kept = x.clone()

    def yes(row: Tensor) -> Tensor:
        x.add_(row)
        return row.sum()

    total = branch(flag, yes, lambda row: row.sum() * 0, row)
    return kept * total, x + kept


@program("branch_returns_its_operand", **either(_four_rows))
def branch_returns_its_operand(flag: Tensor, x: Tensor, row: Tensor) -> Tensor:
    return branch(flag, lambda row: row, lambda row: row + 1, row)


@program("returned_operand_is_written", **either(_four_rows), may_refuse=True, handed_over=True, zero_extra=False)
def returned_operand_is_written(flag: Tensor, x: Tensor, row: Tensor) -> Tensor:
    # whether `row` is written is known only when the program runs
    result: Tensor = branch(flag, lambda row: row, lambda row: row + 1, row)
    return result.add_(1)


@program("branch_with_a_dynamic_size", **either(_four_rows), dynamic=True)
def branch_with_a_dynamic_size(flag: Tensor, x: Tensor, row: Tensor) -> Tensor:
    def yes(row: Tensor) -> Tensor:
        x[row.shape[0] - 1 :].mul_(3)
        return row + 1

    return branch(flag, yes, lambda row: row * 1, row)


# --- loops ----------------------------------------------------------------------------------------------


@program("loop_body_writes_a_row", lambda: (counting(3), torch.zeros(4, 3)))
def loop_body_writes_a_row(x: Tensor, rows: Tensor) -> Tensor:
    # pytorch#147210: one buffer through all rounds
    def body(i: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = state * 2
        rows.index_copy_(0, i.reshape(1), state.unsqueeze(0))
        return i + 1, state

    loop(lambda i, state: i < 4, body, torch.tensor(0), x)
    return rows.sum()


@program("loop_body_writes_two_buffers", lambda: (counting(3), counting(4, 3)))
def loop_body_writes_two_buffers(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # one the caller's, through a transposed view; one the program's own; and one that lives for a round
    own = rows.clone()

    def body(i: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        own[1].add_(state)
        rows.t()[0].add_(state.sum())
        return i + 1, (state + own[0]).mul_(2)

    count, state = loop(lambda i, state: i < 3, body, torch.tensor(0), x)
    return count + state.sum().to(torch.int64), own, rows + 1


@program("loop_that_does_not_run", lambda: (counting(3), counting(4, 3)), zero_extra=False)
def loop_that_does_not_run(x: Tensor, rows: Tensor) -> Tensor:
    # PyTorch then returns copies of the state it was given
    def body(i: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        ops.bump(rows[0])
        return i + 1, state + rows[0]

    _, state = loop(lambda i, state: i < 0, body, torch.tensor(0), x)
    return state + rows.sum()


@program("branch_in_a_loop", lambda: (counting(3), counting(2, 3)))
def branch_in_a_loop(x: Tensor, cache: Tensor) -> Tensor:
    def body(i: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        def late(state: Tensor) -> Tensor:
            cache[0].add_(state)
            return state * 2

        return i + 1, branch(i > 1, late, lambda state: state + 1, state)

    _, state = loop(lambda i, state: i < 4, body, torch.tensor(0), x)
    return state - cache[1]


@program("loop_condition_reads_the_buffer", lambda: (counting(3), counting(4, 3)))
def loop_condition_reads_the_buffer(x: Tensor, rows: Tensor) -> Tensor:
    def body(i: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        rows[0].add_(10)
        return i + 1, state + 1

    count, _ = loop(lambda i, state: rows[0, 0] < 35, body, torch.tensor(0), x)
    return count + rows[0, 0].to(torch.int64)


@program("loop_writes_its_state", lambda: (counting(3),), may_refuse=True, handed_over=True, zero_extra=False)
def loop_writes_its_state(x: Tensor) -> Tensor:
    # in the first round that is the caller's tensor, in the next one another
    def body(i: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state.add_(1)
        return i + 1, state * 2

    _, state = loop(lambda i, state: i < 2, body, torch.tensor(0), x)
    return state + x


@program(
    "loop_condition_writes", lambda: (counting(3), counting(3)), may_refuse=True, handed_over=True, zero_extra=False
)
def loop_condition_writes(x: Tensor, y: Tensor) -> Tensor:
    def goes_on(i: Tensor, state: Tensor) -> Tensor:
        y.add_(1)
        return i < 3

    _, state = loop(goes_on, lambda i, state: (i + 1, state * 2), torch.tensor(0), x)
    return state + y


# --- graphs that run once -------------------------------------------------------------------------------


@torch.compiler.nested_compile_region
def _adds_into(x: Tensor, y: Tensor) -> Tensor:
    y.add_(x)
    return x * 2


@torch.compiler.nested_compile_region
def _writes_its_own(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z[0].add_(y[1])
    return z + y


@program("nested_region_writes_an_operand", lambda: (counting(4), counting(4, start=9)))
def nested_region_writes_an_operand(x: Tensor, y: Tensor) -> Tensor:
    # the same region twice, the second time on a view of what the first one wrote
    total: Tensor = _adds_into(x, y) + _adds_into(y[1:], x[:3]).sum()
    return total


@program("nested_region_writes_its_own", lambda: (counting(4), counting(4, start=9)), zero_extra=False)
def nested_region_writes_its_own(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(2)
    total: Tensor = _writes_its_own(x, y) + _writes_its_own(y, x)
    return total
