"""What all strategies share: one shape, the batch they plan for, and checks before any launch."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec
from .checks import ArgumentChecks, check_contents, contents_wanted


class PagedStrategy(ABC):
    """Implements Strategy; subclasses have ``_plan`` and ``_run``."""

    name: str
    capturable: bool

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._batch: DecodeBatch | None = None
        self._checks = ArgumentChecks(shape)
        self._check_contents = contents_wanted()
        self._num_pages = 0  # of the cache that the batch's layers are in, once one has been seen

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """See Strategy.plan. Raises ValueError (``checks``)."""
        self._checks.batch(batch, num_splits)
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
        self._checks.layer(q, kv_layer, out, spec, len(self._batch))
        if not self._num_pages:
            self._num_pages = len(kv_layer)
            self._look_inside(self._batch)
        self._run(q, kv_layer, out, spec)

    def _look_inside(self, batch: DecodeBatch) -> None:
        if not self._check_contents:
            return
        if self.shape.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        check_contents(batch, self._num_pages, self.shape)

    @abstractmethod
    def _plan(self, batch: DecodeBatch, num_splits: int) -> None: ...

    @abstractmethod
    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None: ...
