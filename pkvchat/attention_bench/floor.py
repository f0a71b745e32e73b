"""The read-only floor: the time to read as many bytes as a batch's KV has, and nothing else."""

from __future__ import annotations

import time

import torch

from pkvchat.kernels.policy.graph_timing import captured, replay_us

from .problem import KvPool, num_cold_layers

_REPEATS = 5


class Floor:
    """Measured once for each number of bytes, on the memory of ``pool``."""

    def __init__(self, pool: KvPool) -> None:
        self._memory = pool.pages.view(torch.uint8).view(-1)
        self._us: dict[int, float] = {}

    def __call__(self, nbytes: int) -> float:
        """Microseconds."""
        nbytes = max(4096, min(nbytes, self._memory.numel() // 2) // 4096 * 4096)
        if nbytes not in self._us:
            count = min(num_cold_layers(nbytes, self._memory.device), len(self._memory) // nbytes)
            parts = [self._memory[i * nbytes : (i + 1) * nbytes] for i in range(count)]
            measure = _cuda_us if self._memory.is_cuda else _cpu_us
            self._us[nbytes] = measure(parts)
        return self._us[nbytes]


def _cuda_us(parts: list[torch.Tensor]) -> float:
    """The best of a few ways to cut the bytes into programs."""
    from pkvchat.kernels.bandwidth_triton import read_kernel

    sources = [part.view(torch.int32) for part in parts]
    device = sources[0].device
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    sink = torch.empty(processors * 8, dtype=torch.int32, device=device)
    best = float("inf")
    for per_processor, block in ((2, 4096), (4, 4096), (8, 2048)):
        programs = processors * per_processor

        def body(programs: int = programs, block: int = block) -> None:
            for values in sources:
                read_kernel[(programs,)](
                    values, sink, values.numel(), BLOCK=block, STAGES=4, num_warps=8
                )

        body()
        best = min(best, replay_us(captured(body)) / len(parts))
    return best


def _cpu_us(parts: list[torch.Tensor]) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        for part in parts:
            values = part.view(torch.float32)
            start = time.perf_counter()
            values.sum()
            best = min(best, (time.perf_counter() - start) * 1e6)
    return best
