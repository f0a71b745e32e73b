"""What the panel shows of the engine's speed, summed up from step records."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from .messages import Pages
from .steps import StepRecord

RECENT_STEPS = 600
_RECENT_ANSWERS = 100
_NOW_S = 1.0
_GAP_S = 0.5  # between steps: longer means nobody was waiting for a token


class Meter:
    """recent: the last steps. shares: steps so far per strategy. ttfts: seconds from a prompt to
    its first token, of the last answers. pages: of the KV cache, as they are now.

    Rates are in tokens/s of decode, over the time between steps as a person waits for it, idle
    gaps left out.
    """

    def __init__(self) -> None:
        self.recent: deque[StepRecord] = deque(maxlen=RECENT_STEPS)
        self.rates: deque[float] = deque(maxlen=RECENT_STEPS)
        self.shares: Counter[str] = Counter()
        self.ttfts: deque[float] = deque(maxlen=_RECENT_ANSWERS)
        self.pages = Pages(0, 0, 0)
        self._window: deque[tuple[float, int, float]] = deque()
        self._tokens = 0
        self._seconds = 0.0
        self._last = 0.0

    def add(self, records: Sequence[StepRecord], now: float | None = None) -> None:
        """Take in the steps of one message, arrived at ``now`` (monotonic seconds)."""
        if not records:
            return
        now = time.monotonic() if now is None else now
        tokens = sum(record.batch for record in records)
        self.recent.extend(records)
        self.rates.extend(record.tokens_per_s for record in records)
        self.shares.update(record.strategy for record in records)
        work_s = sum(record.step_ms for record in records) / 1000
        since = now - self._last
        seconds = work_s if since > _GAP_S + work_s else since
        self._last = now
        self._tokens += tokens
        self._seconds += seconds
        self._window.append((now, tokens, seconds))
        self._forget(now)

    @property
    def last(self) -> StepRecord | None:
        return self.recent[-1] if self.recent else None

    def now(self, at: float | None = None) -> float:
        """Tokens/s over the last second; 0 when nothing ran in it."""
        at = time.monotonic() if at is None else at
        self._forget(at)
        seconds = sum(entry[2] for entry in self._window)
        return sum(entry[1] for entry in self._window) / seconds if seconds else 0.0

    def _forget(self, at: float) -> None:
        while self._window and self._window[0][0] < at - _NOW_S:
            self._window.popleft()

    def itl_ms(self) -> tuple[float, float]:
        """Inter-token latency over the recent steps, p50 and p95 in milliseconds."""
        return p50_p95([record.step_ms for record in self.recent])

    def step_ms(self, strategy: str, batch: int) -> float:
        """Of the recent steps of ``batch`` rows with ``strategy``, p50 in milliseconds; 0 where
        there is none. Steps of fewer rows took less, whatever their strategy."""
        return p50_p95(
            r.step_ms for r in self.recent if r.strategy == strategy and r.batch == batch
        )[0]

    def ttft_s(self) -> tuple[float, float]:
        """Time to first token over the recent answers, p50 and p95 in seconds; 0 before any."""
        return p50_p95(self.ttfts)

    @property
    def average(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0


def p50_p95(values: Iterable[float]) -> tuple[float, float]:
    """By nearest rank; zeros where there is no value."""
    ranked = sorted(values)
    if not ranked:
        return 0.0, 0.0
    return ranked[(len(ranked) - 1) // 2], ranked[-(-95 * len(ranked) // 100) - 1]
