"""How fast this device reads memory: what decoding, which reads every weight once, is bound by."""

from __future__ import annotations

import time

import torch

from .device_memory import unreserved_memory

_CUDA_BYTES = 4 << 30
_CUDA_LEAST_BYTES = 64 << 20
_CPU_BYTES = 256 << 20
_REPEATS = 5


def read_bandwidth(device: torch.device) -> float | None:
    """Bytes per second of reading one large tensor and little else; the best of several reads.

    None where a GPU has no room for a large one.
    """
    if device.type == "cuda":
        return _cuda_bandwidth(device)
    values = torch.ones(_CPU_BYTES // 4)
    best = 0.0
    for _ in range(_REPEATS):
        start = time.perf_counter()
        values.sum()
        best = max(best, values.nbytes / (time.perf_counter() - start))
    return best


def _cuda_bandwidth(device: torch.device) -> float | None:
    """Of half of what is free at most: what else reading takes has to fit beside it."""
    size = _CUDA_BYTES
    while True:
        torch.cuda.empty_cache()  # or a smaller tensor would keep the block of a larger one
        size = max(min(size, unreserved_memory(device) // 2), _CUDA_LEAST_BYTES)
        try:
            return _read_speed(device, size)
        except torch.OutOfMemoryError:  # others use the device, too
            if size == _CUDA_LEAST_BYTES:
                return None
        size //= 2


def _read_speed(device: torch.device, size: int) -> float:
    from .bandwidth_triton import read_all

    with torch.cuda.device(device):
        values = torch.empty(size // 4, dtype=torch.int32, device=device).random_()
        read_all(values)
        best = 0.0
        for _ in range(_REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            read_all(values)
            end.record()
            end.synchronize()
            best = max(best, values.nbytes / (start.elapsed_time(end) * 1e-3))
    return best
