"""What quantised products cost in quality: perplexity on the first chapter of "Alice's Adventures
in Wonderland" (Lewis Carroll, 1865; in the public domain), against the same file in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from pkvchat.kernels.batch import AttentionShape, PrefillChunk
from pkvchat.kernels.kv import allocate_kv
from pkvchat.kernels.linear import LinearTypes
from pkvchat.kernels.step import StepAttention
from pkvchat.models.causal_lm import CausalLM
from pkvchat.models.loader import LoadedModel, load_model

TEXT = Path(__file__).parent / "alice.txt"
PAGE_SIZE = 16


@torch.inference_mode()
def perplexity(model: CausalLM, ids: Sequence[int], chunk: int) -> float:
    """Of ids[1:], each after all before it; ``chunk`` rows go through the model at once."""
    config, device = model.config, model.device
    shape = AttentionShape(
        config.num_qo_heads, config.num_kv_heads, config.head_dim, PAGE_SIZE, model.dtype, device
    )
    num_pages = -(-len(ids) // PAGE_SIZE)
    kv_layers = allocate_kv(config.num_layers, num_pages, shape)
    table = torch.arange(num_pages, dtype=torch.int32, device=device)
    tokens, positions = torch.tensor(ids, device=device), torch.arange(len(ids), device=device)
    loss = 0.0
    for start in range(0, len(ids) - 1, chunk):
        end = min(start + chunk, len(ids) - 1)
        here = PrefillChunk(table[: -(-end // PAGE_SIZE)], end, end - start)
        rows = positions[start:end]
        attend = StepAttention(kv_layers, model.layer_specs, rows, None, None, [here])
        logits = model.forward(tokens[start:end], rows, attend, rows - start)
        loss += float(F.cross_entropy(logits, tokens[start + 1 : end + 1], reduction="sum"))
    return math.exp(loss / (len(ids) - 1))


def text_ids(loaded: LoadedModel) -> list[int]:
    ids = loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    assert 2000 < len(ids) < 4000
    return ids


def test_packed_on_the_cpu(default_gguf: Path, default_model: CausalLM) -> None:
    """Activations of packed products are bfloat16, and so are their scales."""
    types = LinearTypes(torch.float16, torch.float16, torch.bfloat16, few_limit=1000, packed_bits=8)
    loaded = load_model(
        str(default_gguf), device=torch.device("cpu"), linear_types=replace(types, dense=False)
    )
    ids = text_ids(loaded)[:300]
    exact = perplexity(default_model, ids, 300)
    assert perplexity(loaded.model, ids, 300) == pytest.approx(exact, rel=5e-3)
