"""How often to draw while text streams, so that drawing never takes what decoding needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

FASTEST_S = 1 / 10
SLOWEST_S = 1 / 2
SOON_S = 1 / 60  # after a rest; what comes together is drawn together
SHARE = 0.02  # of the machine's cores; beyond it a CPU engine would feel each frame


class FramePace:
    """Spaces frames by what the last one cost this process, in processor time.

    What comes after a rest, such as an answer's first token, is drawn soon.
    """

    def __init__(
        self,
        cores: int | None = None,
        processor: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = SHARE * (cores or os.cpu_count() or 1)  # processor seconds a second
        self._processor, self._clock = processor, clock
        self._used = processor()
        self._frame = clock()

    def delay(self) -> float:
        """Seconds to wait before the next frame."""
        used, self._used = self._used, self._processor()
        spacing = min(max((self._used - used) / self._budget, FASTEST_S), SLOWEST_S)
        now = self._clock()
        self._frame = max(now + SOON_S, self._frame + spacing)
        return self._frame - now
