"""Device times of CUDA graphs, for calibration and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch


def captured(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """``body`` as a graph that has been replayed once. What it compiles, it must have before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    graph.replay()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, replays: int = 3, samples: int = 9) -> float:
    """Microseconds of one replay: the median of ``samples``, each the mean of ``replays``."""
    times: list[float] = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / replays)
    return median(times)
