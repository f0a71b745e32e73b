"""Sequence splitting in torch: each row cut into up to ``num_splits`` equal runs, then merged.

The PersistentKV paper calls this schedule "bucket"; split_triton is its CUDA form, one rectangular
grid over (row, KV head, split). Here rows go one after another, and all of a row's splits at once.
"""

from __future__ import annotations

import torch

from .attend import attend
from .batch import DecodeBatch, LayerSpec
from .gather import Gather, gather_rows
from .merge import merge_states, with_sinks
from .torch_strategy import TorchStrategy


class Split(TorchStrategy[list[Gather]]):
    """Best with few rows: no padding between rows of different lengths."""

    name = "split"

    def _gather(self, batch: DecodeBatch, window: int) -> list[Gather]:
        return gather_rows(self.shape, batch, window, self._num_splits, self._scratch)

    def _attend(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        gathers, shape = self._gathers_for(spec.window), self.shape
        size = (len(gathers), 1, shape.num_kv_heads, shape.group_size, shape.head_dim)
        q, out = q.view(size), out.view(size)
        for row, gather in enumerate(gathers):
            k, v = gather(kv_layer)
            query = q[row].to(k.dtype).expand(gather.num_tasks, -1, -1, -1)
            result, lse = attend(query, k, v, spec, gather.mask)
            if gather.num_tasks > 1:
                result, lse = merge_states(result, lse)
            out[row].copy_(with_sinks(result, lse, self._sinks(spec)))
