"""Mutable custom operators: every form of schema, and the reads around a call."""

from __future__ import annotations

import torch
from support.operators import ops, writes_one_of_two
from torch import Tensor

from corpus.registry import counting, inside, program, tensors


@program("two_disjoint_views_of_input", tensors((6, 4)))
def two_disjoint_views_of_input(x: Tensor) -> Tensor:
    ops.lower_and_scale(x[:3], x[3:])
    return x * 2


@program("two_overlapping_views_in_one_call", tensors((6, 4)))
def two_overlapping_views_in_one_call(x: Tensor) -> Tensor:
    y = x + 1
    ops.lower_and_scale(y[:4], y[2:])
    return y * 2


@program("one_tensor_for_two_arguments", tensors((4,)))
def one_tensor_for_two_arguments(x: Tensor) -> Tensor:
    # pytorch#132196: each write sees the other
    ops.lower_and_scale(x, x)
    return x * 10


@program("one_intermediate_for_two_arguments", tensors((4, 2)))
def one_intermediate_for_two_arguments(x: Tensor) -> Tensor:
    y = x + 1
    ops.lower_and_scale(y, y)
    ops.lower_and_scale(y[1], y.view(-1)[2:4])
    return y


@program("list_with_input_and_temporary", tensors((3, 3), (3, 3)))
def list_with_input_and_temporary(a: Tensor, b: Tensor) -> Tensor:
    ops.ramp([a, b - 1])
    return a * b


@program("list_of_views_of_one_storage", tensors((6, 2)))
def list_of_views_of_one_storage(x: Tensor) -> Tensor:
    y = x * 2
    ops.ramp([y[0], y[3:5], y[5]])
    ops.ramp([x[0:2], x[1:3]])
    return x + y


@program("empty_list", tensors((3,)))
def empty_list(x: Tensor) -> Tensor:
    ops.ramp([])
    return x + 1


@program("optional_absent", tensors((3, 3)))
def optional_absent(x: Tensor) -> Tensor:
    ops.bump_maybe(x[1], None)
    return x * 2


@program("optional_present", tensors((3, 3), (4, 3)))
def optional_present(x: Tensor, y: Tensor) -> Tensor:
    ops.bump_maybe(x[1], y[2])
    return x.sum() + y


@program("only_written_argument_absent", tensors((5,)))
def only_written_argument_absent(x: Tensor) -> Tensor:
    return torch.as_tensor(ops.spill(x, None)) - 1


@program("absent_then_present", tensors((5,)))
def absent_then_present(x: Tensor) -> Tensor:
    # pytorch#163129
    sink = torch.empty_like(x)
    first = ops.spill(x, None)
    second: Tensor = ops.spill(first, sink)
    return second + sink


@program("list_with_gaps", tensors((3,), (3,)))
def list_with_gaps(x: Tensor, y: Tensor) -> Tensor:
    ops.bump_present([None, x, None, y[1:]])
    ops.bump_present([None])
    return x * y


@program("optional_list", tensors((4,)))
def optional_list(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # pytorch#144072
    sinks = [torch.empty_like(x) for _ in range(3)]
    with_sinks: Tensor = ops.spill_all(x, sinks)
    without: Tensor = ops.spill_all(with_sinks, None)
    return with_sinks, without, sinks[0] + sinks[2]


@program("fresh_result_beside_the_write", tensors((4, 3)))
def fresh_result_beside_the_write(x: Tensor) -> tuple[Tensor, Tensor]:
    squares: Tensor = ops.bump_and_square(x[2])
    return squares + 1, x * 2


@program("two_fresh_results", tensors((4, 3)))
def two_fresh_results(x: Tensor) -> Tensor:
    y = x - 2
    total, largest = ops.bump_and_stats(y[:2])
    return y.sum(0).addcmul(total, largest)


@program("list_of_fresh_results", tensors((4, 3)))
def list_of_fresh_results(x: Tensor) -> tuple[Tensor, Tensor]:
    double, triple = ops.bump_and_parts(x)
    triple.add_(double)
    return triple, x


@program("returned_alias_written_again", tensors((4,)))
def returned_alias_written_again(x: Tensor) -> Tensor:
    y = x + 1
    same = ops.merge_(y, x)
    same.mul_(2)
    return y


@program("returned_alias_of_a_view", tensors((3, 4)))
def returned_alias_of_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    row: Tensor = ops.merge_(x[0], x[1] + 0.5)
    return row * 2, x * 2


@program("tagged_alias_written_again", tensors((4,)))
def tagged_alias_written_again(x: Tensor) -> Tensor:
    y = x + 1
    same = ops.merge_tagged_(y, x)
    same.mul_(2)
    return y


@program("tagged_alias_read_after_write_of_self", tensors((4,)))
def tagged_alias_read_after_write_of_self(x: Tensor) -> Tensor:
    y = x + 1
    same: Tensor = ops.merge_tagged_(y, x)
    y.sub_(3)
    return same * 2


@program("tagged_alias_is_the_output", tensors((3, 4)))
def tagged_alias_is_the_output(x: Tensor) -> tuple[Tensor, Tensor]:
    row: Tensor = ops.merge_tagged_(x[2], x[0])
    return row, x


@program("alias_of_second_argument", tensors((4,), (4,)))
def alias_of_second_argument(x: Tensor, y: Tensor) -> Tensor:
    filled: Tensor = ops.pour(x, y)
    filled.add_(1)
    return filled * y


@program("out_is_an_input", tensors((5,), (5,)))
def out_is_an_input(x: Tensor, sink: Tensor) -> Tensor:
    ops.triple.out(x, out=sink)
    return sink + 1


@program("out_is_a_view_of_input", tensors((4,), (3, 4)))
def out_is_a_view_of_input(x: Tensor, sink: Tensor) -> Tensor:
    ops.triple.out(x, out=sink[1])
    return sink + 1


@program("tagged_out_is_an_input", tensors((5,), (5,)))
def tagged_out_is_an_input(x: Tensor, sink: Tensor) -> Tensor:
    # pytorch#180852
    filled: Tensor = ops.triple_tagged.out(x, out=sink)
    return filled + sink


@program("tagged_out_rows_of_fresh_buffer", tensors((4,)))
def tagged_out_rows_of_fresh_buffer(x: Tensor) -> Tensor:
    sink = torch.zeros(3, 4)
    for i in range(3):
        ops.triple_tagged.out(x + i, out=sink[i])
    return sink


@program("tagged_out_is_its_own_source", tensors((4,)))
def tagged_out_is_its_own_source(x: Tensor) -> Tensor:
    y = x + 1
    ops.triple_tagged.out(y, out=y)
    return y


@program("out_of_uninitialised_memory", tensors((4,), (4,)))
def out_of_uninitialised_memory(x: Tensor, bias: Tensor) -> Tensor:
    sink = torch.empty_like(bias)
    filled: Tensor = ops.triple_tagged.out(x * 2, out=sink)
    return sink + filled


@program("aten_out_into_view", tensors((4,), (3, 4)))
def aten_out_into_view(x: Tensor, sink: Tensor) -> Tensor:
    torch.add(x, 1, out=sink[0])
    torch.mul(sink[0], 2, out=sink[2])
    return sink.sum(0)


@program("snapshot_read_by_the_writing_call", tensors((6,)))
def snapshot_read_by_the_writing_call(x: Tensor) -> Tensor:
    # pytorch#198031: without the copy the call would read what it has just written
    snapshot = x.clone()
    ops.sweep(snapshot[:-1], x[1:])
    return x - 1


@program("call_reads_what_it_writes", tensors((4,)))
def call_reads_what_it_writes(x: Tensor) -> Tensor:
    y = x + 1
    ops.halve_then_add_total(y, y)
    return y * 2


@program("read_only_argument_overlaps_written", tensors((6,)))
def read_only_argument_overlaps_written(x: Tensor) -> Tensor:
    # pytorch#198260: eager's answer depends on the call seeing its own earlier writes
    ops.sweep(x[:-1], x[1:])
    return x * 1


@program("clone_of_written_intermediate", tensors((4,)))
def clone_of_written_intermediate(x: Tensor) -> Tensor:
    y = x + 1
    kept = y.clone()
    ops.halve_then_add_total(y, kept)
    return y * 2


@program("clone_of_written_input", tensors((4,)))
def clone_of_written_input(x: Tensor) -> Tensor:
    kept = x.clone()
    ops.halve_then_add_total(x, kept)
    return x * 2


@program("clone_of_overlapping_view", tensors((7, 2)))
def clone_of_overlapping_view(x: Tensor) -> Tensor:
    y = x + 1
    kept = y[:4].clone()
    ops.halve_then_add_total(y[2:], kept)
    return y * 2


@program("write_goes_to_the_clone", tensors((4,)))
def write_goes_to_the_clone(x: Tensor) -> Tensor:
    y = x + 1
    other = y.clone()
    ops.absorb(other, y)
    return other * 2


@program("only_a_row_of_the_clone_is_used", tensors((5, 4)))
def only_a_row_of_the_clone_is_used(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    ops.bump(y[3])
    return y[3] * 2, y[:2].sum() + x.sum()


@program("old_whole_and_new_row", tensors((5, 4)))
def old_whole_and_new_row(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    old = y.clone()
    ops.bump(y[0])
    return old, y[0]


@program("old_value_used_after_the_write", tensors((4, 4)))
def old_value_used_after_the_write(x: Tensor) -> Tensor:
    early = x * 3
    ops.bump(x[0])
    return early + x


@program("sum_before_the_write", tensors((3, 4)))
def sum_before_the_write(x: Tensor) -> Tensor:
    y = x + 1
    total = y.sum()
    ops.bump(y[0])
    return total


@program("clone_of_input_is_returned", tensors((3, 4)))
def clone_of_input_is_returned(x: Tensor) -> Tensor:
    ops.bump(x[1:])
    return x.clone()


@program("arithmetic_snapshot", tensors((4,)))
def arithmetic_snapshot(x: Tensor) -> tuple[Tensor, Tensor]:
    # pytorch#174187: adding nothing still copies
    a = x + 0
    b = x * 1
    x.sub_(5)
    return a, a + b


@program("aten_and_custom_on_one_base", tensors((4, 3)))
def aten_and_custom_on_one_base(x: Tensor) -> Tensor:
    x[0].add_(1)
    ops.bump(x[1])
    x[2].mul_(2)
    ops.absorb(x[3], x[2])
    return x * 2


@program("partial_write_by_the_operator", tensors((6, 2)))
def partial_write_by_the_operator(x: Tensor) -> Tensor:
    ops.first_row(x[2:5])
    return x + 1


@program("scratch_buffer_for_all_layers", tensors((3, 4)))
def scratch_buffer_for_all_layers(x: Tensor) -> Tensor:
    scratch = torch.empty(3, 4)
    for _ in range(4):
        ops.triple_tagged.out(x, out=scratch)
        x = x + scratch.neg()
    return x


@program("scratch_rows_all_alive", tensors((3, 4)))
def scratch_rows_all_alive(x: Tensor) -> Tensor:
    scratch = torch.zeros(3, 3, 4)
    results = []
    for i in range(3):
        ops.absorb(scratch[i], x + i)
        results.append(scratch[i].neg())
    return torch.stack(results)


@program("fused_norm_over_layers", tensors((4, 8), (8,)))
def fused_norm_over_layers(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    residual = hidden.clone()
    hidden = hidden * 1
    for _ in range(3):
        hidden = hidden @ torch.ones(8, 8)
        ops.norm_step(hidden, residual, weight)
    return hidden, residual


@program("written_slice_then_all_overwritten", tensors((3, 4), (3, 4)))
def written_slice_then_all_overwritten(x: Tensor, y: Tensor) -> Tensor:
    squares: Tensor = ops.bump_and_square(x[0])
    x.copy_(y)
    return squares


@program("channel_slice_of_convolution", lambda: (counting(1, 2, 6, 6), counting(4, 2, 3, 3)))
def channel_slice_of_convolution(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.nn.functional.conv2d(x, weight)
    ops.bump(y[:, 1:3])
    return y.relu()


@program("module_with_parameter_and_buffer", tensors((4, 4)))
class Holder(torch.nn.Module):
    """Writes rows of its own parameter and buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(counting(4, 4), requires_grad=False)
        self.register_buffer("seen", inside(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        ops.bump(self.weight[1])
        ops.bump(self.seen[2:])
        self.seen[0].add_(x[0])
        return x + self.weight + self.seen


@program("operator_that_may_write_any_argument", tensors((3, 4), (4,)))
def operator_that_may_write_any_argument(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    total: Tensor = writes_one_of_two(x[1], y)
    return total + y, x.sum(0)
