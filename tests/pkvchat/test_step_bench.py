"""Whole steps of a model, timed before its first answer."""

from __future__ import annotations

import json

import pytest
import torch

from pkvchat.kernels.policy.calibration import Calibrator
from pkvchat.kernels.policy.records import Store
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.startup import build_engine


def build(model, folder, fresh=False):
    calibrator = Calibrator(model.device, store=Store(folder), fresh=fresh, busy=lambda: False)
    return build_engine(model, torch.bfloat16, EngineOptions(kv_memory=64 << 20), calibrator)


@pytest.mark.gpu
def test_steps_are_timed_once_and_leave_the_engine_as_it_was(gpu_model, tmp_path):
    model = gpu_model(torch.bfloat16)
    built = build(model, tmp_path)
    engine = built.engine
    assert engine.pool.num_used == 0
    assert len(engine.runner.graphs) == 0
    (record,) = tmp_path.glob("steps-*.json")
    times = json.loads(record.read_text())["data"]["times"]
    assert {(1, 128), (8, 2048)} <= {(each["rows"], each["length"]) for each in times}
    capturable = {name for name, why in built.strategies.items() if not why} - {"sdpa"}
    assert all(set(each["us"]) == capturable for each in times)

    before = record.stat().st_mtime_ns
    build(model, tmp_path)
    assert record.stat().st_mtime_ns == before
    build(model, tmp_path, fresh=True)
    assert record.stat().st_mtime_ns > before

    engine.submit("a", [5, 6, 7], SamplingParams(temperature=0.0, max_tokens=20))
    while not engine.idle:
        engine.step()
