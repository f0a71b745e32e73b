"""Memory that CUDA graphs share, and their capture into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .memory import graph_memory, unreserved_memory


@dataclass
class Graph:
    """result: what a replay computes, until a replay of another graph."""

    replay: Callable[[], None]
    result: torch.Tensor


class GraphPool:
    """Graphs that run one at a time, each in the memory of those before it.

    budget: bytes that they may take; nbytes: that they have taken, until ``reset``.
    """

    def __init__(self, device: torch.device) -> None:
        self.budget = graph_memory(device)
        self.nbytes = 0
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._handle = torch.cuda.graph_pool_handle()

    def reset(self) -> None:
        """All graphs have been dropped: their memory is given back, and others get new memory."""
        self.nbytes = 0
        self._handle = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def capture(self, body: Callable[[], torch.Tensor]) -> Graph | None:
        """None where ``body`` takes more than is left of the budget.

        Its kernels must have been loaded. Raises torch.OutOfMemoryError.
        """
        if unreserved_memory(self._device) < self.budget:
            torch.cuda.empty_cache()  # which a capture cannot do
        reserved = torch.cuda.memory_reserved(self._device)
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(self._handle, capture_error_mode="thread_local")
            try:
                result = body()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        grown = torch.cuda.memory_reserved(self._device) - reserved
        self.nbytes += grown
        if grown and self.nbytes > self.budget:
            return None
        return Graph(graph.replay, result)
