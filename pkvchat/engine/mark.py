"""A point in the work of a device: when it has got there, and how long it took between two."""

from __future__ import annotations

import time

import torch


class Mark:
    """Made after the work that was enqueued last. A CPU has done that when the call returns."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))
        self._time = time.perf_counter()

    def wait(self) -> None:
        """Return when the device has got here."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: Mark) -> float:
        """Seconds that the device took from ``earlier``; both have been waited for."""
        if self._event is not None and earlier._event is not None:
            return float(earlier._event.elapsed_time(self._event)) / 1e3
        return self._time - earlier._time
