"""Root-mean-square normalisation (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in x's dtype.

    x: [..., D]; weight: [D], any float dtype. Computed in fp32 at least.
    """
    return _normed(x, weight, eps).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (rms_norm(residual + x) in x's dtype, residual + x in residual's dtype).

    x, residual: [..., D]. A float32 residual keeps its precision under 16-bit blocks.
    """
    residual = residual + x
    return _normed(residual, weight, eps).to(x.dtype), residual


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """float32 on CPU, x's dtype elsewhere."""
    width = x.shape[-1]
    if x.device.type != "cpu":
        return F.rms_norm(x, (width,), weight.to(x.dtype), eps)
    # torch's own takes several times as long on CPU.
    x = x if x.dtype == torch.float64 else x.float()
    inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    inverse.mul_(1 / width).add_(eps).rsqrt_()
    return (x * inverse).mul_(weight)
