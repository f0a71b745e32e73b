"""The reference strategy: gather each row's pages, then torch's attention. Runs everywhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .attend import attend
from .batch import AttentionShape, DecodeBatch, LayerSpec
from .gather import Gather, Scratch, gather_rows


class Sdpa:
    """One gather and one attention call per row; ``num_splits`` is ignored."""

    name = "sdpa"
    capturable = False

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._scratch = Scratch()
        self._batch: DecodeBatch | None = None
        self._gathers: dict[int, list[Gather]] = {}  # by window

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        self._batch = batch
        self._gathers.clear()

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        shape, batch, window = self.shape, self._batch, spec.window
        assert batch is not None, "plan() comes first"
        if window not in self._gathers:
            self._gathers[window] = gather_rows(shape, batch, window, 1, self._scratch)
        size = (len(batch), 1, shape.num_kv_heads, shape.group_size, shape.head_dim)
        q, out = q.view(size), out.view(size)
        for row, gather in enumerate(self._gathers[window]):
            k, v = gather(kv_layer)
            query = q[row].to(k.dtype)
            if spec.softcap:
                result, _ = attend(query, k, v, spec, mask=None)
            else:
                result = F.scaled_dot_product_attention(query, k, v, scale=spec.scale)
            out[row].copy_(result)
