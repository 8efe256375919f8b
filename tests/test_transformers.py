"""A model that people run, as its library writes it: Llama with a static cache, from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import reink

STEPS, PROMPT = 16, (1, 5, 7, 9)
CONFIG: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attn_implementation": "sdpa",
}


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**CONFIG))
    return model.eval()


def _decode(llama: Any, step: Callable[[Tensor, Any, Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The logits of `STEPS` greedy steps after a prompt, and the keys and values that they leave."""
    cache: Any = StaticCache(config=llama.config, max_cache_len=CONFIG["max_position_embeddings"])
    with torch.no_grad():
        logits = llama(torch.tensor([PROMPT]), past_key_values=cache, use_cache=True).logits
        steps: list[Tensor] = []
        for k in range(STEPS):
            token = logits[:, -1:].argmax(-1)
            logits = step(token, cache, torch.tensor([len(PROMPT) + k])).clone()
            steps.append(logits)
    return torch.cat(steps, 1), [t for layer in cache.layers for t in (layer.keys, layer.values)]


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_llama_with_a_static_cache_decodes_as_in_eager_and_copies_nothing(llama: Any, codegen: str) -> None:
    """The library builds its mask otherwise while Dynamo traces, so the judge of the last bit is Dynamo's eager."""

    def step(token: Tensor, cache: Any, position: Tensor) -> Tensor:
        logits: Tensor = llama(token, past_key_values=cache, use_cache=True, cache_position=position).logits
        return logits

    torch_compile: Any = torch.compile
    expected, memory = _decode(llama, torch_compile(step, backend="eager", fullgraph=True))
    torch.testing.assert_close(_decode(llama, step)[0], expected)
    fast = reink.compile(step, codegen=codegen, fullgraph=True)
    found, written = _decode(llama, fast)
    tolerance = 0.0 if codegen == "eager" else 1e-5
    torch.testing.assert_close([found, *written], [expected, *memory], rtol=tolerance, atol=tolerance)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    (report,) = fast.reports
    assert report.codegen == codegen
    assert (len(report.decisions), report.bytes_cloned) == (3 * CONFIG["num_hidden_layers"], 0)
