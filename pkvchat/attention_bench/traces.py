"""Synthetic requests after the PersistentKV paper, and how their decode steps follow each other.

Everything here is a pure function of its arguments; nothing is measured.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

CALIBRATION_SEED = 20260622
HELD_OUT_SEEDS = (20260623, 20260624, 20260625, 20260626, 20260627)


@dataclass(frozen=True)
class Request:
    """Tokens of the prompt, tokens to decode, and the step at which it may first run."""

    prompt: int
    decode: int
    arrival: int


@dataclass(frozen=True)
class Row:
    """One request in one decode step. length: tokens it attends to, the new one included."""

    request: int
    length: int


Step = tuple[Row, ...]


@dataclass(frozen=True)
class Setting:
    """A trace as the paper runs it: so many requests, at most ``max_active`` at once."""

    name: str
    max_active: int
    requests: int
    steps: int


def setting(name: str, max_active: int) -> Setting:
    """The paper's counts where it has the setting, and in their proportion elsewhere."""
    return Setting(name, max_active, max(16, 3 * max_active), 64 if max_active == 1 else 48)


# --- lengths -------------------------------------------------------------------------------------

TRACES = ("bucketed", "homogeneous", "bimodal", "uniform", "zipf")


def _lengths(name: str, i: int, rng: random.Random) -> tuple[int, int]:
    """Tokens of request i's prompt and of its answer."""
    if name == "bucketed":
        return 8192 << i % 4, rng.randint(32, 96)
    if name == "homogeneous":
        return 32768, rng.randint(32, 96)
    if name == "bimodal":
        if i % 4 == 0:
            return rng.randint(24576, 65536), rng.randint(32, 128)
        return rng.randint(2048, 12288), rng.randint(8, 64)
    if name == "uniform":
        return rng.randint(4096, 32768), rng.randint(16, 96)
    prompt = 2048 + 65536 / math.sqrt(rng.randint(1, 32)) + rng.randint(-512, 512)
    return max(1024, int(prompt)), rng.randint(8, 128)


PAPER_SETTINGS = tuple(
    setting(name, max_active)
    for name, max_active in (
        ("bucketed", 1),
        ("homogeneous", 8),
        ("bimodal", 4),
        ("bimodal", 8),
        ("uniform", 8),
        ("zipf", 8),
    )
)


def make_requests(setting: Setting, seed: int, page_size: int) -> list[Request]:
    """Prompts are rounded up to whole pages; request i arrives at step i // max_active."""
    rng = random.Random(seed)
    requests = []
    for i in range(setting.requests):
        prompt, decode = _lengths(setting.name, i, rng)
        requests.append(Request(round_up(prompt, page_size), decode, i // setting.max_active))
    return requests


def round_up(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size


# --- steps ---------------------------------------------------------------------------------------


def schedule(requests: Sequence[Request], max_active: int, max_steps: int) -> list[Step]:
    """The decode steps, first come first served; a step with nothing to decode takes no time."""
    waiting = deque(sorted(range(len(requests)), key=lambda i: requests[i].arrival))
    decoded: dict[int, int] = {}  # of the active requests, in the order they came
    steps: list[Step] = []
    now = 0
    while (waiting or decoded) and len(steps) < max_steps:
        if not decoded:
            now = max(now, requests[waiting[0]].arrival)
        while waiting and len(decoded) < max_active and requests[waiting[0]].arrival <= now:
            decoded[waiting.popleft()] = 0
        decoded = {i: count + 1 for i, count in decoded.items()}
        steps.append(tuple(Row(i, requests[i].prompt + count) for i, count in decoded.items()))
        decoded = {i: count for i, count in decoded.items() if count < requests[i].decode}
        now += 1
    return steps


# --- pages ---------------------------------------------------------------------------------------


def place_pages(
    counts: Sequence[int], hole_fraction: float, seed: int
) -> tuple[list[list[int]], int]:
    """Physical pages for each count, and how many the KV cache needs.

    One permutation of a universe that holes enlarge by 1 / (1 - hole_fraction), dealt out in order.
    Page 0 is scratch and nobody's.
    """
    universe = math.ceil(sum(counts) / (1 - hole_fraction))
    pages = list(range(1, universe + 1))
    random.Random(seed).shuffle(pages)
    dealt = iter(pages)
    return [[next(dealt) for _ in range(count)] for count in counts], universe + 1
