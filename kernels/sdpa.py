"""The reference strategy: gather each row's pages, then torch's attention. Runs everywhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .batch import AttentionShape, DecodeBatch, LayerSpec


class Sdpa:
    """One gather and one attention call per row; ``num_splits`` is ignored."""

    name = "sdpa"

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._batch: DecodeBatch | None = None

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:  # noqa: ARG002
        self._batch = batch

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        shape, batch = self.shape, self._batch
        assert batch is not None, "plan() comes first"
        for row, length in enumerate(batch.lengths):
            first = max(0, length - spec.window) if spec.window else 0
            first_page = first // shape.page_size
            pages = batch.block_table[row, first_page : -(-length // shape.page_size)]
            kv = kv_layer[pages.long()].permute(1, 2, 0, 3, 4)
            kv = kv.reshape(2, shape.num_kv_heads, -1, shape.head_dim)
            offset = first_page * shape.page_size
            k, v = kv[:, :, first - offset : length - offset].to(q.dtype)
            queries = q[row].view(shape.num_kv_heads, shape.group_size, shape.head_dim)
            if spec.softcap:
                scores = (queries @ k.transpose(1, 2)).float() * spec.scale
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
                result = scores.softmax(dim=-1).to(q.dtype) @ v
            else:
                result = F.scaled_dot_product_attention(queries, k, v, scale=spec.scale)
            out[row] = result.view(shape.num_qo_heads, shape.head_dim)
