"""What the engine is started with; the command line and the settings file both end here."""

from __future__ import annotations

from dataclasses import dataclass

PAGE_SIZES = (16, 32, 64)  # tokens
DTYPES = ("auto", "f32", "f16", "bf16")
CACHE_TYPES = ("auto", "f32", "f16", "bf16", "fp8", "q8_0")
TYPE_ALIASES = {"fp16": "f16", "int8": "q8_0"}  # torch's names beside llama.cpp's
MAX_PROMPT = 1 << 24  # bytes: more than any context holds, and little memory


@dataclass(frozen=True)
class EngineOptions:
    """model: a catalogue name or a path; None means the default model.

    device: "auto", "cpu", "cuda" or "cuda:N". dtype: "auto", "f32", "f16" or "bf16".
    context: tokens per chat at most; 0 means the model's own limit. context_flag: what it comes
        from, to be named where it is too much.
    kv_memory: bytes for the KV cache; None sizes it from what is free.
    memory_limit: bytes of a GPU that may be used in all; None is all that is free.
    cache_type_k, cache_type_v: of the KV cache, a name in CACHE_TYPES, the same for both; "auto" is
        the other's, and where both are auto the type that the device is fast in.
    threads: CPU threads; 0 leaves torch's choice.
    steps_path: where to write one JSON line per decode step.
    """

    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    context: int = 0
    context_flag: str = "-c"
    page_size: int = 16
    kv_memory: int | None = None
    memory_limit: int | None = None
    cache_type_k: str = "auto"
    cache_type_v: str = "auto"
    policy: str = "adaptive"
    threads: int = 0
    steps_path: str | None = None

    @property
    def cache_type(self) -> str:
        """Of K and V. Raises ValueError where they differ."""
        k, v = self.cache_type_k, self.cache_type_v
        if "auto" in (k, v):
            return v if k == "auto" else k
        if k != v:
            raise ValueError(
                f"-ctk {k} and -ctv {v}: K and V share their pages; give both the same type"
            )
        return k
