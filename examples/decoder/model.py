"""The decoder: grouped-query attention, SwiGLU, a paged cache that all layers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from decoder.operators import fused_add_rms_norm, paged_attention, reshape_and_cache, rotary_embedding


@dataclass(frozen=True, slots=True)
class Sizes:
    """Every size of the model and its cache. The defaults give a cache of 48 MiB."""

    layers: int = 6
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    inner: int = 512
    vocabulary: int = 1024
    blocks: int = 1024
    block_size: int = 16
    positions: int = 256
    eps: float = 1e-5

    @property
    def qkv(self) -> list[int]:
        """Widths of query, key and value in the fused projection."""
        return [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim]


class Batch(NamedTuple):
    """What one step works on.

    `tokens`, `positions` and `slots` are ``[tokens]``; `block_table` is ``[batch, most_blocks]`` and
    `lengths` ``[batch]``. A decode step has one token of each sequence, a prefill step all tokens of one.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    block_table: Tensor
    lengths: Tensor


class Layer(nn.Module):
    """The weights of one layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = _ones(sizes.hidden)
        self.qkv = _random(sum(sizes.qkv), sizes.hidden)
        self.projection = _random(sizes.hidden, sizes.qkv[0])
        self.feed_norm = _ones(sizes.hidden)
        self.gate_up = _random(2 * sizes.inner, sizes.hidden)
        self.down = _random(sizes.hidden, sizes.inner)

    def feed(self, x: Tensor) -> Tensor:
        """The SwiGLU block, ``[tokens, hidden]`` to the same."""
        gate, up = linear(x, self.gate_up).chunk(2, dim=-1)
        return linear(silu(gate) * up, self.down)


class Decoder(nn.Module):
    """Random weights; each step writes the new keys and values into the cache that it is given."""

    cos_sin: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = _random(sizes.vocabulary, sizes.hidden)
        self.layers = cast("Sequence[Layer]", nn.ModuleList(Layer(sizes) for _ in range(sizes.layers)))
        self.last_norm = _ones(sizes.hidden)
        self.register_buffer("cos_sin", rotary_table(sizes.positions, sizes.head_dim))

    def new_cache(self) -> Tensor:
        """An empty cache ``[layers, 2, blocks, block_size, kv_heads, head_dim]``: keys at 0, values at 1."""
        sizes = self.sizes
        return torch.zeros(sizes.layers, 2, sizes.blocks, sizes.block_size, sizes.kv_heads, sizes.head_dim)

    def prefill(self, batch: Batch, cache: Tensor) -> Tensor:
        """The next token ``[1]`` of one prompt, whose keys and values go into the cache."""
        x = self.embedding[batch.tokens]
        residual = torch.zeros_like(x)
        for layer, weights in zip(cache, self.layers, strict=True):
            query, key, value = self._project(weights, x, residual, batch, layer)
            x = linear(self._attend_to_prompt(query, key, value), weights.projection)
            fused_add_rms_norm(x, residual, weights.feed_norm, self.sizes.eps)
            x = weights.feed(x)
        return self._choose(x[-1:], residual[-1:])

    def decode(self, batch: Batch, cache: Tensor) -> Tensor:
        """The next token of each sequence, ``[batch]``."""
        x = self.embedding[batch.tokens]
        residual = torch.zeros_like(x)
        for layer, weights in zip(cache, self.layers, strict=True):
            x = self._decode_layer(weights, x, residual, batch, layer)
        return self._choose(x, residual)

    def decode_and_collect(self, batch: Batch, cache: Tensor) -> tuple[Tensor, Tensor]:
        """`decode`, and how large the newest keys are in each layer, ``[layers, batch]``.

        The unlucky way to write it: each layer's rows are read right after their write, but the
        results are put together only at the end.
        """
        x = self.embedding[batch.tokens]
        residual = torch.zeros_like(x)
        norms = []
        for layer, weights in zip(cache, self.layers, strict=True):
            x = self._decode_layer(weights, x, residual, batch, layer)
            norms.append(layer[0].flatten(0, 1)[batch.slots].flatten(1).norm(dim=-1))
        return self._choose(x, residual), torch.stack(norms)

    def _decode_layer(self, weights: Layer, x: Tensor, residual: Tensor, batch: Batch, layer: Tensor) -> Tensor:
        query, _, _ = self._project(weights, x, residual, batch, layer)
        mixed = torch.empty_like(query)
        paged_attention(mixed, query, layer[0], layer[1], batch.block_table, batch.lengths)
        x = linear(mixed, weights.projection)
        fused_add_rms_norm(x, residual, weights.feed_norm, self.sizes.eps)
        return weights.feed(x)

    def _project(
        self, weights: Layer, x: Tensor, residual: Tensor, batch: Batch, layer: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated query and key, and value: slices of one fused projection. Writes the layer's cache."""
        fused_add_rms_norm(x, residual, weights.attention_norm, self.sizes.eps)
        query, key, value = torch.split(linear(x, weights.qkv), self.sizes.qkv, dim=-1)
        rotary_embedding(batch.positions, query, key, self.cos_sin)
        reshape_and_cache(key, value, layer[0], layer[1], batch.slots)
        return query, key, value

    def _attend_to_prompt(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention of one prompt to itself, ``[tokens, heads * head_dim]``."""
        query, key, value = (self._split_heads(part) for part in (query, key, value))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return mixed[0].transpose(0, 1).flatten(1)

    def _split_heads(self, part: Tensor) -> Tensor:
        """``[tokens, heads * head_dim]`` as a view ``[1, heads, tokens, head_dim]``."""
        return part.view(len(part), -1, self.sizes.head_dim).transpose(0, 1).unsqueeze(0)

    def _choose(self, x: Tensor, residual: Tensor) -> Tensor:
        """The likeliest token of each row."""
        fused_add_rms_norm(x, residual, self.last_norm, self.sizes.eps)
        return linear(x, self.embedding).argmax(dim=-1)


def rotary_table(positions: int, head_dim: int) -> Tensor:
    """Cosines and then sines of every position, ``[positions, head_dim]``."""
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _random(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)


def _ones(size: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(size))
