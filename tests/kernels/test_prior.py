"""Costs of a GPU that was not measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.policy.calibration import Calibration
from pkvchat.kernels.policy.policy import create_policy
from pkvchat.kernels.policy.prior import estimate_costs
from pkvchat.kernels.policy.records import SHIPPED, VERSION, shipped_name

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16, torch.device("cuda", 0))
H200 = {"workers": 264, "bandwidth": 4.8e12}


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_records_can_be_read(path):
    record = json.loads(path.read_text())
    assert record["version"] == VERSION
    assert shipped_name(record["key"]) == path.name
    calibration = Calibration.from_json(record["data"])
    ours = {"split", "workqueue", "sdpa"}
    assert calibration.covers(ours if "KV" in record["key"]["shape"] else {*ours, "flashinfer"})
    assert all(cost.error < 0.1 for name, cost in calibration.costs.items() if name != "sdpa")


def test_the_reference_device_has_its_own_constants():
    """But nothing of what they missed there: other devices miss other things."""
    path = SHIPPED / "nvidia-h200-32-8-heads-head-dim-128-page-size-16-float16.json"
    known = Calibration.from_json(json.loads(path.read_text())["data"])
    assert all(cost.missed for name, cost in known.costs.items() if name != "sdpa")
    estimated = estimate_costs(SHAPE, **H200)
    assert estimated.workers == known.workers
    assert estimated.costs == {name: replace(cost, missed={}) for name, cost in known.costs.items()}


def test_time_goes_with_bytes_and_bandwidth():
    def predicted(shape=SHAPE, lengths=(100_000,), **changes):
        calibration = estimate_costs(shape, **H200 | changes)
        policy = create_policy("adaptive", shape, calibration, list(calibration.costs), 32)
        return policy.choose(lengths).predicted_us["workqueue"]

    assert predicted(bandwidth=1e12) == pytest.approx(4.8 * predicted(), rel=0.1)
    assert predicted(bandwidth=1e12, lengths=(50,)) < 2 * predicted(lengths=(50,))
    half = AttentionShape(32, 8, 64, 16, torch.bfloat16, SHAPE.device)
    assert predicted(half) == pytest.approx(predicted() / 2, rel=0.1)
    fewer = predicted(workers=66, bandwidth=1.2e12)
    assert fewer == pytest.approx(4 * predicted(), rel=0.1)
