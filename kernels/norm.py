"""Root-mean-square normalisation (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in x's dtype.

    x: [..., D]; weight: [D], any float dtype. Computed in fp32 at least.
    """
    if x.device.type == "cuda":
        from .norm_triton import rms_norm_triton

        return rms_norm_triton(x, weight, eps)
    return _normed(x, weight, eps).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (rms_norm(residual + x) in x's dtype, residual + x in residual's dtype).

    x, residual: [..., D]. A float32 residual keeps its precision under 16-bit blocks.
    """
    if x.device.type == "cuda":
        from .norm_triton import add_rms_norm_triton

        return add_rms_norm_triton(x, residual, weight, eps)
    residual = residual + x
    return _normed(residual, weight, eps).to(x.dtype), residual


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In float32 or more. torch's own rms_norm takes several times as long on CPU."""
    width = x.shape[-1]
    x = x if x.dtype == torch.float64 else x.float()
    inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    inverse.mul_(1 / width).add_(eps).rsqrt_()
    normed: torch.Tensor = (x * inverse).mul_(weight)
    return normed
