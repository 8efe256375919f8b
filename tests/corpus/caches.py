"""Key-value caches: each call writes a few rows of a large input. A copy of one is the bug people notice."""

from __future__ import annotations

import torch
from support.operators import ops
from torch import Tensor

from corpus.registry import counting, program, tensors


@program("layers_written_others_read", tensors((4, 8, 3), (2, 3)))
def layers_written_others_read(cache: Tensor, rows: Tensor) -> Tensor:
    total = rows.sum()
    for layer in range(4):
        ops.store_rows(cache[layer], rows, layer)
        total = total + cache[(layer + 1) % 4].sum()
    return total


@program("intermediate_cache", tensors((3, 8, 3), (2, 3)))
def intermediate_cache(old: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    cache = old - 1
    total = rows.sum()
    for layer in range(3):
        ops.store_rows(cache[layer], rows, 2 * layer)
        total = total + cache[layer].sum()
    return total, cache


@program("keys_and_values_packed", tensors((2, 3, 4, 3)))
def keys_and_values_packed(cache: Tensor) -> Tensor:
    keys, values = cache[0], cache[1]
    total = cache.new_zeros(())
    for layer in range(3):
        ops.lower_and_scale(keys[layer], values[layer])
        total = total + (keys[layer] * values[layer]).sum()
    return total


@program(
    "slots_of_both_halves",
    lambda: (counting(2, 9, 4), counting(2, 4), counting(2, 4, start=70), torch.tensor([7, 2])),
)
def slots_of_both_halves(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> Tensor:
    # pytorch#131192
    ops.store_pair(k + 0.5, v * 2, cache[0], cache[1], slots)
    return cache[0].sum() - cache[1].sum()


@program("attention_over_each_layer", lambda: (counting(3, 6, 4) / 40, counting(2, 4) / 9, torch.tensor([4, 1])))
def attention_over_each_layer(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    for layer in range(cache.shape[0]):
        cache[layer].index_copy_(0, at, x)
        x = x + torch.softmax(x @ cache[layer].t(), -1) @ cache[layer]
    return x


@program("reads_collected_and_stacked", lambda: (counting(4, 6, 3), counting(1, 3), torch.tensor([5])))
def reads_collected_and_stacked(cache: Tensor, row: Tensor, at: Tensor) -> Tensor:
    found = []
    for layer in range(4):
        cache[layer].index_copy_(0, at, row * (layer + 1))
        found.append(cache[layer].sum(0))
    return torch.stack(found)


@program("old_row_kept", tensors((2, 6, 3)))
def old_row_kept(cache: Tensor) -> Tensor:
    old = cache[0, 4].clone()
    ops.lower_and_scale(cache[0], cache[1])
    return old + cache[0, 4]


@program("assign_and_bump", tensors((3, 5, 2), (2, 2)))
def assign_and_bump(cache: Tensor, rows: Tensor) -> Tensor:
    cache[1, 1:3].copy_(rows)
    ops.bump(cache[2])
    cache[0, :2] = rows * 2
    return cache.sum(0)


@program("scale_and_cache_together", lambda: (counting(4), counting(6, 4), counting(3, start=2)))
def scale_and_cache_together(x: Tensor, cache: Tensor, scale: Tensor) -> Tensor:
    full = cache * 1
    factor = scale * 1
    old = factor[:2].clone()
    ops.quantize_into(x, full, factor)
    return full.sum() * old.sum() + factor.sum()


@program("offset_cache", lambda: (counting(3, 2, 5, 2)[1], counting(2, 2)))
def offset_cache(cache: Tensor, rows: Tensor) -> Tensor:
    for layer in range(2):
        ops.store_rows(cache[layer], rows, layer + 1)
    return cache.sum()


@program("two_caches_of_one_storage", lambda: (*counting(2, 5, 3).unbind(0), counting(1, 3)))
def two_caches_of_one_storage(keys: Tensor, values: Tensor, row: Tensor) -> Tensor:
    ops.store_rows(keys, row, 3)
    ops.store_rows(values, row * 2, 0)
    return keys @ values.t()


@program("rolled_by_one", tensors((6, 2), (2,)), zero_extra=False)
def rolled_by_one(cache: Tensor, row: Tensor) -> Tensor:
    cache[:-1] = cache[1:].clone()
    cache[-1] = row
    return cache * 1


@program("position_from_tensor", lambda: (counting(6, 3), torch.tensor(4), counting(3)))
def position_from_tensor(cache: Tensor, at: Tensor, row: Tensor) -> Tensor:
    cache[at] = row
    at.add_(1)
    return cache.sum(1)


@program("heads_as_columns", tensors((5, 8), (2, 4)))
def heads_as_columns(cache: Tensor, rows: Tensor) -> Tensor:
    heads = cache.view(5, 2, 4).transpose(0, 1)
    ops.store_rows(heads[1], rows, 2)
    heads[0, 1:3].add_(rows)
    return heads @ rows.t()


@program("module_with_cache", tensors((2, 4)), calls=(tensors((2, 4)), tensors((2, 4))))
class CachedSum(torch.nn.Module):
    """Keeps its rows and its position in buffers from call to call."""

    rows: Tensor
    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 8, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.rows
        at = self.position + torch.arange(2)
        rows[0].index_copy_(0, at, x)
        ops.store_rows(rows[1], x * 2, 1)
        self.position.add_(2)
        return rows[0].sum(0) + rows[1, 1]
