"""Gemma 2 and 3: norms before and after each block, GeGLU, layers that slide in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .checkpoint import Shape
from .config import LayerConfig, ModelConfig, RopeConfig
from .config_gguf import GgufKeys, read_gguf
from .config_hf import read_hf, read_rope, read_windows
from .metadata import Metadata

# GGUF has no key for the attention scale: like llama.cpp, know the two sizes that differ.
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
# What published config.json files leave to transformers' Gemma3TextConfig.
GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
}


def _gemma(config: ModelConfig, scalar: float) -> ModelConfig:
    """scalar: query_pre_attn_scalar."""
    return replace(
        config,
        activation="gelu_tanh",
        attention_scale=scalar**-0.5,
        embedding_scale=config.hidden_size**0.5,
        post_norms=True,
        wide_range=True,
    )


def _from_gguf(meta: Metadata, shapes: Mapping[str, Shape], every: int) -> ModelConfig:
    """every: each such layer sees everything, the others slide."""
    config, window = read_gguf(meta, shapes), GgufKeys(meta).size("attention.sliding_window")
    big = config.num_layers == LAYERS_OF_27B[config.architecture]
    scalar = config.hidden_size / config.num_qo_heads if big else config.head_dim
    full = [(i + 1) % every == 0 for i in range(config.num_layers)]
    layers = tuple(LayerConfig(0 if sees_all else window) for sees_all in full)
    return replace(_gemma(config, scalar), layers=layers)


def _from_hf(meta: Metadata) -> ModelConfig:
    config = read_hf(meta)
    return replace(
        _gemma(config, meta.positive("query_pre_attn_scalar", float(config.head_dim))),
        softcap=meta.get("attn_logit_softcapping", float, 0.0),
        logit_softcap=meta.get("final_logit_softcapping", float, 0.0),
        tie_embeddings=meta.get("tie_word_embeddings", bool, True),
    )


def gemma2_from_gguf(meta: Metadata, shapes: Mapping[str, Shape]) -> ModelConfig:
    keys = GgufKeys(meta)
    return replace(
        _from_gguf(meta, shapes, every=2),
        softcap=keys.number("attn_logit_softcapping", 50.0),
        logit_softcap=keys.number("final_logit_softcapping", 30.0),
    )


def gemma2_from_hf(meta: Metadata) -> ModelConfig:
    return replace(_from_hf(meta), layers=_layers(meta, every=2))


def gemma3_from_gguf(meta: Metadata, shapes: Mapping[str, Shape]) -> ModelConfig:
    config = _from_gguf(meta, shapes, every=6)
    local = RopeConfig(GgufKeys(meta).number("rope.freq_base_swa", 10000.0))
    return _gemma3(config, local)


def gemma3_from_hf(meta: Metadata) -> ModelConfig:
    meta = Metadata(meta.path, GEMMA3_DEFAULTS | dict(meta.entries))
    every = meta.size("sliding_window_pattern", 6)
    config = replace(_from_hf(meta), layers=_layers(meta, every))
    if "rope_parameters" in meta:
        full = read_rope(meta, config.head_dim, "full_attention")
        local = read_rope(meta, config.head_dim, "sliding_attention")
    else:
        full = config.ropes[0]
        local = RopeConfig(meta.get("rope_local_base_freq", float, 10000.0))
    return _gemma3(replace(config, ropes=(full,)), local)


def _gemma3(config: ModelConfig, local: RopeConfig) -> ModelConfig:
    """Q and K normed; the layers that slide have a rope of their own."""
    layers = tuple(LayerConfig(layer.window, int(layer.window > 0)) for layer in config.layers)
    return replace(config, qk_norm=True, ropes=(config.ropes[0], local), layers=layers)


def _layers(meta: Metadata, every: int) -> tuple[LayerConfig, ...]:
    if "layer_types" in meta:
        return read_windows(meta, by_default=False)
    window = meta.get("sliding_window", int, 0)
    count = meta.size("num_hidden_layers")
    return tuple(LayerConfig(0 if (i + 1) % every == 0 else window) for i in range(count))
