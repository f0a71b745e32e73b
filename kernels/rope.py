"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864)."""

from __future__ import annotations

import torch


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first ``rot`` dimensions of each head; the rest pass through.

    Half-split (NeoX) layout: dimension i pairs with i + rot/2.
    x: [N, H, d]; cos, sin: [N, rot/2] at the rows' positions. Returns a new [N, H, d].
    """
    if x.device.type == "cuda":
        from .rope_triton import apply_rope_triton

        return apply_rope_triton(x, cos, sin)
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    a, b = x[..., :half], x[..., half : 2 * half]
    parts = [torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)]
    if 2 * half < x.shape[-1]:
        parts.append(x[..., 2 * half :])
    return torch.cat(parts, dim=-1)
