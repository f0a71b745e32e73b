"""The default model's file against transformers' own reading of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.causal_lm import CausalLM
from pkvchat.models.loader import load_model

# Weights in half precision: what CPUs decode fast from.
FP16_WEIGHTS = LinearTypes(torch.float16, torch.float16, torch.bfloat16)
# And with the file's own 4-bit blocks kept as they are.
PACKED = replace(FP16_WEIGHTS, packed_bits=8)
RAINBOW = "Name three colours of the rainbow."
# Greedy in float32, and the same from transformers; llama.cpp, which rounds activations to 8 bits,
# takes another turn after "beautiful", where two tokens are 0.05 apart.
ANSWER = "The rainbow is a beautiful sight, but it's not just about the colors of the rainbow."


def reference_logits(path: Path, ids: list[int]) -> torch.Tensor:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    def empty(config: LlamaConfig) -> LlamaForCausalLM:
        with torch.device("meta"):
            return LlamaForCausalLM(config)

    any_llama = empty(LlamaConfig(num_hidden_layers=30))
    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=any_llama)
    config = LlamaConfig(**read["config"])
    model = empty(config).eval()
    missing, extra = model.load_state_dict(read["tensors"], strict=False, assign=True)
    assert missing == ["lm_head.weight"]
    assert not extra
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are in no file
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def test_logits_equal_transformers(
    default_gguf: Path, default_model: CausalLM, helpers: Any
) -> None:
    loaded = load_model(str(default_gguf), device=torch.device("cpu"))
    text = (Path(__file__).parent / "nasty.txt").read_text(encoding="utf-8") * 3
    ids = loaded.tokenizer.encode(text)[:500]
    assert len(ids) == 500
    ours = helpers.run(default_model, ids, chunks=[len(ids)])
    assert torch.allclose(ours, reference_logits(default_gguf, ids), rtol=0, atol=1e-3)


@pytest.mark.parametrize("types", [None, FP16_WEIGHTS, PACKED])
def test_greedy_answer(default_gguf: Path, helpers: Any, types: LinearTypes | None) -> None:
    loaded = load_model(str(default_gguf), device=torch.device("cpu"), linear_types=types)
    prompt = loaded.template.encode([{"role": "user", "content": RAINBOW}], loaded.tokenizer)
    answer = loaded.tokenizer.encode(ANSWER)
    # Each token of the answer is the likeliest after the ones before it.
    logits = helpers.run(loaded.model, prompt + answer, chunks=[len(prompt) - 1])
    assert logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == answer
    assert loaded.notes == ()
    assert [loaded.tokenizer.decode([i]) for i in loaded.stop_ids] == [""]
    assert loaded.stop_ids == {loaded.tokenizer.specials["<|im_end|>"]}


def test_quantised_kv_stays_close(
    default_gguf: Path, default_model: CausalLM, helpers: Any
) -> None:
    """A prompt in one chunk, then a few tokens one by one, as in exact arithmetic."""
    loaded = load_model(str(default_gguf), device=torch.device("cpu"))
    text = (Path(__file__).parent / "nasty.txt").read_text(encoding="utf-8")
    ids, chunks = loaded.tokenizer.encode(text)[:120], [112]
    exact = helpers.run(default_model, ids, chunks, "split").log_softmax(-1)
    for kv_dtype, most in ((torch.float8_e4m3fn, 0.02), (torch.int8, 0.005)):
        close = helpers.run(default_model, ids, chunks, "split", kv_dtype).log_softmax(-1)
        divergence = (exact.exp() * (exact - close)).sum(-1)  # Kullback-Leibler, in nats
        assert divergence.mean() < most
        assert (exact.argmax(-1) == close.argmax(-1)).float().mean() > 0.9
