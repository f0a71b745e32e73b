"""SmolLM3: Llama with no rotation in every fourth layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .checkpoint import Shape
from .config import LayerConfig, ModelConfig
from .config_gguf import read_gguf
from .config_hf import read_hf
from .metadata import Metadata

INTERVAL = 4  # fixed in GGUF; config.json may say otherwise


def smollm3_from_gguf(meta: Metadata, shapes: Mapping[str, Shape]) -> ModelConfig:
    return _with_rotation(read_gguf(meta, shapes), [])


def smollm3_from_hf(meta: Metadata) -> ModelConfig:
    return _with_rotation(read_hf(meta), meta.get("no_rope_layers", list, []))


def _with_rotation(config: ModelConfig, rotated: list[int]) -> ModelConfig:
    """rotated: 1 for each layer with rope (the entry's name says the opposite)."""
    rotated = rotated or [(i + 1) % INTERVAL for i in range(config.num_layers)]
    return replace(config, layers=tuple(LayerConfig(rope=0 if r else None) for r in rotated))
