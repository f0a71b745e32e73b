"""Device times of CUDA graphs, for calibration and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

_SAMPLE_US, _MAX_REPLAYS = 1500.0, 5


def captured(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """``body`` as a graph that has been replayed once. What it compiles, it must have before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    graph.replay()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, samples: int = 7) -> float:
    """Microseconds of one replay: the median of ``samples``, each over a millisecond or longer."""
    replays = max(1, min(_MAX_REPLAYS, int(_SAMPLE_US / _mean_us(graph, 1))))
    return median(_mean_us(graph, replays) for _ in range(samples))


def _mean_us(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / replays
