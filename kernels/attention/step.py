"""What one engine step does between a layer's QKV projection and its output projection."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .batch import DecodeBatch, LayerSpec, PrefillChunk
from .flashinfer_prefill import PagedPrefill
from .kv import kv_rows
from .prefill import PrefillAttention
from .qkv import HeadNorm, Rotation, store_qkv
from .strategy import Strategy


class StepAttention:
    """Writes the new K/V of all rows, then attends: decode rows first, then the chunks in order.

    slot_mapping: [N] int64 for all N rows. ``strategy`` must have planned for ``decode``; both
    are None in a step that only prefills. paged: has planned for all chunks, and reads them at
    once; None leaves each of ``prefill`` to torch.
    """

    def __init__(
        self,
        kv_layers: Sequence[torch.Tensor],
        layer_specs: Sequence[LayerSpec],
        slot_mapping: torch.Tensor,
        decode: DecodeBatch | None,
        strategy: Strategy | None,
        prefill: Sequence[PrefillChunk] = (),
        paged: PagedPrefill | None = None,
    ) -> None:
        self.kv_layers = kv_layers
        self.layer_specs = layer_specs
        self.rows = kv_rows(slot_mapping, kv_layers[0])
        self.num_decode = len(decode) if decode is not None else 0
        self.strategy = strategy
        self.paged = paged
        self.prefill = [PrefillAttention(chunk) for chunk in prefill]

    def __call__(
        self,
        layer: int,
        qkv: torch.Tensor,
        rotation: Rotation | None,
        norm: HeadNorm | None,
    ) -> torch.Tensor:
        """qkv: [N, num_qo_heads + 2 * num_kv_heads, head_dim]; rotation, norm: see ``qkv``.

        Returns [N, num_qo_heads, head_dim].
        """
        kv_layer, spec = self.kv_layers[layer], self.layer_specs[layer]
        q = store_qkv(qkv, rotation, norm, kv_layer, self.rows)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        row = self.num_decode
        if self.strategy is not None and row:
            self.strategy.run(q[:row].contiguous(), kv_layer, out[:row], spec)
        if self.paged is not None:
            self.paged.run(q[row:], kv_layer, out[row:], spec)
        for prefill in self.prefill:
            rows = slice(row, row + prefill.chunk.num_tokens)
            prefill.run(q[rows], kv_layer, out[rows], spec)
            row = rows.stop
        return out
