"""What strategies cost a model beside their attention, told by whole decode steps.

Attention timed by itself cannot tell how its kernels get on with those around it: what one starts
early, the other waits for. So steps of a few even batches are timed under each strategy in turn.
What a layer then takes longer than is predicted is in part the rest of the model, the same for all
strategies; what it is more than for the strategy with the least of it is charged to the strategy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .cost import CostModel


@dataclass(frozen=True)
class StepTimes:
    """Microseconds of a whole step of ``rows`` rows of ``length`` tokens, by strategy."""

    rows: int
    length: int
    us: dict[str, float]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StepTimes:
        """Raises KeyError, TypeError or ValueError for anything that asdict does not make."""
        times = cls(**data)
        for count in (times.rows, times.length):
            if type(count) is not int or count < 1:
                raise ValueError(f"rows or length {count!r}")
        for us in times.us.values():
            if not isinstance(us, float | int) or not 0 < us < math.inf:
                raise ValueError(f"a step of {us!r} microseconds")
        return times


class Surcharge:
    """Microseconds of a layer, from steps of the nearest batch sizes that were timed.

    Between two lengths it grows with the logarithm of a row's mean length.
    """

    def __init__(self, times: Sequence[StepTimes], model: CostModel) -> None:
        """Without any times nothing is charged."""
        self._points: dict[int, list[tuple[float, dict[str, float]]]] = {}
        for each in sorted(times, key=lambda each: each.length):
            point = math.log2(each.length), _charges(each, model)
            self._points.setdefault(each.rows, []).append(point)

    @property
    def known(self) -> bool:
        """Whether steps of the model were timed."""
        return bool(self._points)

    def __call__(self, strategy: str, lengths: Sequence[int]) -> float:
        if not self._points:
            return 0.0
        rows = len(lengths)
        nearest = min(self._points, key=lambda timed: abs(math.log2(timed / rows)))
        return _between(self._points[nearest], strategy, math.log2(sum(lengths) / rows))


def _charges(times: StepTimes, model: CostModel) -> dict[str, float]:
    tiles = [-(-times.length // model.shape.page_size)] * times.rows
    beside = {
        name: us / model.num_layers - model.best(name, tiles)[0] for name, us in times.us.items()
    }
    least = min(beside.values())
    return {name: us - least for name, us in beside.items()}


def _between(points: list[tuple[float, dict[str, float]]], strategy: str, at: float) -> float:
    """0 for a strategy that was not timed."""
    right = bisect_left(points, at, key=lambda point: point[0])
    (low, before), (high, after) = points[max(0, right - 1)], points[min(right, len(points) - 1)]
    share = (at - low) / (high - low) if high > low else 0.0
    low_us, high_us = before.get(strategy, 0.0), after.get(strategy, 0.0)
    return low_us + share * (high_us - low_us)
