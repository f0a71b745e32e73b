"""Rotary position embedding: inverse frequencies, their scalings, and cosines at positions."""

from __future__ import annotations

import math
from typing import Any

import torch

from .config import RopeConfig
from .errors import ModelError


class Rope:
    """Cosines and sines of the rotation at any position, computed per step in float32.

    Scalings that depend on the length of the sequence (dynamic, longrope) are set once, for
    ``context`` tokens: keys in the cache cannot be rotated again as a sequence grows.
    """

    def __init__(
        self,
        config: RopeConfig,
        head_dim: int,
        trained_context: int,
        context: int,
        device: torch.device,
    ) -> None:
        """trained_context: the model's own limit. Raises ModelError for a scaling that is unknown,
        or whose parameters are missing or wrong.
        """
        dim = config.rotary_dim or head_dim
        try:
            inv_freq, self.magnitude = _scaled(config, dim, trained_context, context)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise ModelError(f"rope scaling {config.scaling} is not usable: {error!r}") from error
        if inv_freq.shape != (dim // 2,):
            raise ModelError(f"rope scaling has {len(inv_freq)} factors for {dim // 2} frequencies")
        self.inv_freq = inv_freq.to(device)

    def __call__(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """positions: [N] int64; returns cos, sin, each [N, rotary_dim / 2]."""
        angles = positions.to(torch.float32).unsqueeze(1) * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self.magnitude != 1.0:
            cos, sin = cos * self.magnitude, sin * self.magnitude
        return cos.to(dtype), sin.to(dtype)


def _scaled(
    config: RopeConfig, dim: int, trained_context: int, context: int
) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [dim / 2], and what cosines and sines are multiplied by."""
    scaling = config.scaling or {}
    kind = scaling.get("rope_type", "default")
    theta, inv_freq = config.theta, _inverse_frequencies(config.theta, dim)
    if kind == "default":
        return inv_freq, 1.0
    if kind == "linear":
        return inv_freq / scaling["factor"], 1.0
    if kind == "dynamic":  # "NTK-aware": the base grows with the context
        stretch = scaling["factor"] * max(context, trained_context) / trained_context
        grown = theta * (stretch - (scaling["factor"] - 1)) ** (dim / (dim - 2))
        return _inverse_frequencies(grown, dim), 1.0
    if kind == "llama3":
        return _llama3(inv_freq, scaling), 1.0
    if kind == "yarn":
        return _yarn(inv_freq, theta, dim, scaling)
    if kind == "longrope":
        factors, magnitude = _longrope(scaling, trained_context, context)
        return inv_freq / factors, magnitude
    raise ValueError(f"unknown rope_type '{kind}'")


def _inverse_frequencies(theta: float, dim: int) -> torch.Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return torch.pow(torch.tensor(theta), -exponents)


def _llama3(inv_freq: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1: long wavelengths stretched, short ones kept, those between blended."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    blend: torch.Tensor = keep + (1 - keep) / scaling["factor"]
    return inv_freq * blend


def _yarn(
    inv_freq: torch.Tensor, theta: float, dim: int, scaling: dict[str, Any]
) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071), section 3.2 to 3.4."""
    factor = scaling["factor"]
    original = scaling["original_max_position_embeddings"]

    def boundary(rotations: float) -> float:
        """The dimension that turns ``rotations`` times over the original context."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = boundary(scaling.get("beta_fast") or 32)
    high = boundary(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2) - low) / max(high - low, 0.001)
    keep = 1 - ramp.clamp(0, 1)
    magnitude = scaling.get("attention_factor")
    if magnitude is None:
        magnitude = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return inv_freq * (keep + (1 - keep) / factor), magnitude


def _longrope(
    scaling: dict[str, Any], trained_context: int, context: int
) -> tuple[torch.Tensor, float]:
    """LongRoPE (Ding et al. 2024, https://arxiv.org/abs/2402.13753) as in Phi-3."""
    original = scaling["original_max_position_embeddings"]
    factors = scaling["long_factor" if context > original else "short_factor"]
    magnitude = scaling.get("attention_factor")
    if magnitude is None:
        factor = scaling.get("factor") or trained_context / original
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return torch.tensor(factors, dtype=torch.float32), magnitude
