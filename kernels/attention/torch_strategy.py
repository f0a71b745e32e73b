"""What sdpa, split and workqueue share in torch: the pages are gathered, then attended to."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec
from .gather import Scratch
from .paged_strategy import PagedStrategy

Gathers = TypeVar("Gathers")


class TorchStrategy(PagedStrategy, Generic[Gathers]):
    """Computes what to gather once per step and window, at the first layer that needs it.

    Rows of length 0 give zeros.
    """

    capturable = False

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._scratch = Scratch()
        self._num_splits = 1
        self._rows: torch.Tensor | None = None  # those that are not empty, where some are
        self._filled: DecodeBatch | None = None  # those rows
        self._gathers: dict[int, Gathers] = {}  # by window

    def _plan(self, batch: DecodeBatch, num_splits: int) -> None:
        self._num_splits = num_splits
        self._gathers.clear()
        self._rows, self._filled = None, batch
        if not all(batch.lengths):
            filled = [row for row, length in enumerate(batch.lengths) if length]
            rows = self._rows = torch.tensor(filled, dtype=torch.int64, device=self.shape.device)
            self._filled = DecodeBatch(
                batch.block_table[rows],
                batch.seq_lens[rows],
                batch.slot_mapping[rows],
                tuple(batch.lengths[row] for row in filled),
            )

    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        if self._rows is None:
            self._attend(q, kv_layer, out, spec)
            return
        out.zero_()
        if len(self._rows):
            result = out[self._rows]
            self._attend(q[self._rows], kv_layer, result, spec)
            out[self._rows] = result

    def _gathers_for(self, window: int) -> Gathers:
        assert self._filled is not None, "plan() comes first"
        if window not in self._gathers:
            self._gathers[window] = self._gather(self._filled, window)
        return self._gathers[window]

    def _sinks(self, spec: LayerSpec) -> torch.Tensor | None:
        """[num_kv_heads, group_size], or None."""
        if spec.sinks is None:
            return None
        return spec.sinks.view(self.shape.num_kv_heads, self.shape.group_size)

    @abstractmethod
    def _gather(self, batch: DecodeBatch, window: int) -> Gathers: ...

    @abstractmethod
    def _attend(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        """Run, where no row is empty."""
