"""Which architectures run, and how each one's metadata becomes a ModelConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES

from . import gemma, llama, phi3, qwen, smollm3
from .checkpoint import Shape
from .config import ModelConfig
from .errors import ModelError
from .metadata import Metadata


@dataclass(frozen=True)
class Family:
    """model_type: of config.json. arch: of GGUF, whose tensor names we use for every format.

    permuted: its GGUFs hold each rotary Q/K head's two halves interleaved.
    norms_from_one: its safetensors hold the norms' weights less 1.
    """

    model_type: str
    arch: MODEL_ARCH
    from_gguf: Callable[[Metadata, Mapping[str, Shape]], ModelConfig]
    from_hf: Callable[[Metadata], ModelConfig]
    permuted: bool = False
    norms_from_one: bool = False


A = MODEL_ARCH
FAMILIES = (
    Family("llama", A.LLAMA, llama.llama_from_gguf, llama.llama_from_hf, permuted=True),
    Family("mistral", A.LLAMA, llama.llama_from_gguf, llama.mistral_from_hf, permuted=True),
    Family("mixtral", A.LLAMA, llama.llama_from_gguf, llama.mixtral_from_hf, permuted=True),
    Family("smollm3", A.SMOLLM3, smollm3.smollm3_from_gguf, smollm3.smollm3_from_hf, permuted=True),
    Family("qwen2", A.QWEN2, qwen.qwen2_from_gguf, qwen.qwen2_from_hf),
    Family("qwen3", A.QWEN3, qwen.qwen3_from_gguf, qwen.qwen3_from_hf),
    Family("qwen3_moe", A.QWEN3MOE, qwen.qwen3_from_gguf, qwen.qwen3_moe_from_hf),
    Family("gemma2", A.GEMMA2, gemma.gemma2_from_gguf, gemma.gemma2_from_hf, norms_from_one=True),
    Family(
        "gemma3_text", A.GEMMA3, gemma.gemma3_from_gguf, gemma.gemma3_from_hf, norms_from_one=True
    ),
    Family("phi3", A.PHI3, phi3.phi3_from_gguf, phi3.phi3_from_hf),
)


def by_model_type(meta: Metadata) -> Family:
    """The family of a config.json. Raises ModelError if there is none."""
    return _find(meta, "model_type", {family.model_type: family for family in FAMILIES})


def by_gguf_architecture(meta: Metadata) -> Family:
    """The family of a GGUF file. Raises ModelError if there is none."""
    families = {MODEL_ARCH_NAMES[family.arch]: family for family in FAMILIES}
    return _find(meta, "general.architecture", families)


def _find(meta: Metadata, key: str, families: Mapping[str, Family]) -> Family:
    name = meta.get(key, str)
    if name not in families:
        raise ModelError(
            f"{meta.path}: architecture '{name}' is not supported; choose a model of one of"
            f" {', '.join(sorted(families))}"
        )
    return families[name]
