"""A model's shape, read from a checkpoint's own metadata, in one vocabulary for all formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import ModelError


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding. ``scaling``: a ``rope_scaling`` entry in transformers' words, if any."""

    theta: float = 10000.0
    rotary_dim: int = 0  # 0: the whole head
    scaling: dict[str, Any] | None = None


@dataclass(frozen=True)
class LayerConfig:
    """What differs between layers. window: keys a query sees, 0 for all. rope: which of the
    model's, None for no rotation. routed: whether it has experts, in a model that has some.
    """

    window: int = 0
    rope: int | None = 0
    routed: bool = True


@dataclass(frozen=True)
class ExpertConfig:
    """A routed feed-forward. normalise: whether the chosen experts' shares are made to sum to 1."""

    count: int
    per_token: int
    intermediate_size: int
    normalise: bool


@dataclass(frozen=True)
class ModelConfig:
    """The shape of every decoder-only architecture here.

    layers: one entry a layer; () where all are as LayerConfig's defaults.
    attention_scale: multiplies q.k; 0 means 1/sqrt(head_dim). softcap, logit_softcap: 0 for none.
    qk_norm: RMS norm of each head's Q and K. post_norms: norms after attention and feed-forward.
    fused_weights: the checkpoint itself holds QKV as one tensor, and gate with up.
    wide_range: activations pass float16's largest value, 65504.
    """

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
    ropes: tuple[RopeConfig, ...] = field(default_factory=lambda: (RopeConfig(),))
    layers: tuple[LayerConfig, ...] = ()
    tie_embeddings: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_scale: float = 0.0
    softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    fused_weights: bool = False
    wide_range: bool = False
    experts: ExpertConfig | None = None

    def __post_init__(self) -> None:
        if len(self.layers) not in (0, self.num_layers):
            raise ModelError(
                f"the configuration describes {len(self.layers)} of {self.num_layers} layers: fetch"
                " the model again"
            )
        if self.num_qo_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_qo_heads} query heads cannot share {self.num_kv_heads} KV heads: fetch"
                " the model again"
            )
        for rope in self.ropes:
            if rope.rotary_dim % 2 or not 0 <= rope.rotary_dim <= self.head_dim:
                raise ModelError(
                    f"{rope.rotary_dim} numbers of a head of {self.head_dim} cannot be rotated in"
                    " pairs: fetch the model again"
                )

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_qo_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all KV heads together."""
        return self.num_kv_heads * self.head_dim

    def layer(self, index: int) -> LayerConfig:
        return self.layers[index] if self.layers else LayerConfig()
