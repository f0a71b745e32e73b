"""Sampling parameters, with llama.cpp's names and default values."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class SamplingParams:
    """temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repeat_penalty 1 switch each off.

    seed: the same seed, prompt and build give the same text; None draws one.
    repeat_last_n: how many recent tokens the penalty looks at.
    max_tokens: new tokens at most; -1 means until the model stops or the context is full.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    max_tokens: int = -1


SAMPLING_NAMES = tuple(field.name for field in fields(SamplingParams))
