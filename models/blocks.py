"""What decoder layers are made of: each block reads its weights once and is then a function."""

from __future__ import annotations

import torch

from pkvchat.kernels.activation import gated
from pkvchat.kernels.attention.qkv import HeadNorm, Rotation
from pkvchat.kernels.products.routed import FEW_ROWS, Experts

from .causal_lm import Attend
from .config import ExpertConfig, ModelConfig
from .weight_plan import WeightPlan


class Attention:
    """Grouped-query attention; Q, K and V come from one product."""

    def __init__(self, layer: int, config: ModelConfig, weights: WeightPlan) -> None:
        self.layer, self.head_dim = layer, config.head_dim
        name, hidden = f"blk.{layer}.attn", config.hidden_size
        qkv = {f"{name}_q": config.q_size, f"{name}_k": config.kv_size, f"{name}_v": config.kv_size}
        if config.fused_weights:
            qkv = {f"{name}_qkv": sum(qkv.values())}
        self.qkv = weights.linear(qkv, hidden, bias=config.qkv_bias)
        self.output = weights.linear(
            {f"{name}_output": hidden}, config.q_size, bias=config.output_bias
        )
        self.norm: HeadNorm | None = None
        if config.qk_norm:
            q_norm, k_norm = (
                weights.vector(f"{name}_{part}_norm.weight", config.head_dim) for part in "qk"
            )
            self.norm = HeadNorm(q_norm, k_norm, config.rms_norm_eps)

    def __call__(self, x: torch.Tensor, rotation: Rotation | None, attend: Attend) -> torch.Tensor:
        """x: [N, hidden_size], normed; rotation: None for a layer without rope."""
        qkv = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        attended = attend(self.layer, qkv, rotation, self.norm)
        return self.output(attended.reshape(x.shape[0], -1))


class FeedForward:
    """A gated feed-forward; gate and up come from one product."""

    def __init__(self, layer: int, config: ModelConfig, weights: WeightPlan) -> None:
        name, hidden, ffn = f"blk.{layer}.ffn", config.hidden_size, config.intermediate_size
        gate_up = {f"{name}_gate": ffn, f"{name}_up": ffn}
        if config.fused_weights:
            gate_up = {f"{name}_up": 2 * ffn}
        self.gate_up = weights.linear(gate_up, hidden)
        self.down = weights.linear({f"{name}_down": hidden}, ffn)
        self.activation = config.activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, hidden_size], normed."""
        return self.down(self.gate_up.gated(x, self.activation))


class RoutedFeedForward:
    """A mixture of experts: each token goes to a few, weighted by the router's softmax."""

    def __init__(
        self, layer: int, config: ModelConfig, experts: ExpertConfig, weights: WeightPlan
    ) -> None:
        name, hidden, ffn = f"blk.{layer}.ffn", config.hidden_size, experts.intermediate_size
        self.config = experts
        self.router = weights.linear({f"{name}_gate_inp": experts.count}, hidden)
        self.gates = weights.experts(f"{name}_gate_exps", experts.count, ffn, hidden)
        self.ups = weights.experts(f"{name}_up_exps", experts.count, ffn, hidden)
        self.downs = weights.experts(f"{name}_down_exps", experts.count, hidden, ffn)
        self.activation = config.activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, hidden_size], normed."""
        shares = self.router(x).softmax(dim=-1, dtype=torch.float32)
        shares, chosen = shares.topk(self.config.per_token, dim=-1)
        if self.config.normalise:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        few = x.device.type == "cuda" and len(x) <= FEW_ROWS
        results = self._at_once(x, chosen) if few else self._one_by_one(x, chosen)
        return (results * shares[..., None]).sum(1).to(x.dtype)

    def _at_once(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """What each chosen expert makes of a row, [N, k, hidden_size], in launches that a CUDA
        graph can hold.
        """
        pairs, ffn = chosen.numel(), self.config.intermediate_size
        gate_up = x.new_empty(pairs, 2 * ffn)
        self.gates.chosen(x, chosen, gate_up[:, :ffn])
        self.ups.chosen(x, chosen, gate_up[:, ffn:])
        results = x.new_empty(*chosen.shape, x.shape[1])
        self.downs.chosen(
            gated(gate_up, self.activation), chosen.view(-1, 1), results.flatten(0, 1)
        )
        return results

    def _one_by_one(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The same for any number of rows, which are brought together by expert."""
        order = chosen.flatten().argsort()
        counts = chosen.flatten().bincount(minlength=self.config.count).tolist()

        def multiply(experts: Experts, given: torch.Tensor) -> torch.Tensor:
            parts = zip(experts.products, given.split(counts), strict=True)
            return torch.cat([product(rows) for product, rows in parts if len(rows)])

        given = x[order // self.config.per_token]
        gate_up = torch.cat((multiply(self.gates, given), multiply(self.ups, given)), dim=-1)
        results = x.new_empty(*chosen.shape, x.shape[1])
        results.view(-1, x.shape[1])[order] = multiply(self.downs, gated(gate_up, self.activation))
        return results
