"""Qwen2 and 2.5 (biases on Q, K and V), Qwen3 (norms on Q and K), Qwen3-MoE (routed experts)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .checkpoint import Shape
from .config import ExpertConfig, ModelConfig
from .config_gguf import read_gguf
from .config_hf import read_hf, read_windows
from .metadata import Metadata


def qwen2_from_gguf(meta: Metadata, shapes: Mapping[str, Shape]) -> ModelConfig:
    return replace(read_gguf(meta, shapes), qkv_bias=True)


def qwen2_from_hf(meta: Metadata) -> ModelConfig:
    layers = read_windows(meta, by_default=False)
    return replace(read_hf(meta), qkv_bias=True, output_bias=False, layers=layers)


def qwen3_from_gguf(meta: Metadata, shapes: Mapping[str, Shape]) -> ModelConfig:
    return replace(read_gguf(meta, shapes), qk_norm=True)


def qwen3_from_hf(meta: Metadata) -> ModelConfig:
    return replace(read_hf(meta), qk_norm=True, layers=read_windows(meta, by_default=False))


def qwen3_moe_from_hf(meta: Metadata) -> ModelConfig:
    """Every decoder_sparse_step-th layer is routed, but for the mlp_only_layers."""
    config, step = qwen3_from_hf(meta), meta.size("decoder_sparse_step", 1)
    dense = meta.get("mlp_only_layers", list, [])
    layers = tuple(
        replace(config.layer(i), routed=(i + 1) % step == 0 and i not in dense)
        for i in range(config.num_layers)
    )
    experts = ExpertConfig(
        count=meta.size("num_experts" if "num_experts" in meta else "num_local_experts"),
        per_token=meta.size("num_experts_per_tok"),
        intermediate_size=meta.size("moe_intermediate_size"),
        normalise=meta.get("norm_topk_prob", bool, False),
    )
    return replace(config, experts=experts, layers=layers)
