"""The mutable steps of the decoder, as custom operators that write their arguments.

An engine has these as hand-written kernels. Here they are plain torch, but a compiler knows no more of
them than of a kernel: which arguments they read and which they write.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention


@torch.library.custom_op("decoder::reshape_and_cache", mutates_args=("key_cache", "value_cache"))
def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's key and value ``[tokens, kv_heads * head_dim]`` into its slot of the paged caches.

    A cache is ``[blocks, block_size, kv_heads, head_dim]`` and may be a view of a larger one; slot
    ``s`` is row ``s % block_size`` of block ``s // block_size``.
    """
    block_size = key_cache.shape[1]
    block, row = slot_mapping // block_size, slot_mapping % block_size
    key_cache[block, row] = key.view(-1, *key_cache.shape[2:])
    value_cache[block, row] = value.view(-1, *value_cache.shape[2:])


@torch.library.custom_op("decoder::rotary_embedding", mutates_args=("query", "key"))
def rotary_embedding(positions: Tensor, query: Tensor, key: Tensor, cos_sin: Tensor) -> None:
    """Rotate query and key ``[tokens, heads * head_dim]`` by their positions, in place.

    They are usually slices of one fused projection, so their rows are not contiguous. `cos_sin` is
    ``[positions, head_dim]``, the cosines and then the sines. Source: RoFormer, arXiv 2104.09864.
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    for operand in (query, key):
        first, second = operand.view(len(operand), -1, cos_sin.shape[-1]).chunk(2, dim=-1)
        rotated = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(rotated)


@torch.library.custom_op("decoder::fused_add_rms_norm", mutates_args=("x", "residual"))
def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Add `x` to the residual stream, then set `x` to the normalized stream; both ``[tokens, hidden]``."""
    residual.add_(x)
    x.copy_(rms_norm(residual, weight.shape, weight, eps))


@torch.library.custom_op("decoder::paged_attention", mutates_args=("out",))
def paged_attention(
    out: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, lengths: Tensor
) -> None:
    """Attention of one new token of each sequence over the cached keys and values of that sequence.

    `out` and `query` are ``[batch, heads * head_dim]``; `block_table` is ``[batch, most_blocks]``, the
    blocks of a sequence in order, and `lengths` is ``[batch]``, the new token included. Query heads
    share key heads in equal groups.
    """
    head_dim = key_cache.shape[-1]
    keys = key_cache[block_table].flatten(1, 2).transpose(1, 2)
    values = value_cache[block_table].flatten(1, 2).transpose(1, 2)
    seen = torch.arange(keys.shape[2], device=lengths.device) < lengths.unsqueeze(1)
    heads = query.view(len(query), -1, 1, head_dim)
    mixed = scaled_dot_product_attention(heads, keys, values, attn_mask=seen[:, None, None], enable_gqa=True)
    out.copy_(mixed.flatten(1))


@reshape_and_cache.register_fake
def _(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    return None


@rotary_embedding.register_fake
def _(positions: Tensor, query: Tensor, key: Tensor, cos_sin: Tensor) -> None:
    return None


@fused_add_rms_norm.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    return None


@paged_attention.register_fake
def _(out: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, lengths: Tensor) -> None:
    return None
