"""The part of config.json that all architectures share. Keys: transformers' config classes."""

from __future__ import annotations

from .config import LayerConfig, ModelConfig, RopeConfig
from .metadata import Metadata


def read_hf(meta: Metadata) -> ModelConfig:
    """A plain Llama-like config; families replace what they have otherwise."""
    hidden, heads = meta.size("hidden_size"), meta.size("num_attention_heads")
    head_dim = meta.size("head_dim", hidden // heads)
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
        rms_norm_eps=meta.positive("rms_norm_eps", 1e-6),
        ropes=(read_rope(meta, head_dim),),
        tie_embeddings=meta.get("tie_word_embeddings", bool, False),
        qkv_bias=meta.get("attention_bias", bool, False),
        output_bias=meta.get("attention_bias", bool, False),
    )


def read_rope(meta: Metadata, head_dim: int, layer_type: str = "") -> RopeConfig:
    """transformers 5 writes ``rope_parameters`` (for some models one per ``layer_type``); before
    that it was rope_theta, rope_scaling and partial_rotary_factor.
    """
    given = dict(meta.get("rope_parameters", dict, {})) or {
        **meta.get("rope_scaling", dict, {}),
        "rope_theta": meta.get("rope_theta", float, 10000.0),
    }
    if layer_type:
        given = dict(Metadata(meta.path, given).get(layer_type, dict, given))
    kind = str(given.get("rope_type") or given.get("type") or "default")
    given["rope_type"] = {"su": "longrope"}.get(kind, kind)
    for key in ("original_max_position_embeddings", "partial_rotary_factor"):
        given.setdefault(key, meta.entries.get(key))
    if given["original_max_position_embeddings"] is None:
        given["original_max_position_embeddings"] = meta.size("max_position_embeddings")
    rope = Metadata(meta.path, given)
    return RopeConfig(
        theta=rope.positive("rope_theta", 10000.0),
        rotary_dim=int(head_dim * rope.positive("partial_rotary_factor", 1.0)),
        scaling=None if given["rope_type"] == "default" else given,
    )


def read_windows(meta: Metadata, *, by_default: bool) -> tuple[LayerConfig, ...]:
    """Which layers slide: ``layer_types`` says, else all of them do if ``by_default``."""
    window = meta.get("sliding_window", int, 0)
    all_alike = ["sliding_attention" if by_default else "full_attention"]
    kinds = meta.get("layer_types", list, all_alike * meta.size("num_hidden_layers"))
    return tuple(LayerConfig(window if kind == "sliding_attention" else 0) for kind in kinds)
