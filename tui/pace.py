"""How often to draw while text streams, so that drawing never takes what decoding needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

FASTEST_S = 1 / 10
SLOWEST_S = 1 / 2
SHARE = 0.02  # of the machine's cores; beyond it a CPU engine would feel each frame


class Pace:
    """Spaces frames by what the last one cost this process, in processor time."""

    def __init__(
        self, cores: int | None = None, clock: Callable[[], float] = time.process_time
    ) -> None:
        self._budget = SHARE * (cores or os.cpu_count() or 1)  # processor seconds a second
        self._clock = clock
        self._used = clock()

    def delay(self) -> float:
        """Seconds to wait before the next frame."""
        used, self._used = self._used, self._clock()
        return min(max((self._used - used) / self._budget, FASTEST_S), SLOWEST_S)
