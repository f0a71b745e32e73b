"""Llama 2 and 3 and what is shaped like them (SmolLM2, TinyLlama), Mistral and Mixtral."""

from __future__ import annotations

from dataclasses import replace

from .config import ExpertConfig, ModelConfig
from .config_gguf import read_gguf
from .config_hf import read_hf, read_windows
from .metadata import Metadata

# GGUF knows all of them as "llama".
llama_from_gguf = read_gguf
llama_from_hf = read_hf


def mistral_from_hf(meta: Metadata) -> ModelConfig:
    """Every layer slides, where config.json gives a window at all."""
    return replace(read_hf(meta), layers=read_windows(meta, by_default=True))


def mixtral_from_hf(meta: Metadata) -> ModelConfig:
    """Mistral with routed experts."""
    config = mistral_from_hf(meta)
    experts = ExpertConfig(
        count=meta.size("num_local_experts"),
        per_token=meta.size("num_experts_per_tok"),
        intermediate_size=config.intermediate_size,
        normalise=True,
    )
    return replace(config, experts=experts)
