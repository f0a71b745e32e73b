"""One record per decode step, for the panel, ``--steps FILE`` and the benchmarks."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class StepRecord:
    """seq_lens: tokens of each row. predicted_us: the policy's estimate of one layer's attention,
    per candidate. step_ms: the whole step. tokens_per_s: tokens decoded in it over its time.
    """

    step: int
    strategy: str
    reason: str
    batch: int
    seq_lens: tuple[int, ...]
    num_splits: int
    predicted_us: dict[str, float]
    step_ms: float
    tokens_per_s: float
    pages_used: int
    pages_total: int

    def to_json(self) -> dict[str, object]:
        return asdict(self)
