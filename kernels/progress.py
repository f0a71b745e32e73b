"""How far a long task is, told to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable

# stage, done, total: in the stage's own unit, total 0 where it is unknown.
Progress = Callable[[str, int, int], None]
