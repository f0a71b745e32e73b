"""Whole steps of a model, timed before its first answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pkvchat.kernels.calibration import Calibrator
from pkvchat.kernels.linear import LinearTypes
from pkvchat.kernels.records import Store
from pkvchat.models.decoder import Decoder
from pkvchat.models.random_weights import SHAPES, RandomCheckpoint
from pkvchat.models.weights import WeightReader
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.startup import build_engine

CONFIG = replace(
    SHAPES["llama-3-8b"],
    vocab_size=500,
    hidden_size=512,
    intermediate_size=768,
    num_layers=2,
    num_qo_heads=8,
    num_kv_heads=2,
    head_dim=64,
    context_length=4096,
)


def build(tmp_path, **options):
    device = torch.device("cuda")
    checkpoint = RandomCheckpoint(CONFIG, "bf16", device)
    types = replace(LinearTypes.uniform(torch.bfloat16), packed_bits=8)
    reader = WeightReader(checkpoint, device, torch.bfloat16, types, lambda *progress: None)
    model, calibrator = Decoder(CONFIG, reader), Calibrator(device, store=Store(tmp_path))
    return build_engine(
        model, torch.bfloat16, EngineOptions(kv_memory=64 << 20, **options), calibrator
    )


@pytest.mark.gpu
def test_steps_are_timed_once_and_leave_the_cache_as_it_was(tmp_path):
    built = build(tmp_path)
    engine = built.engine
    assert engine.pool.num_used == 0
    captured = len(engine.runner.graphs)
    assert captured > 0
    (record,) = tmp_path.glob("steps-*.json")
    before = record.stat().st_mtime_ns
    assert len(build(tmp_path).engine.runner.graphs) == 0
    assert record.stat().st_mtime_ns == before

    engine.submit("a", [5, 6, 7], SamplingParams(temperature=0.0, max_tokens=20))
    while not engine.idle:
        engine.step()
    assert len(engine.runner.graphs) == captured  # the first answer found them
