"""The part of GGUF's metadata that all architectures share. Keys: docs/gguf.md of ggml-org/ggml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .checkpoint import Shape
from .config import ExpertConfig, ModelConfig, RopeConfig
from .metadata import Metadata


class GgufKeys:
    """Entries under the file's own architecture prefix."""

    def __init__(self, meta: Metadata) -> None:
        self.meta = meta
        self.arch = meta.get("general.architecture", str)

    def size(self, key: str, *default: int) -> int:
        return self.meta.size(f"{self.arch}.{key}", *default)

    def number(self, key: str, *default: float) -> float:
        return self.meta.get(f"{self.arch}.{key}", float, *default)

    def positive(self, key: str, *default: float) -> float:
        return self.meta.positive(f"{self.arch}.{key}", *default)

    def text(self, key: str, default: str) -> str:
        return self.meta.get(f"{self.arch}.{key}", str, default)


def read_gguf(meta: Metadata, shapes: Mapping[str, Shape]) -> ModelConfig:
    """A plain Llama-like config; families replace what they have otherwise."""
    keys = GgufKeys(meta)
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    head_dim = keys.size("attention.key_length", hidden // heads)
    intermediate = keys.size("feed_forward_length")
    return ModelConfig(
        architecture=keys.arch,
        vocab_size=shapes["token_embd.weight"][0],
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=keys.size("block_count"),
        num_qo_heads=heads,
        num_kv_heads=keys.size("attention.head_count_kv", heads),
        head_dim=head_dim,
        context_length=keys.size("context_length"),
        rms_norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        ropes=(_rope(keys, head_dim),),
        tie_embeddings="output.weight" not in shapes,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        experts=_experts(keys, intermediate),
    )


def _rope(keys: GgufKeys, head_dim: int) -> RopeConfig:
    return RopeConfig(
        theta=keys.positive("rope.freq_base", 10000.0),
        rotary_dim=keys.size("rope.dimension_count", head_dim),
        scaling=_scaling(keys),
    )


def _scaling(keys: GgufKeys) -> dict[str, Any] | None:
    """In transformers' words."""
    original = keys.size("rope.scaling.original_context_length", keys.size("context_length"))
    scaling = {
        "rope_type": keys.text("rope.scaling.type", "none"),
        "factor": keys.number("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": original,
    }
    tensors = keys.meta.entries
    if "rope_freqs.weight" in tensors:  # Llama 3.1's scaling, worked out by the converter
        factors = tensors["rope_freqs.weight"]
        return scaling | {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
        }
    if "rope_factors_long.weight" in tensors:
        return scaling | {
            "rope_type": "longrope",
            "factor": None,
            "short_factor": tensors["rope_factors_short.weight"],
            "long_factor": tensors["rope_factors_long.weight"],
            "attention_factor": keys.number("rope.scaling.attn_factor", 0.0) or None,
        }
    return None if scaling["rope_type"] == "none" else scaling


def _experts(keys: GgufKeys, intermediate: int) -> ExpertConfig | None:
    if keys.meta.get(f"{keys.arch}.expert_count", int, 0) == 0:
        return None
    return ExpertConfig(
        count=keys.size("expert_count"),
        per_token=keys.size("expert_used_count"),
        intermediate_size=keys.size("expert_feed_forward_length", intermediate),
        normalise=True,
    )
