"""The reference strategy: gather each row's pages, then torch's attention. Runs everywhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .attend import attend
from .batch import DecodeBatch, LayerSpec
from .gather import Gather, gather_rows
from .merge import with_sinks
from .torch_strategy import TorchStrategy


class Sdpa(TorchStrategy[list[Gather]]):
    """One gather and one attention call per row; ``num_splits`` is ignored."""

    name = "sdpa"

    def _gather(self, batch: DecodeBatch, window: int) -> list[Gather]:
        return gather_rows(self.shape, batch, window, 1, self._scratch)

    def _attend(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        gathers, shape = self._gathers_for(spec.window), self.shape
        size = (len(gathers), 1, shape.num_kv_heads, shape.group_size, shape.head_dim)
        q, out = q.view(size), out.view(size)
        for row, gather in enumerate(gathers):
            k, v = gather(kv_layer)
            query = q[row].to(k.dtype)
            if spec.softcap or spec.sinks is not None:
                result = with_sinks(*attend(query, k, v, spec, mask=None), self._sinks(spec))
            else:
                result = F.scaled_dot_product_attention(query, k, v, scale=spec.scale)
            out[row].copy_(result)
