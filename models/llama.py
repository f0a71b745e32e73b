"""Llama 2 and 3, and what is shaped like them (SmolLM2, TinyLlama)."""

from __future__ import annotations

from collections.abc import Mapping

from .config import ModelConfig, RopeConfig
from .metadata import Metadata
from .weights import Shape


def from_gguf(meta: Metadata, shapes: Mapping[str, Shape]) -> ModelConfig:
    """Keys: github.com/ggml-org/ggml docs/gguf.md."""
    arch = meta.get("general.architecture", str)
    hidden = meta.size(f"{arch}.embedding_length")
    heads = meta.size(f"{arch}.attention.head_count")
    head_dim = meta.size(f"{arch}.attention.key_length", hidden // heads)
    return ModelConfig(
        architecture=arch,
        vocab_size=shapes["token_embd.weight"][0],
        hidden_size=hidden,
        intermediate_size=meta.size(f"{arch}.feed_forward_length"),
        num_layers=meta.size(f"{arch}.block_count"),
        num_qo_heads=heads,
        num_kv_heads=meta.size(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        context_length=meta.size(f"{arch}.context_length"),
        rms_norm_eps=meta.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
        rope=RopeConfig(
            theta=meta.get(f"{arch}.rope.freq_base", float, 10000.0),
            rotary_dim=meta.size(f"{arch}.rope.dimension_count", head_dim),
        ),
        tie_embeddings="output.weight" not in shapes,
    )


def from_hf(meta: Metadata) -> ModelConfig:
    """Keys: transformers' LlamaConfig."""
    hidden = meta.size("hidden_size")
    heads = meta.size("num_attention_heads")
    head_dim = meta.size("head_dim", hidden // heads)
    rope = meta.entries.get("rope_parameters") or meta.entries
    return ModelConfig(
        architecture=meta.get("model_type", str),
        vocab_size=meta.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=meta.size("intermediate_size"),
        num_layers=meta.size("num_hidden_layers"),
        num_qo_heads=heads,
        num_kv_heads=meta.size("num_key_value_heads", heads),
        head_dim=head_dim,
        context_length=meta.size("max_position_embeddings"),
        rms_norm_eps=meta.get("rms_norm_eps", float, 1e-6),
        rope=RopeConfig(theta=Metadata(meta.path, rope).get("rope_theta", float, 10000.0)),
        tie_embeddings=meta.get("tie_word_embeddings", bool, False),
    )
