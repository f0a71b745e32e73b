"""What all strategies share: one shape, the batch they plan for, and checks before any launch."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec
from .checks import check_batch, check_contents, check_layer, contents_wanted


class PagedStrategy(ABC):
    """Implements Strategy; subclasses have ``_plan`` and ``_run``."""

    name: str
    capturable: bool

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._batch: DecodeBatch | None = None
        self._check_contents = contents_wanted()
        self._num_pages = 0  # of the cache that the batch's layers are in, once one has been seen

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """See Strategy.plan. Raises ValueError (``checks``)."""
        check_batch(batch, num_splits, self.shape)
        if batch is not self._batch:
            self._batch, self._num_pages = batch, 0
        elif self._num_pages:  # planned again for a graph: no layer may follow
            self._look_inside(batch)
        self._plan(batch, num_splits)

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        """See Strategy.run. Raises ValueError (``checks``)."""
        assert self._batch is not None, "plan() comes first"
        check_layer(q, kv_layer, out, spec, len(self._batch), self.shape)
        if not self._num_pages:
            self._num_pages = len(kv_layer)
            self._look_inside(self._batch)
        self._run(q, kv_layer, out, spec)

    def _look_inside(self, batch: DecodeBatch) -> None:
        capturing = self.shape.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if self._check_contents and not capturing:
            check_contents(batch, self._num_pages, self.shape)

    @abstractmethod
    def _plan(self, batch: DecodeBatch, num_splits: int) -> None: ...

    @abstractmethod
    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None: ...
