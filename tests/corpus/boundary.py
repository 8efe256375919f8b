"""What crosses the boundary: inputs that share memory, and results that share it with them or each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from support.operators import ops
from torch import Tensor

from corpus.registry import counting, inside, program, tensors


def _whole_and_row() -> tuple[Any, ...]:
    x = counting(5, 3)
    return x, x[2]


def _two_halves() -> tuple[Any, ...]:
    x = counting(6, 3)
    return x[:3], x[3:]


def _shifted_windows() -> tuple[Any, ...]:
    x = counting(9)
    return x[:5], x[3:8]


def _windows(first: int, second: int) -> Callable[[], tuple[Any, ...]]:
    """A maker of two windows of four elements of one storage, from the given places on."""

    def make() -> tuple[Any, ...]:
        x = counting(12)
        return x[first : first + 4], x[second : second + 4]

    return make


def _same_twice() -> tuple[Any, ...]:
    x = counting(4)
    return x, x


def _even_and_odd() -> tuple[Any, ...]:
    x = counting(8)
    return x[::2], x[1::2]


@program("whole_and_one_row", _whole_and_row)
def whole_and_one_row(x: Tensor, row: Tensor) -> Tensor:
    ops.bump(row)
    return x * 2


@program("whole_written_row_read", _whole_and_row)
def whole_written_row_read(x: Tensor, row: Tensor) -> Tensor:
    before = row + 0
    x.mul_(2)
    return before + row


@program("halves_of_one_storage", _two_halves)
def halves_of_one_storage(a: Tensor, b: Tensor) -> Tensor:
    ops.bump(a)
    b.sub_(1)
    return a + b


@program("interleaved_inputs", _even_and_odd)
def interleaved_inputs(a: Tensor, b: Tensor) -> Tensor:
    a.add_(b)
    b.mul_(2)
    return a - b


@program("overlapping_inputs_both_written", _shifted_windows)
def overlapping_inputs_both_written(a: Tensor, b: Tensor) -> Tensor:
    a.add_(100)
    b.mul_(2)
    a[4:].zero_()
    return a + b


@program("same_input_twice", _same_twice)
def same_input_twice(a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    b.mul_(2)
    return a + b


@program("same_input_twice_in_a_list", lambda: ([*_same_twice(), counting(4)],))
def same_input_twice_in_a_list(xs: list[Tensor]) -> Tensor:
    xs[0].add_(1)
    xs[1].mul_(3)
    return torch.stack(xs).sum(0)


@program("pattern_changes_between_calls", tensors((5,), (5,)), calls=(_shifted_windows, tensors((5,), (5,))))
def pattern_changes_between_calls(a: Tensor, b: Tensor) -> Tensor:
    # pytorch#139789: a graph made for separate inputs must not serve overlapping ones
    a.add_(100)
    return a * 1 + b


@program("window_slides_between_calls", _windows(0, 2), calls=(_windows(5, 7), _windows(4, 0)))
def window_slides_between_calls(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    b.add_(1)
    return a + b


@program("duplicate_in_second_call", tensors((4,), (4,)), calls=(_same_twice,))
def duplicate_in_second_call(a: Tensor, b: Tensor) -> Tensor:
    b.copy_(a * 2)
    return a + 1


@program("input_inside_larger_storage", lambda: (inside(6, 3),))
def input_inside_larger_storage(x: Tensor) -> Tensor:
    ops.bump(x[2:5])
    x[::2].mul_(2)
    return x - 1


@program("row_of_larger_input", lambda: (counting(4, 9)[2],))
def row_of_larger_input(x: Tensor) -> Tensor:
    ops.bump(x[3:7])
    return x * 2


@program("columns_of_wider_storage", lambda: (counting(5, 12)[:, 3:9],))
def columns_of_wider_storage(x: Tensor) -> Tensor:
    ops.bump(x[:, 1:4])
    x[2].fill_(0)
    return x * 2


@program("copy_between_inputs_then_change", tensors((3, 4), (3, 4)))
def copy_between_inputs_then_change(log: Tensor, live: Tensor) -> Tensor:
    # pytorch#198131: the log holds what was live before the change
    log[0:, :] = live[0:, :]
    live.sub_(1).mul_(2)
    return live


@program("inputs_swapped", tensors((4,), (4,)), zero_extra=False)
def inputs_swapped(a: Tensor, b: Tensor) -> None:
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)


@program("rotation_of_three_inputs", tensors((4,), (4,), (4,)), zero_extra=False)
def rotation_of_three_inputs(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    kept = c + 0
    c.copy_(b)
    b.copy_(a)
    a.copy_(kept)
    return a - c


@program("copied_onto_itself", tensors((4,)))
def copied_onto_itself(x: Tensor) -> Tensor:
    x.copy_(x)
    x[1:3].copy_(x[1:3])
    return x + 1


@program("overlapping_self_copy", tensors((8,)), zero_extra=False)
def overlapping_self_copy(x: Tensor) -> Tensor:
    x[2:6] = x[0:4].clone()
    return x * 1


@program("nothing_returned", tensors((4,)))
def nothing_returned(x: Tensor) -> None:
    x.add_(1)


@program("written_input_returned", tensors((6,), (6,)))
def written_input_returned(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(0.5).add_(y, alpha=2)
    return x


@program("view_of_written_input_returned", tensors((4, 3)))
def view_of_written_input_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    x[0].add_(1)
    return x[1:3], x.t()


@program("unwritten_input_and_its_view_returned", tensors((4, 3), (3,)))
def unwritten_input_and_its_view_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y.add_(x[0])
    return x, x.view(-1)[4:], y


@program("one_result_twice", tensors((4,)))
def one_result_twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x + 1
    x.add_(y)
    return y, x, y


@program("intermediate_and_its_view", tensors((4, 3)))
def intermediate_and_its_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y[1].add_(5)
    return y, y[1:]


@program("two_views_of_a_hidden_intermediate", tensors((4, 3)))
def two_views_of_a_hidden_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    a, b = y[:3], y[1:].t()
    a.add_(1)
    return a, b


@program("intermediate_written_and_returned", tensors((3, 4)))
def intermediate_written_and_returned(x: Tensor) -> Tensor:
    y = x + 1
    ops.bump(y[2])
    return y


@program("mixed_results", tensors((3,)))
def mixed_results(x: Tensor) -> dict[str, object]:
    x.add_(1)
    return {"sum": x.sum(), "count": x.numel(), "nothing": None, "words": ("a", [x[0], 2.5])}


@program("nested_arguments", lambda: ({"a": counting(3), "b": [counting(3, start=9), None, 4]},))
def nested_arguments(tree: dict[str, Any]) -> Tensor:
    tree["a"].mul_(tree["b"][2])
    tree["b"][0].add_(tree["a"])
    tail: Tensor = tree["b"][0][1:]
    return tail


@program("list_grows_by_a_written_tensor", tensors((3,)))
def list_grows_by_a_written_tensor(x: Tensor) -> list[Tensor]:
    found = []
    for k in range(3):
        x[k] += 10
        found.append(x * 1)
    return found


@program("input_replaced_by_other_value", tensors((4,)))
def input_replaced_by_other_value(x: Tensor) -> Tensor:
    y = x + 1
    x.fill_(0)
    y.mul_(2)
    x.add_(y)
    return y


@program("scalar_tensor_input", lambda: (torch.tensor(3.0), counting(4)))
def scalar_tensor_input(step: Tensor, x: Tensor) -> Tensor:
    step.add_(1)
    x.mul_(step)
    return x / step


@program("written_under_inference_mode", tensors((6, 6)), grad_mode="inference")
def written_under_inference_mode(x: Tensor) -> tuple[Tensor, Tensor]:
    band = x[1:4]
    ops.bump(band.transpose(0, 1)[2])
    return band.sum(), x.sum()


@program("overlapping_inputs_in_inference_mode", _shifted_windows, grad_mode="inference")
def overlapping_inputs_in_inference_mode(a: Tensor, b: Tensor) -> Tensor:
    ops.bump(a)
    b[2:4].sub_(a[3:])
    return b


def _column_twice() -> tuple[Any, ...]:
    x = counting(17).as_strided((2, 1, 3, 1), (8, 7, 2, 17), 0)
    return x, x


@program("empty_view_beyond_the_memory_of_its_base", _column_twice)
def empty_view_beyond_the_memory_of_its_base(x: Tensor, same: Tensor) -> Tensor:
    empty = same[0, 1:1, 2]
    x[..., 0].add_(empty.sum())
    return empty.narrow(-1, 1, 0)


def _window(before: int, count: int, after: int) -> Tensor:
    return counting(before + count + after)[before : before + count]


@program(
    "view_beyond_the_input",
    lambda: (_window(2, 4, 9),),
    calls=(lambda: (_window(5, 4, 6),), lambda: (_window(2, 4, 9),), lambda: (_window(1, 4, 20),)),
)
def view_beyond_the_input(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.as_strided((2, 3), (4, 1), 1)
    wide.add_(1)
    return x * 2, wide


@program("view_between_the_elements", lambda: (counting(16)[1:13:3],), calls=(lambda: (counting(13)[1:13:3],),))
def view_between_the_elements(x: Tensor) -> tuple[Tensor, Tensor]:
    run = x.as_strided((4,), (1,))
    run.mul_(2)
    return x, run


@program(
    "view_beyond_the_input_into_another",
    lambda: _two_windows(4),
    calls=(lambda: (_window(2, 4, 3), counting(5)), lambda: _two_windows(6), lambda: _two_windows(3)),
)
def view_beyond_the_input_into_another(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.as_strided((4,), (2,), 0).add_(y.sum())
    return y * 1, x


def _two_windows(start: int) -> tuple[Tensor, Tensor]:
    whole = counting(14)
    return whole[2:6], whole[start : start + 5]


@program("diagonal_filled_between_columns", lambda: (counting(4, 6)[:, :3],))
def diagonal_filled_between_columns(x: Tensor) -> Tensor:
    return x.fill_diagonal_(-1)


@program(
    "absolute_offset_in_other_places",
    lambda: _two_windows(4),
    calls=(lambda: (_window(5, 4, 0), counting(5)), lambda: _two_windows(3), lambda: (_window(4, 4, 4), counting(5))),
)
def absolute_offset_in_other_places(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    y.mul_(2)
    return x.as_strided((2,), (1,), 5), y + 1


@program("absolute_offset_from_an_empty_view", lambda: (counting(5, 4)[1:],))
def absolute_offset_from_an_empty_view(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    nothing = x[1, 2:2].view(1, 0).permute(1, 0).view(0, 1)
    return nothing.as_strided((3,), (2,), 9), nothing.as_strided((2,), (1,))


def _two_dtypes_apart() -> tuple[Tensor, Tensor]:
    raw = torch.arange(64, dtype=torch.uint8)
    return raw[2:26].view(torch.int16)[::3], raw[8:32].view(torch.float32)[::2]


@program("two_dtypes_with_gaps_in_one_storage", _two_dtypes_apart)
def two_dtypes_with_gaps_in_one_storage(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    y[1].fill_(2)
    return x * 2, y.view(torch.int32) + 0


@program("strides_of_a_conjugate", lambda: (counting(12, dtype=torch.complex64) * (1 + 2j),))
def strides_of_a_conjugate(x: Tensor) -> tuple[Tensor, Tensor]:
    turned = x.conj().as_strided((3, 2), (4, 1))
    turned[1].mul_(1j)
    return turned, x + 0


def _byte_in_a_number() -> tuple[Tensor, Tensor]:
    raw = torch.arange(14, dtype=torch.uint8)
    return raw[2:6].view(torch.int16), raw[4:5]


@program("one_byte_inside_of_larger_elements", _byte_in_a_number)
def one_byte_inside_of_larger_elements(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    y.add_(1)
    x.as_strided((2,), (2,), 0).neg_()
    return x * 2, y


@program("strides_of_one_element_through_as_strided", lambda: (counting(6)[1:],))
def strides_of_one_element_through_as_strided(x: Tensor) -> tuple[Tensor, Tensor]:
    one = (x[:1] + 1).as_strided((1, 1), (2, 1))
    ops.bump(one)
    same = one.as_strided((1,), (1,))
    same.mul_(2)
    return one.t(), same


def _turned_over_one_memory() -> tuple[Tensor, Tensor, Tensor]:
    x = counting(3, 2, dtype=torch.complex64) * (1 + 2j)
    return x, x.conj().imag, x.conj()[1:]


@program("overlapping_inputs_with_lazy_bits", _turned_over_one_memory)
def overlapping_inputs_with_lazy_bits(x: Tensor, part: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(part.sum())
    turned.mul_(2j)
    part[0].add_(1)
    return part * 2, turned + x[1:]


@program("product_of_flags_kept_in_a_flag", lambda: (counting(6) > 2,))
def product_of_flags_kept_in_a_flag(x: Tensor) -> Tensor:
    x.copy_(x * 3)
    return ~x


def _flags_between_bytes() -> tuple[Tensor, Tensor]:
    raw = torch.arange(90, 110, dtype=torch.uint8)
    raw[4:16:2] = torch.tensor([1, 0, 0, 1, 1, 0], dtype=torch.uint8)
    flags = raw.view(torch.bool)[4:16:2]
    return flags[:4], flags[2:]


@program("flags_that_overlap_between_bytes", _flags_between_bytes)
def flags_that_overlap_between_bytes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # no copy of flags may take the bytes between them for flags
    x.logical_not_()
    y[1:].logical_xor_(x[:3])
    return x & y, y


@program("flags_seen_from_a_view_beyond_them", lambda: _flags_between_bytes()[:1])
def flags_seen_from_a_view_beyond_them(x: Tensor) -> Tensor:
    wide = x.as_strided((6,), (2,))
    wide[3:].logical_not_()
    return x | wide[2:]
