"""Causal attention of a chunk of new tokens over one sequence's paged context."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .attend import attend
from .batch import AttentionShape, LayerSpec, PrefillChunk
from .gather import Gather, Scratch
from .tasks import Task


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
    shape = AttentionShape(num_qo_heads, num_kv_heads, head_dim, page_size, q.dtype, q.device)
    end = chunk.context_len
    begin = max(0, end - n - spec.window + 1) if spec.window else 0
    task = Task(0, begin // page_size, begin, end)
    k, v = Gather(shape, chunk.block_table[None], (end,), [task], Scratch())(kv_layer)
    positions = torch.arange(end - n, end, device=q.device).unsqueeze(1)
    keys = torch.arange(begin, end, device=q.device)
    hidden = keys > positions
    if spec.window:
        hidden |= keys <= positions - spec.window
    mask = torch.zeros(hidden.shape, device=q.device).masked_fill_(hidden, float("-inf"))
    # [1, Hkv, G * n, d]: the query group folds into the rows, so that no K or V is repeated.
    group = shape.group_size
    query = q.view(n, num_kv_heads, group, head_dim).permute(1, 2, 0, 3).flatten(1, 2)[None]
    mask = mask.repeat(group, 1)[None, None]
    query = query.to(k.dtype)
    if spec.softcap:
        result, _ = attend(query, k, v, spec, mask)
    else:
        mask = mask.to(k.dtype)
        result = F.scaled_dot_product_attention(query, k, v, attn_mask=mask, scale=spec.scale)
    out.view(n, num_kv_heads, group, head_dim).copy_(
        result.view(num_kv_heads, group, n, head_dim).permute(2, 0, 1, 3)
    )
