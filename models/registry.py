"""Which architectures run, and how each one's metadata becomes a ModelConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES

from . import llama
from .config import ModelConfig
from .errors import ModelError
from .metadata import Metadata
from .weights import Shape


@dataclass(frozen=True)
class Family:
    """model_type: of config.json. arch: of GGUF, whose tensor names we use for every format.

    permuted: whether its GGUFs hold each rotary Q/K head's two halves interleaved.
    """

    model_type: str
    arch: MODEL_ARCH
    from_gguf: Callable[[Metadata, Mapping[str, Shape]], ModelConfig]
    from_hf: Callable[[Metadata], ModelConfig]
    permuted: bool = False


FAMILIES = (Family("llama", MODEL_ARCH.LLAMA, llama.from_gguf, llama.from_hf, permuted=True),)


def by_model_type(meta: Metadata) -> Family:
    """The family of a config.json. Raises ModelError if there is none."""
    return _find(meta, "model_type", {family.model_type: family for family in FAMILIES})


def by_gguf_architecture(meta: Metadata) -> Family:
    """The family of a GGUF file. Raises ModelError if there is none."""
    families = {MODEL_ARCH_NAMES[family.arch]: family for family in reversed(FAMILIES)}
    return _find(meta, "general.architecture", families)


def _find(meta: Metadata, key: str, families: Mapping[str, Family]) -> Family:
    name = meta.get(key, str)
    if name not in families:
        raise ModelError(
            f"{meta.path}: architecture '{name}' is not supported; choose a model of one of"
            f" {', '.join(sorted(families))}"
        )
    return families[name]
