"""What decoder layers are made of: each block reads its weights once and is then a function."""

from __future__ import annotations

import torch

from pkvchat.kernels.activation import silu_mul
from pkvchat.kernels.rope import apply_rope

from .causal_lm import Attend
from .config import ModelConfig
from .weights import WeightReader


class Attention:
    """Grouped-query attention; Q, K and V come from one product."""

    def __init__(self, layer: int, config: ModelConfig, weights: WeightReader) -> None:
        self.layer, self.config = layer, config
        name = f"blk.{layer}.attn"
        qkv = {f"{name}_q": config.q_size, f"{name}_k": config.kv_size, f"{name}_v": config.kv_size}
        self.qkv = weights.linear(qkv, config.hidden_size)
        self.output = weights.linear({f"{name}_output": config.hidden_size}, config.q_size)
        self.rotated = config.num_qo_heads + config.num_kv_heads

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """x: [N, hidden_size], normed; cos, sin: [N, rotary_dim / 2]."""
        qkv = self.qkv(x).view(x.shape[0], -1, self.config.head_dim)
        # Q and K lie side by side, so one call rotates both.
        qk = apply_rope(qkv[:, : self.rotated], cos, sin)
        q, k = qk[:, : self.config.num_qo_heads], qk[:, self.config.num_qo_heads :]
        attended = attend(self.layer, q, k, qkv[:, self.rotated :])
        return self.output(attended.reshape(x.shape[0], -1))


class FeedForward:
    """SwiGLU; gate and up come from one product."""

    def __init__(self, layer: int, config: ModelConfig, weights: WeightReader) -> None:
        name, ffn = f"blk.{layer}.ffn", config.intermediate_size
        self.gate_up = weights.linear({f"{name}_gate": ffn, f"{name}_up": ffn}, config.hidden_size)
        self.down = weights.linear({f"{name}_down": config.hidden_size}, ffn)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, hidden_size], normed."""
        return self.down(silu_mul(self.gate_up(x)))
