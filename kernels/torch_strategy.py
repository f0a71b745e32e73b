"""What sdpa, split and workqueue share in torch: the pages are gathered, then attended to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec
from .gather import Scratch

Gathers = TypeVar("Gathers")


class TorchStrategy(ABC, Generic[Gathers]):
    """Computes what to gather once per step and window, at the first layer that needs it."""

    capturable = False

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._scratch = Scratch()
        self._batch: DecodeBatch | None = None
        self._num_splits = 1
        self._gathers: dict[int, Gathers] = {}  # by window

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        self._batch, self._num_splits = batch, num_splits
        self._gathers.clear()

    def _gathers_for(self, window: int) -> Gathers:
        assert self._batch is not None, "plan() comes first"
        if window not in self._gathers:
            self._gathers[window] = self._gather(self._batch, window)
        return self._gathers[window]

    def _sinks(self, spec: LayerSpec) -> torch.Tensor | None:
        """[num_kv_heads, group_size], or None."""
        if spec.sinks is None:
            return None
        return spec.sinks.view(self.shape.num_kv_heads, self.shape.group_size)

    @abstractmethod
    def _gather(self, batch: DecodeBatch, window: int) -> Gathers: ...
