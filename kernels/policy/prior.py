"""What strategies should cost on a GPU that cannot be measured: an H200's costs, scaled.

Time per byte goes with the memory's bandwidth; launches, the filling of pipelines, merges and
planning take what they take there.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from ..attention.batch import AttentionShape
from ..attention.kv import page_bytes
from .calibration import Calibration
from .records import SHIPPED

_REFERENCE = SHIPPED / "nvidia-h200-32-8-heads-head-dim-128-page-size-16-float16.json"
_REFERENCE_TILE = 2 * 16 * 128 * 2  # bytes that one KV head's page has there
_REFERENCE_BANDWIDTH = 4.8e12  # bytes/s, NVIDIA's data sheet


def estimate_costs(shape: AttentionShape, workers: int, bandwidth: float) -> Calibration:
    """workers: see CostModel. bandwidth: of the memory, in bytes/s."""
    reference = Calibration.from_json(json.loads(_REFERENCE.read_text(encoding="utf-8"))["data"])
    size = page_bytes(1, shape) / shape.num_kv_heads / _REFERENCE_TILE
    tile = size * _REFERENCE_BANDWIDTH / bandwidth
    costs = {
        name: replace(cost, tile=cost.tile * tile, missed={})
        for name, cost in reference.costs.items()
    }
    return Calibration(workers, costs)


def memory_bandwidth(device: torch.device) -> float:
    """Bytes/s that the device's memory moves at most, by its clock (two transfers) and width."""
    properties = torch.cuda.get_device_properties(device)
    return 2e3 * properties.memory_clock_rate * properties.memory_bus_width / 8
