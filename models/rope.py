"""Rotary position embedding: inverse frequencies, and cosines at given positions."""

from __future__ import annotations

import torch

from .config import RopeConfig


class Rope:
    """Cosines and sines of the rotation at any position, computed per step in float32."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        rotary_dim = config.rotary_dim or head_dim
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device) / rotary_dim
        self.inv_freq = 1.0 / config.theta**exponents

    def __call__(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """positions: [N] int64; returns cos, sin, each [N, rotary_dim / 2]."""
        angles = positions.to(torch.float32).unsqueeze(1) * self.inv_freq
        return angles.cos().to(dtype), angles.sin().to(dtype)
