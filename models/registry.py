"""Which architectures run, and how each one's metadata becomes a ModelConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import llama
from .config import ModelConfig
from .metadata import Metadata
from .weights import Shape


@dataclass(frozen=True)
class Family:
    """from_gguf, from_hf: read the config. permuted: its GGUFs hold Q/K rows in rotary pairs."""

    from_gguf: Callable[[Metadata, Mapping[str, Shape]], ModelConfig]
    from_hf: Callable[[Metadata], ModelConfig]
    permuted: bool = False


# By general.architecture of GGUF, and by model_type of config.json.
FAMILIES = {
    "llama": Family(llama.from_gguf, llama.from_hf, permuted=True),
}
