"""Random weights: of the sizes a file would have, and of a scale that a model can run on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.decoder import Decoder
from pkvchat.models.errors import ModelError
from pkvchat.models.random_weights import QUANTS, SHAPES, RandomCheckpoint, random_model
from pkvchat.models.weight_plan import WeightPlan
from pkvchat.models.weights import WeightReader

CPU = torch.device("cpu")
LLAMA = SHAPES["llama-3-8b"]


@pytest.mark.parametrize(("quant", "gib"), [("bf16", 14.96), ("Q8_0", 7.95), ("Q4_K_M", 4.58)])
def test_takes_what_the_file_would(quant, gib):
    """llama.cpp's own figures for Llama-3-8B."""
    checkpoint = RandomCheckpoint(LLAMA, quant, CPU)
    assert sum(map(checkpoint.nbytes, checkpoint.shapes)) / 2**30 == pytest.approx(gib, abs=0.01)


def test_q4_k_m_gives_half_of_the_layers_more_bits():
    checkpoint = RandomCheckpoint(LLAMA, "Q4_K_M", CPU)
    for part in ("attn_v", "ffn_down"):
        types = Counter(checkpoint._type(f"blk.{i}.{part}.weight") for i in range(32))
        assert types == {"Q6_K": 16, "Q4_K": 16}


def test_a_step_reads_only_chosen_experts():
    """Qwen3-30B-A3B has 3.3 billion active parameters, 0.3 of them a table."""
    config = SHAPES["qwen3-30b-a3b"]
    checkpoint = RandomCheckpoint(config, "bf16", CPU)
    plan = WeightPlan(checkpoint, CPU, torch.float32, LinearTypes.uniform(torch.bfloat16))
    model = Decoder(config, plan)
    assert model.nbytes() / 2e9 == pytest.approx(30.5, abs=0.1)
    assert model.step_nbytes() / 2e9 == pytest.approx(3.03, abs=0.05)


@pytest.mark.parametrize("name", ["blk.0.attn_k.weight", "blk.0.attn_v.weight"])
@pytest.mark.parametrize("quant", QUANTS)
def test_weights_have_one_scale_whatever_the_type(quant, name):
    checkpoint = RandomCheckpoint(LLAMA, quant, CPU)
    if (blocks := checkpoint.blocks(name)) is None:
        weight = torch.empty(checkpoint.shapes[name])
        checkpoint.parts(name, weight)
    else:
        raw = torch.empty(blocks.shape, dtype=torch.uint8)
        blocks.parts(raw)
        assert raw.nbytes == checkpoint.nbytes(name)
        dequantised = quants.dequantize(raw[:64].numpy(), GGMLQuantizationType[blocks.type])
        weight = torch.from_numpy(dequantised)
    assert weight.std() == pytest.approx(weight.shape[1] ** -0.5, rel=0.1)
    assert abs(weight.mean()) < 0.001


def test_a_step_reads_all_but_a_table_of_its_own():
    tiny = replace(
        LLAMA,
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_qo_heads=2,
        num_kv_heads=1,
        head_dim=32,
    )
    types = LinearTypes.uniform(torch.float32)
    for tied, table in ((False, 100 * 64 * 4), (True, 0)):
        checkpoint = RandomCheckpoint(replace(tiny, tie_embeddings=tied), "bf16", CPU)
        reader = WeightReader(checkpoint, CPU, torch.float32, types, lambda *progress: None)
        model = Decoder(checkpoint.config, reader)
        assert model.nbytes() - model.step_nbytes() == table


@pytest.mark.parametrize(
    ("shape", "quant", "message"),
    [("llama-4", "bf16", "llama-4.*llama-3-8b"), ("llama-3-8b", "Q2_K", "Q2_K.*Q4_K_M")],
)
def test_unknown_names(shape, quant, message):
    with pytest.raises(ModelError, match=message):
        random_model(shape, quant, device=CPU)
