"""Element types: casts of in-place results, views of another type, complex numbers, indexed writes."""

from __future__ import annotations

import torch
from support.operators import ops
from torch import Tensor

from corpus.registry import counting, inside, program, tensors


def _complex(*shape: int) -> Tensor:
    return torch.complex(counting(*shape), counting(*shape, start=-9))


def _two_types_one_storage() -> tuple[Tensor, Tensor]:
    raw = torch.arange(48, dtype=torch.uint8)
    return raw.view(torch.float16)[:8], raw[16:].view(torch.int32)


def _bytes_and_floats() -> tuple[Tensor, Tensor]:
    raw = torch.zeros(32, dtype=torch.uint8)
    return raw[4:12], raw.view(torch.float32)


@program("add_into_small_integers", lambda: (counting(5, dtype=torch.int8), counting(5, dtype=torch.int32)))
def add_into_small_integers(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y).mul_(30)
    return x + y


@program("float_into_half", lambda: (counting(4, dtype=torch.float16), counting(4)))
def float_into_half(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(y)
    x[1:3].copy_(y[1:3] * 0.3)
    return x


@program("copy_casts", lambda: (counting(6, dtype=torch.int64), counting(6)))
def copy_casts(x: Tensor, y: Tensor) -> Tensor:
    x[2:].copy_(y[2:] * 3)
    return x * 2


@program("comparison_into_floats", tensors((5,), (5,)))
def comparison_into_floats(x: Tensor, y: Tensor) -> Tensor:
    x.sub_(2).lt_(y - 51)
    return x / 2


@program("logical_in_place", lambda: (torch.tensor([True, False, True]), counting(3)))
def logical_in_place(mask: Tensor, x: Tensor) -> Tensor:
    mask.logical_not_()
    x.masked_fill_(mask, -1)
    return x


@program("bits_of_an_intermediate", tensors((3, 4)))
def bits_of_an_intermediate(x: Tensor) -> Tensor:
    y = x + 1
    ops.flip_sign_bit(y.view(torch.int32))
    return y * 2


@program("bits_of_an_input", lambda: (inside(3, 4),))
def bits_of_an_input(x: Tensor) -> Tensor:
    ops.flip_sign_bit(x.view(torch.int32))
    return x * 2


@program("bits_then_rows", tensors((5, 4)))
def bits_then_rows(x: Tensor) -> Tensor:
    y = x + 1
    ops.flip_sign_bit(y.view(torch.int32)[2:4])
    return y


@program("rows_then_bits", tensors((5, 4)))
def rows_then_bits(x: Tensor) -> Tensor:
    y = x + 1
    ops.flip_sign_bit(y[1:3].view(torch.int32))
    return y


@program("old_value_beside_bits", tensors((4,)))
def old_value_beside_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    old = x.clone()
    early = x * 3
    ops.flip_sign_bit(x.view(torch.int32))
    return old, early + x


@program("narrower_elements", lambda: (counting(4, dtype=torch.int32),))
def narrower_elements(x: Tensor) -> Tensor:
    x.view(torch.int8)[1::4].add_(1)
    x.view(torch.int16).view(4, 2)[:, 0].sub_(1)
    return x + 1


@program("wider_elements", lambda: (counting(3, 4, dtype=torch.int16),))
def wider_elements(x: Tensor) -> Tensor:
    y = x * 1
    y.view(torch.int64).add_(3)
    return y


@program("aten_on_bits", tensors((4,)))
def aten_on_bits(x: Tensor) -> Tensor:
    y = x + 1
    y.view(torch.int32).bitwise_and_(-256)
    return y


@program("inputs_of_two_types_disjoint", _two_types_one_storage)
def inputs_of_two_types_disjoint(a: Tensor, b: Tensor) -> Tensor:
    # pytorch#194747
    a.add_(1)
    return b.sum() + a.float().sum()


@program("inputs_of_two_types_overlapping", _bytes_and_floats)
def inputs_of_two_types_overlapping(a: Tensor, b: Tensor) -> Tensor:
    a.fill_(63)
    b[2:4].mul_(2)
    return b + a.sum()


@program("parts_of_complex_input", lambda: (_complex(5),))
def parts_of_complex_input(x: Tensor) -> Tensor:
    ops.shift_reals(torch.view_as_real(x))
    return x * 2


@program("real_part_of_intermediate", lambda: (_complex(5),))
def real_part_of_intermediate(x: Tensor) -> Tensor:
    y = x + 1
    ops.shift_reals(y.real)
    y.imag[1:3].mul_(-2)
    return y


@program("pairs_as_complex", tensors((4, 2)))
def pairs_as_complex(x: Tensor) -> Tensor:
    y = x + 1
    ops.turn(torch.view_as_complex(y))
    return y


@program("write_through_conjugate", lambda: (_complex(4),))
def write_through_conjugate(x: Tensor) -> Tensor:
    x.conj()[1:].mul_(1j)
    return x + 1


@program("write_through_negated_view", lambda: (_complex(4),))
def write_through_negated_view(x: Tensor) -> Tensor:
    y = x * 1
    y.conj().imag.add_(3)
    return y


@program("indexed_put", lambda: (counting(6, 3), torch.tensor([4, 1]), counting(2, 3)))
def indexed_put(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    x[index] = rows
    ops.bump(x[0])
    return x * 2


@program("indexed_put_through_flat_view", lambda: (counting(4, 5), torch.tensor([3, 11, 19]), counting(3)))
def indexed_put_through_flat_view(x: Tensor, index: Tensor, found: Tensor) -> Tensor:
    # pytorch#137416
    x.view(-1)[index] = found
    return x


@program("repeated_index", lambda: (torch.zeros(1, 3, dtype=torch.int64), counting(4, 2)), dynamic=True)
def repeated_index(index: Tensor, table: Tensor) -> None:
    # pytorch#138908: a row named twice is still doubled once
    index = index + 1
    table[index] += table[index]


@program("accumulating_put", lambda: (counting(5), torch.tensor([2, 2, 0]), counting(3)))
def accumulating_put(x: Tensor, index: Tensor, found: Tensor) -> Tensor:
    x.index_put_((index,), found, accumulate=True)
    return x + 1


@program("masked_writes", lambda: (counting(3, 4), counting(3, 4) > 2))
def masked_writes(x: Tensor, mask: Tensor) -> Tensor:
    x[1:].masked_fill_(mask[1:], -5)
    x[mask] = 8
    return x.sum(1)


@program("indexed_family", lambda: (counting(4, 3), torch.tensor([3, 0]), counting(2, 3)))
def indexed_family(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    y = x + 1
    y.index_copy_(0, index, rows)
    y.index_add_(0, index, rows, alpha=2)
    y[:, 1:].index_fill_(1, torch.tensor([1]), -3)
    x.t()[1].index_copy_(0, index, rows[:, 0])
    return y


@program("scatter_family", lambda: (counting(3, 4), torch.tensor([[1, 3], [0, 2]]), counting(2, 2)))
def scatter_family(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    x[:2].scatter_(1, index, source)
    x.scatter_add_(1, index, source)
    x[1:].scatter_(1, index, 0.5)
    x.t().scatter_reduce_(0, index, source, reduce="amax")
    return x - 1


@program("select_twice_and_assign", lambda: (counting(4, 3, 2), counting(2)))
def select_twice_and_assign(x: Tensor, found: Tensor) -> Tensor:
    x[2, 1] = found
    x[..., 0] += 1
    x[0, :, 1] = x[1, :, 1]
    return x


def _one_number_and_its_storage() -> tuple[Tensor, Tensor]:
    storage = counting(9, dtype=torch.complex64)
    return storage.as_strided((), (), 0), storage.as_strided((1,), (0,), 0)


@program("real_view_of_one_number_with_stride_zero", _one_number_and_its_storage)
def real_view_of_one_number_with_stride_zero(number: Tensor, same: Tensor) -> Tensor:
    # a view of another dtype insists on the stride of a dim of one element, which has no meaning
    torch.view_as_real(same).fill_diagonal_(3)
    return number


@program("wider_view_of_one_row", lambda: (counting(8, dtype=torch.int16).as_strided((1, 4), (3, 1)),))
def wider_view_of_one_row(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.as_strided((1, 4), (4, 1))
    y.view(torch.int32).fill_(7)
    x[:, 1:] += 1
    return x, torch.view_as_complex(x.float().as_strided((2, 1, 2), (2, 2, 1)))


@program("typed_view_of_one_number_by_two_ways", lambda: (counting(6, dtype=torch.int32),))
def typed_view_of_one_number_by_two_ways(x: Tensor) -> tuple[Tensor, Tensor]:
    # the diagonal and the row are one place, and only the row has the stride that the typed view asks for
    table = x.sum().view(-1, 1)
    diagonal, row = table.diagonal(0, 0, 1), table.select(0, 0)
    ops.bump(row.view(torch.int32))
    return diagonal * 2, row


def _bytes_with_flags() -> Tensor:
    raw = torch.arange(90, 106, dtype=torch.uint8)
    raw[::2] = torch.tensor([1, 0, 0, 1, 1, 0, 1, 0], dtype=torch.uint8)
    return raw


@program("flags_between_other_bytes", lambda: (_bytes_with_flags(),))
def flags_between_other_bytes(x: Tensor) -> Tensor:
    # a copy of flags makes each byte 0 or 1: the bytes between them may not be copied as flags
    x.view(torch.bool)[::2].logical_not_()
    y = x.clone()
    y.view(torch.bool).view(4, 4).diagonal().fill_(True)
    y.view(torch.bool).as_strided((3,), (4,), 2).logical_not_()
    y.view(torch.bool)[3].fill_(False)
    return y


@program("flags_in_larger_numbers", lambda: (counting(6, dtype=torch.int32, start=70_000),))
def flags_in_larger_numbers(x: Tensor) -> Tensor:
    y = x * 257
    ops.bump(y.view(torch.bool)[::4].view(torch.int8))
    y.view(torch.bool)[1::8].fill_(True)
    return y
