"""Single decode batches to measure: the named ones, each with a target, and a grid."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .traces import HELD_OUT_SEEDS, Setting, make_requests


@dataclass(frozen=True)
class Case:
    """lengths: of each row. target: FlashInfer's time over ours, at least; None for the grid."""

    name: str
    lengths: tuple[int, ...]
    num_qo_heads: int
    num_kv_heads: int
    target: float | None = None


def _arrivals(trace: str, rows: int) -> tuple[int, ...]:
    """Prompts of the requests that a held-out trace begins with."""
    requests = make_requests(Setting(trace, rows, rows, 1), HELD_OUT_SEEDS[0], page_size=1)
    return tuple(request.prompt for request in requests)


def named_cases() -> list[Case]:
    """The batches that decode attention is judged by."""
    even = (
        (1, 4, 1.20),
        (1, 8, 1.15),
        (1, 16, 1.10),
        (1, 32, 1.05),
        (1, 64, 1.02),
        (1, 128, 1.02),
        (2, 8, 1.05),
        (2, 16, 1.05),
        (4, 8, 1.05),
        (4, 16, 1.05),
        (8, 1, 1.18),
        (16, 2, 1.18),
    )
    cases = [Case(f"B{b} {k}k", (k << 10,) * b, 32, 8, target) for b, k, target in even]
    for trace in ("bimodal", "uniform", "zipf"):
        cases.append(Case(f"B8 {trace}", _arrivals(trace, 8), 32, 8, 1.02))
    for group, heads, kv_heads in ((8, 32, 4), (1, 32, 32), (7, 28, 4)):
        name = f"G{group} B4 bimodal"
        cases.append(Case(name, _arrivals("bimodal", 4), heads, kv_heads, 1.0))
    return cases


def grid(
    batches: Sequence[int],
    lengths: Sequence[int],
    groups: Sequence[int],
    num_qo_heads: int,
    max_tokens: int,
) -> Iterator[Case]:
    """Every batch size, mean length and group size; rows of one length and, from two, ragged.

    num_qo_heads: at most; of 32, groups of 7 are 28 over 4 KV heads. max_tokens: of a batch, summed
    over its KV heads; what is larger is left out.
    """
    for group in groups:
        kv_heads = num_qo_heads // group
        qo_heads = kv_heads * group
        for batch in batches:
            for length in lengths:
                if batch * length * kv_heads > max_tokens:
                    continue
                name = f"G{group} B{batch} {_short(length)}"
                yield Case(name, (length,) * batch, qo_heads, kv_heads)
                if batch > 1:
                    yield Case(f"{name} ragged", ragged(batch, length), qo_heads, kv_heads)


def ragged(batch: int, mean: int) -> tuple[int, ...]:
    """Rows in the proportions of the bimodal trace, with exactly ``mean`` tokens on average."""
    rng = random.Random(HELD_OUT_SEEDS[0])
    weights = [
        rng.randint(24576, 65536) if row % 4 == 0 else rng.randint(2048, 12288)
        for row in range(batch)
    ]
    spare = batch * (mean - 1)
    bounds = [spare * sum(weights[:row]) // sum(weights) for row in range(batch + 1)]
    return tuple(1 + bounds[row + 1] - bounds[row] for row in range(batch))


def _short(tokens: int) -> str:
    return f"{tokens >> 10}k" if tokens % 1024 == 0 else str(tokens)
