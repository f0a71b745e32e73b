"""A row of figures as a row of block characters."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Sequence[float], width: int, bounds: tuple[float, float] | None = None
) -> str:
    """At most ``width`` bars, the last value at the right; where there are more values, each bar
    is the mean of its neighbours.

    bounds: what the lowest and the highest bar stand for; None takes them from the values.
    """
    if not values:
        return ""
    per_bar = max(1, -(-len(values) // width))
    groups = [values[max(i - per_bar, 0) : i] for i in range(len(values), 0, -per_bar)]
    means = [sum(group) / len(group) for group in reversed(groups)]
    low, high = bounds or (min(means), max(means))
    span = (high - low) or 1.0
    top = len(_BARS) - 1
    return "".join(_BARS[min(max(round((m - low) / span * top), 0), top)] for m in means)
