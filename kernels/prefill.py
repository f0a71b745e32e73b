"""Causal attention of a chunk of new tokens over one sequence's paged context."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .batch import LayerSpec, PrefillChunk


def prefill_attention(
    q: torch.Tensor,
    kv_layer: torch.Tensor,
    chunk: PrefillChunk,
    spec: LayerSpec,
    out: torch.Tensor,
) -> None:
    """q, out: [n, num_qo_heads, head_dim], n = chunk.num_tokens; kv_layer: see ``batch``."""
    n, num_qo_heads, head_dim = q.shape
    num_kv_heads, page_size = kv_layer.shape[2], kv_layer.shape[3]
    end = chunk.context_len
    first = max(0, end - n - spec.window + 1) if spec.window else 0
    first_page = first // page_size
    pages = chunk.block_table[first_page : -(-end // page_size)].long()
    kv = kv_layer[pages].permute(1, 2, 0, 3, 4).reshape(2, num_kv_heads, -1, head_dim)
    kv = kv[:, :, first - first_page * page_size : end - first_page * page_size].to(q.dtype)
    positions = torch.arange(end - n, end, device=q.device).unsqueeze(1)
    keys = torch.arange(first, end, device=q.device)
    mask = keys <= positions
    if spec.window:
        mask &= keys > positions - spec.window
    group = num_qo_heads // num_kv_heads
    queries = q.transpose(0, 1)
    k, v = kv.repeat_interleave(group, dim=1)
    if spec.softcap:
        scores = (queries @ k.transpose(1, 2)).float() * spec.scale
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1).to(q.dtype)
        result = weights @ v
    else:
        result = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, scale=spec.scale)
    out.copy_(result.transpose(0, 1))
