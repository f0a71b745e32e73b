"""One record per decode step, for the panel, ``--steps FILE`` and the benchmarks."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

_BEGINS = b'{"step": '  # as every log does


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

    A pipe or a device is written to as it is. Raises OSError where ``path`` cannot be opened, is a
    pipe that nobody reads or a file of something else, such as the model, and for a line that
    cannot be written.
    """

    def __init__(self, path: str) -> None:
        _check_contents(Path(path))
        # Opened once: a pipe's reader leaves when its writer does.
        self._file = os.fdopen(_open_at_once(path), "a", encoding="utf-8", buffering=1)
        self._replaces = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)

    def write(self, record: StepRecord) -> None:
        if self._replaces:
            self._file.truncate(0)
            self._replaces = False
        self._file.write(json.dumps(asdict(record)) + "\n")

    def close(self) -> None:
        self._file.close()


def _check_contents(path: Path) -> None:
    """Raises OSError for a file whose loss would be an accident."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_BEGINS)) not in (b"", _BEGINS):
                raise FileExistsError(errno.EEXIST, "it is there and is no log of steps", str(path))


def _open_at_once(path: str) -> int:
    """Without a wait for a pipe's reader; writing waits for it all the same."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "nobody reads this pipe", path) from error
    os.set_blocking(descriptor, True)
    return descriptor
