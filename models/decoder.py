"""The pre-norm decoder that every family here is a variant of."""

from __future__ import annotations

import torch

from pkvchat.kernels.attention.batch import LayerSpec
from pkvchat.kernels.norm import add_rms_norm, rms_norm

from .blocks import Attention, FeedForward, RoutedFeedForward
from .causal_lm import Attend
from .config import ModelConfig
from .rope import Rope
from .weight_plan import WeightPlan


class DecoderLayer:
    """Norm, attention, norm, feed-forward; the norms after each block only some families have."""

    def __init__(self, index: int, config: ModelConfig, weights: WeightPlan) -> None:
        def norm(name: str) -> torch.Tensor:
            return weights.vector(f"blk.{index}.{name}.weight", config.hidden_size)

        self.rope = config.layer(index).rope
        self.attention_norm = norm("attn_norm")
        self.attention = Attention(index, config, weights)
        self.attention_post_norm = norm("post_attention_norm") if config.post_norms else None
        self.feed_forward_norm = norm("ffn_norm")
        self.feed_forward = (
            RoutedFeedForward(index, config, config.experts, weights)
            if config.experts and config.layer(index).routed
            else FeedForward(index, config, weights)
        )
        self.feed_forward_post_norm = norm("post_ffw_norm") if config.post_norms else None


class Decoder:
    """Implements CausalLM."""

    def __init__(self, config: ModelConfig, weights: WeightPlan, context: int = 0) -> None:
        """context: tokens in a sequence at most, for rope scalings; 0 is the model's own limit."""
        self.config, self.device, self.dtype = config, weights.device, weights.dtype
        scale = config.attention_scale or config.head_dim**-0.5
        layers = range(config.num_layers)
        self.layer_specs = [
            LayerSpec(scale, config.layer(i).window, config.softcap) for i in layers
        ]
        longest = context or config.context_length
        self.ropes = [
            Rope(rope, config.head_dim, config.context_length, longest, weights.device)
            for rope in config.ropes
        ]
        self.embedding = weights.table("token_embd", config.vocab_size, config.hidden_size)
        table = 0 if config.tie_embeddings else weights.nbytes
        self.layers = [DecoderLayer(i, config, weights) for i in layers]
        self.output_norm = weights.vector("output_norm.weight", config.hidden_size)
        self.output = (
            self.embedding
            if config.tie_embeddings
            else weights.table("output", config.vocab_size, config.hidden_size)
        )
        weights.finish()
        self._nbytes = weights.nbytes
        self._step_nbytes = weights.nbytes - table - self._unread(weights.expert_nbytes)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """See CausalLM.forward."""
        eps, scale = self.config.rms_norm_eps, self.config.embedding_scale
        residual = self.embedding.rows(token_ids, self.dtype)
        if scale != 1.0:
            residual = residual * torch.tensor(scale, dtype=self.dtype)
        rotations = [rope(positions, self.dtype) for rope in self.ropes]
        update = torch.zeros_like(residual)
        for layer in self.layers:
            x, residual = add_rms_norm(update, residual, layer.attention_norm, eps)
            rotation = None if layer.rope is None else rotations[layer.rope]
            update = layer.attention(x, rotation, attend)
            if layer.attention_post_norm is not None:
                update = rms_norm(update, layer.attention_post_norm, eps)
            x, residual = add_rms_norm(update, residual, layer.feed_forward_norm, eps)
            update = layer.feed_forward(x)
            if layer.feed_forward_post_norm is not None:
                update = rms_norm(update, layer.feed_forward_post_norm, eps)
        last = (residual + update)[logit_rows]
        logits = self.output(rms_norm(last, self.output_norm, eps)).float()
        if cap := self.config.logit_softcap:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def _unread(self, expert_nbytes: int) -> int:
        """Of the experts' bytes, those that a step for one token has no use for."""
        experts = self.config.experts
        return expert_nbytes - expert_nbytes * experts.per_token // experts.count if experts else 0

    def nbytes(self) -> int:
        """Bytes of weights held."""
        return self._nbytes

    def step_nbytes(self) -> int:
        """See CausalLM.step_nbytes."""
        return self._step_nbytes
