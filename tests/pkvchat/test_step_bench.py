"""Whole steps of a model, timed before its first answer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from pkvchat.kernels.policy.calibration import Calibrator
from pkvchat.kernels.policy.records import Store
from pkvchat.kernels.products.linear import LinearTypes
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


def build(tmp_path, fresh=False):
    device = torch.device("cuda", 0)
    checkpoint = RandomCheckpoint(CONFIG, "bf16", device)
    types = replace(LinearTypes.uniform(torch.bfloat16), packed_bits=8)
    reader = WeightReader(checkpoint, device, torch.bfloat16, types, lambda *progress: None)
    model = Decoder(CONFIG, reader)
    calibrator = Calibrator(device, store=Store(tmp_path), fresh=fresh, busy=lambda: False)
    return build_engine(model, torch.bfloat16, EngineOptions(kv_memory=64 << 20), calibrator)


@pytest.mark.gpu
def test_steps_are_timed_once_and_leave_the_engine_as_it_was(tmp_path):
    built = build(tmp_path)
    engine = built.engine
    assert engine.pool.num_used == 0
    assert len(engine.runner.graphs) == 0
    (record,) = tmp_path.glob("steps-*.json")
    times = json.loads(record.read_text())["data"]["times"]
    assert {(1, 128), (8, 2048)} <= {(each["rows"], each["length"]) for each in times}
    capturable = {name for name, why in built.strategies.items() if not why} - {"sdpa"}
    assert all(set(each["us"]) == capturable for each in times)

    before = record.stat().st_mtime_ns
    build(tmp_path)
    assert record.stat().st_mtime_ns == before
    build(tmp_path, fresh=True)
    assert record.stat().st_mtime_ns > before

    engine.submit("a", [5, 6, 7], SamplingParams(temperature=0.0, max_tokens=20))
    while not engine.idle:
        engine.step()
