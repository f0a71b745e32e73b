"""One record per decode step, for the panel, ``--steps FILE`` and the benchmarks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True)
class StepRecord:
    """seq_lens: tokens of each row. predicted_us: the policy's estimate of one layer's attention,
    per candidate. step_ms: the whole step. tokens_per_s: tokens decoded in it over its time.
    pages_shared: of those used, the ones that more than one chat reads. idle_ms: of the step, how
    long the device waited for the host to say what it is to do.
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
    pages_shared: int = 0
    idle_ms: float = 0.0


class StepWriter:
    """Writes one JSON object a line to ``path``, whose former contents go with the first of them.

    Raises OSError where that cannot be opened, or a line not written.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None
        self._path.open("a", encoding="utf-8").close()

    def write(self, record: StepRecord) -> None:
        if self._file is None:
            self._file = self._path.open("w", encoding="utf-8", buffering=1)
        self._file.write(json.dumps(asdict(record)) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
