"""Root-mean-square normalisation (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in x's dtype.

    x: [..., D]; weight: [D], any float dtype.
    """
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (rms_norm(residual + x), residual + x); both [..., D]."""
    residual = residual + x
    return rms_norm(residual, weight, eps), residual
