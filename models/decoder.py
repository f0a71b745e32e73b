"""The pre-norm decoder that every family here is a variant of."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pkvchat.kernels.batch import LayerSpec
from pkvchat.kernels.norm import add_rms_norm, rms_norm

from .blocks import Attention, FeedForward
from .causal_lm import Attend
from .config import ModelConfig
from .rope import Rope
from .weights import WeightReader


class DecoderLayer:
    """Norm, attention, norm, feed-forward, each added to the residual stream."""

    def __init__(self, index: int, config: ModelConfig, weights: WeightReader) -> None:
        hidden = config.hidden_size
        self.attention_norm = weights.vector(f"blk.{index}.attn_norm.weight", hidden)
        self.attention = Attention(index, config, weights)
        self.feed_forward_norm = weights.vector(f"blk.{index}.ffn_norm.weight", hidden)
        self.feed_forward = FeedForward(index, config, weights)


class Decoder:
    """Implements CausalLM."""

    def __init__(self, config: ModelConfig, weights: WeightReader) -> None:
        self.config, self.device, self.dtype = config, weights.device, weights.dtype
        self.layer_specs = [LayerSpec(config.head_dim**-0.5)] * config.num_layers
        vocabulary = {"token_embd": config.vocab_size}
        self.embedding = weights.linear(vocabulary, config.hidden_size)
        self.rope = Rope(config.rope, config.head_dim, weights.device)
        self.layers = [DecoderLayer(i, config, weights) for i in range(config.num_layers)]
        self.output_norm = weights.vector("output_norm.weight", config.hidden_size)
        self.output = (
            self.embedding
            if config.tie_embeddings
            else weights.linear({"output": config.vocab_size}, config.hidden_size)
        )
        weights.finish()
        self._nbytes = weights.nbytes

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """See CausalLM.forward."""
        eps = self.config.rms_norm_eps
        residual = F.embedding(token_ids, self.embedding.weight).to(self.dtype)
        cos, sin = self.rope(positions, self.dtype)
        update = torch.zeros_like(residual)
        for layer in self.layers:
            x, residual = add_rms_norm(update, residual, layer.attention_norm, eps)
            update = layer.attention(x, cos, sin, attend)
            x, residual = add_rms_norm(update, residual, layer.feed_forward_norm, eps)
            update = layer.feed_forward(x)
        last = (residual + update)[logit_rows]
        return self.output(rms_norm(last, self.output_norm, eps)).float()

    def nbytes(self) -> int:
        """Bytes of weights held."""
        return self._nbytes
