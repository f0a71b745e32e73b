"""Memory that CUDA graphs share, and their capture into it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakSet

import torch

from pkvchat.kernels.device_memory import unreserved_memory

from .memory import graph_memory


@dataclass(eq=False)
class Graph:
    """result: what a replay computes, until a replay of another graph."""

    replay: Callable[[], None]
    result: torch.Tensor


class GraphPool:
    """Graphs that run one at a time, each in the memory of those before it.

    budget: bytes that they may take. The memory is given back with the last of them.
    """

    def __init__(self, device: torch.device) -> None:
        self.budget = graph_memory(device)
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._handle = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[Graph] = WeakSet()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that graphs have taken."""
        return self._nbytes if self._graphs else 0

    def capture(self, body: Callable[[], torch.Tensor]) -> Graph | None:
        """None where ``body`` takes more than is left of the budget.

        Its kernels must have been loaded. Raises torch.OutOfMemoryError.
        """
        if not self._graphs:  # torch lets a handle die with the last graph, or with a failed first
            self._handle, self._nbytes = torch.cuda.graph_pool_handle(), 0
        if unreserved_memory(self._device) < self.budget:
            torch.cuda.empty_cache()  # which a capture cannot do
        reserved = torch.cuda.memory_reserved(self._device)
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(self._handle, capture_error_mode="thread_local")
            try:
                result = body()
            except BaseException:
                with suppress(RuntimeError):  # of a capture that the error has made invalid
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(self._stream)
        grown = torch.cuda.memory_reserved(self._device) - reserved
        self._nbytes += grown
        if grown and self._nbytes > self.budget:
            return None
        captured = Graph(graph.replay, result)
        self._graphs.add(captured)
        return captured
