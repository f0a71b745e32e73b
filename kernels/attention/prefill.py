"""Causal attention of a chunk of new tokens over one sequence's paged context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .attend import attend
from .batch import QUANT_MAX, AttentionShape, LayerSpec, PrefillChunk
from .gather import Gather, Scratch
from .kv import tokens_per_page
from .merge import with_sinks
from .tasks import Task


@dataclass(frozen=True)
class _Keys:
    """mask: [n, keys] fp32 to add to the scores; None where the chunk is the whole context."""

    gather: Gather
    mask: torch.Tensor | None


class PrefillAttention:
    """One chunk of one step; what its layers share is computed at the first of them."""

    def __init__(self, chunk: PrefillChunk) -> None:
        self.chunk = chunk
        self._keys: dict[int, _Keys] = {}  # by window
        self._scratch = Scratch()

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        """q, out: [n, num_qo_heads, head_dim], n = chunk.num_tokens; kv_layer: see ``batch``."""
        if spec.window not in self._keys:
            self._keys[spec.window] = self._plan(q, kv_layer, spec.window)
        keys = self._keys[spec.window]
        k, v = keys.gather(kv_layer)
        n, num_qo_heads, head_dim = q.shape
        by_head = (n, kv_layer.shape[2], num_qo_heads // kv_layer.shape[2], head_dim)
        queries, results = q.view(by_head).transpose(0, 1), out.view(by_head).transpose(0, 1)
        # One query head of each group at a time, so that no K or V is repeated.
        for head in range(by_head[2]):
            query = queries[None, :, :, head].to(k.dtype)
            sinks = None if spec.sinks is None else spec.sinks.view(by_head[1:3])[:, head, None]
            results[:, :, head].copy_(_causal(query, k, v, spec, keys.mask, sinks)[0])

    def _plan(self, q: torch.Tensor, kv_layer: torch.Tensor, window: int) -> _Keys:
        chunk, device = self.chunk, q.device
        _, _, num_kv_heads, _, head_dim = kv_layer.shape
        page_size, kv_dtype = tokens_per_page(kv_layer), kv_layer.dtype
        dtype = q.dtype if kv_dtype in QUANT_MAX else kv_dtype
        shape = AttentionShape(
            q.shape[1], num_kv_heads, head_dim, page_size, dtype, device, kv_dtype
        )
        end, start = chunk.context_len, chunk.context_len - chunk.num_tokens
        begin = max(0, start - window + 1) if window else 0
        task = Task(0, begin // page_size, begin, end)
        gather = Gather(shape, chunk.block_table[None], (end,), [task], self._scratch)
        if start == 0 and not 0 < window < end:
            return _Keys(gather, None)
        positions = torch.arange(start, end, device=device).unsqueeze(1)
        keys = torch.arange(begin, end, device=device)
        hidden = keys > positions
        if window:
            hidden |= keys <= positions - window
        mask = torch.zeros(hidden.shape, device=device)
        return _Keys(gather, mask.masked_fill_(hidden, float("-inf")))


def _causal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: LayerSpec,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q: [1, H, n, d]; k, v: [1, H, keys, d]; mask None: the keys are the n rows' own.

    sinks: [H, 1] or None, in the place of spec's.
    """
    if not spec.softcap and sinks is None:
        mask = None if mask is None else mask.to(q.dtype)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=spec.scale
        )
    if mask is None:
        n = q.shape[2]
        mask = torch.full((n, n), float("-inf"), device=q.device).triu_(1)
    return with_sinks(*attend(q, k, v, spec, mask), sinks)
