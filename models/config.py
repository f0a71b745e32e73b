"""A model's shape, read from a checkpoint's own metadata, in one vocabulary for all formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding. ``scaling`` holds the checkpoint's own rope-scaling entry, if any."""

    theta: float = 10000.0
    rotary_dim: int = 0  # 0: the whole head
    scaling: dict[str, Any] | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The shape shared by every decoder-only architecture here; family-only fields in ``extra``."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_embeddings: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_qo_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all KV heads together."""
        return self.num_kv_heads * self.head_dim
