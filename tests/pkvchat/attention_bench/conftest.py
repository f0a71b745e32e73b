"""A roster of a small shape on the CPU, and results that nobody had to measure."""

from __future__ import annotations

import pytest
import torch

from pkvchat.attention_bench.engines import Roster
from pkvchat.attention_bench.options import ENGINES
from pkvchat.attention_bench.results import (
    CaseResult,
    Counters,
    Elapsed,
    Results,
    Timing,
    TraceResult,
)
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.policy.calibration import Calibrator
from pkvchat.kernels.policy.records import Store

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def shape() -> AttentionShape:
    return AttentionShape(4, 2, 64, 16, torch.float32, CPU)


@pytest.fixture(scope="session")
def roster(shape: AttentionShape, tmp_path_factory: pytest.TempPathFactory) -> Roster:
    store = Store(tmp_path_factory.mktemp("records"))
    return Roster(ENGINES, shape, Calibrator(CPU, store=store))


def case(name: str, us: dict[str, float], target: float | None = None) -> CaseResult:
    """A layer of each engine, which FlashInfer takes 100 us to plan and the others none."""
    times = {
        engine: Timing(layer_us, 100.0 if engine.startswith("flashinfer") else 0.0)
        for engine, layer_us in us.items()
    }
    errors = dict.fromkeys(us, 1e-4)
    return CaseResult(name, 1, 4096, (32, 8), 16_777_216, 5.0, times, "split", errors, target)


def trace(seed: int, wall_ms: dict[str, float]) -> TraceResult:
    """Ten steps of two rows; the device is busy half of the time."""
    elapsed = {engine: Elapsed(ms, ms / 2) for engine, ms in wall_ms.items()}
    picks = {"calls": {"split": 7, "workqueue": 3}, "model": {"workqueue": 10}}
    errors = dict.fromkeys(wall_ms, 1e-4)
    size = (10, 20, 2_000_000)
    protocols = {"calls": elapsed, "model": elapsed}
    return TraceResult("zipf", 2, seed, *size, 10.0, 32, protocols, picks, errors)


@pytest.fixture
def results() -> Results:
    about = {
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11.0", "triton": "3.6.0"},
        "date": "2026-11-30T20:00:00+00:00",
        "command": "pkvchat bench-attention",
        "shape": "float16, 32 query heads over 8 KV heads",
    }
    cases = [
        case(
            "B1 4k",
            {"flashinfer tc": 12.0, "flashinfer cc": 11.0, "split": 10.0, "adaptive": 10.0},
            1.2,
        ),
        case("B1 8k", {"flashinfer tc": 20.0, "split": 15.0, "workqueue": 14.0, "adaptive": 15.0}),
    ]
    wall = {"flashinfer tc": 4.0, "flashinfer cc": 5.0, "split": 2.0, "adaptive": 2.5}
    traces = [trace(1, wall), trace(2, {**wall, "split": 1.0})]
    counters = {"zipf B2": {"split": Counters(2, 64, 0.5, 2_540_000), "flashinfer tc": Counters(3)}}
    return Results(about, 32, cases, traces, counters, ["sdpa: not asked for"])
