"""From the QKV product to attention: Q and K normed and rotated, K and V into the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..norm import rms_norm
from ..rope import apply_rope
from .kv import write_kv

Rotation = tuple[torch.Tensor, torch.Tensor]  # cos, sin, each [N, rotary_dim / 2]


@dataclass(frozen=True)
class HeadNorm:
    """The RMS norm of each head before its rotation. q, k: weights, [head_dim]."""

    q: torch.Tensor
    k: torch.Tensor
    eps: float


def split_qkv(
    qkv: torch.Tensor, num_kv_heads: int, rotation: Rotation | None, norm: HeadNorm | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q and K, normed and rotated, and V. qkv: [N, num_qo_heads + 2 * num_kv_heads, head_dim]."""
    qk, v = qkv[:, :-num_kv_heads], qkv[:, -num_kv_heads:]
    if norm is not None:
        q = rms_norm(qk[:, :-num_kv_heads], norm.q, norm.eps)
        k = rms_norm(qk[:, -num_kv_heads:], norm.k, norm.eps)
        qk = torch.cat((q, k), dim=1)
    if rotation is not None:  # Q and K lie side by side: one call rotates both
        qk = apply_rope(qk, *rotation)
    return qk[:, :-num_kv_heads], qk[:, -num_kv_heads:], v


def store_qkv(
    qkv: torch.Tensor,
    rotation: Rotation | None,
    norm: HeadNorm | None,
    kv_layer: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """Split as ``split_qkv`` does, store K and V as ``kv.write_kv`` does, return Q.

    One kernel on CUDA.
    """
    num_kv_heads = kv_layer.shape[2]
    if qkv.device.type == "cuda":
        from .qkv_triton import store_qkv_triton

        return store_qkv_triton(qkv, rotation, norm, kv_layer, rows)
    q, k, v = split_qkv(qkv, num_kv_heads, rotation, norm)
    write_kv(kv_layer, rows, k, v)
    return q
