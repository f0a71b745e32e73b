"""Phi-3 and 3.5, Phi-4-mini: QKV and gate-up fused in the checkpoint, rope of part of a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .checkpoint import Shape
from .config import LayerConfig, ModelConfig
from .config_gguf import GgufKeys, read_gguf
from .config_hf import read_hf, read_windows
from .metadata import Metadata


def phi3_from_gguf(meta: Metadata, shapes: Mapping[str, Shape]) -> ModelConfig:
    config, keys = read_gguf(meta, shapes), GgufKeys(meta)
    sliding = f"{keys.arch}.attention.sliding_window" in meta
    window = keys.size("attention.sliding_window") if sliding else 0
    layers = (LayerConfig(window),) * config.num_layers
    return replace(config, fused_weights=True, layers=layers)


def phi3_from_hf(meta: Metadata) -> ModelConfig:
    layers = read_windows(meta, by_default=True)
    return replace(read_hf(meta), fused_weights=True, layers=layers)
