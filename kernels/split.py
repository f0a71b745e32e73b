"""Sequence splitting in torch: each row cut into up to ``num_splits`` equal runs, then merged.

The PersistentKV paper calls this schedule "bucket"; split_triton is its CUDA form, one rectangular
grid over (row, KV head, split). Here rows go one after another, and all of a row's splits at once.
"""

from __future__ import annotations

import torch

from .attend import attend
from .batch import AttentionShape, DecodeBatch, LayerSpec
from .gather import Gather, Scratch, gather_rows
from .merge import merge_states


class Split:
    """Best with few rows: no padding between rows of different lengths."""

    name = "split"
    capturable = False

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._scratch = Scratch()
        self._batch: DecodeBatch | None = None
        self._num_splits = 1
        self._gathers: dict[int, list[Gather]] = {}  # by window

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        self._batch = batch
        self._num_splits = num_splits
        self._gathers.clear()

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        shape, batch, window = self.shape, self._batch, spec.window
        assert batch is not None, "plan() comes first"
        if window not in self._gathers:
            self._gathers[window] = gather_rows(
                shape, batch, window, self._num_splits, self._scratch
            )
        size = (len(batch), 1, shape.num_kv_heads, shape.group_size, shape.head_dim)
        q, out = q.view(size), out.view(size)
        for row, gather in enumerate(self._gathers[window]):
            k, v = gather(kv_layer)
            query = q[row].to(k.dtype).expand(gather.num_tasks, -1, -1, -1)
            partial, lse = attend(query, k, v, spec, gather.mask)
            out[row].copy_(partial if gather.num_tasks == 1 else merge_states(partial, lse))
