"""Which strategy a decode step runs with, and why. Pure, and on the host alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .cost import CostModel, split_choices
from .registry import STRATEGIES, why_unavailable
from .strategy import StrategyUnavailable

if TYPE_CHECKING:  # the names are known without torch
    from .batch import AttentionShape
    from .calibration import Calibration

_FORCED = "forced-"
_CACHE_SIZE = 4096


@dataclass(frozen=True)
class Decision:
    """predicted_us: of one layer's attention, per candidate at its best num_splits.

    reason: a sentence for a person.
    """

    strategy: str
    num_splits: int
    predicted_us: dict[str, float]
    reason: str


class Policy(Protocol):
    name: str

    def choose(self, lengths: tuple[int, ...]) -> Decision:
        """lengths: tokens of each decode row, the new one included; all >= 1."""


def policy_names() -> list[str]:
    return ["adaptive", *(_FORCED + name for name in STRATEGIES)]


def create_policy(
    name: str,
    shape: AttentionShape,
    calibration: Calibration,
    available: Sequence[str],
    num_layers: int = 32,
) -> Policy:
    """num_layers: over which one step's planning is spread.

    Raises ValueError for an unknown name, StrategyUnavailable for a forced strategy that is not
    in ``available``.
    """
    if name not in policy_names():
        raise ValueError(f"unknown policy {name!r}; choose one of {', '.join(policy_names())}")
    if name.startswith(_FORCED):
        forced = name.removeprefix(_FORCED)
        if forced not in available:
            why = why_unavailable(forced, shape) or f"{forced} is switched off"
            raise StrategyUnavailable(f"--policy {name}: {why}")
        candidates = [forced]
    else:
        candidates = [strategy for strategy in STRATEGIES if strategy in available]
    model = CostModel(shape, calibration.workers, calibration.costs, num_layers)
    return CostPolicy(name, candidates, model)


class CostPolicy:
    """The candidate, with its num_splits, that the cost model predicts to be fastest.

    Predictions are made for lengths rounded up to eighths of an octave of pages and kept, since a
    step's lengths rarely leave the eighths of the step before.
    """

    def __init__(self, name: str, candidates: Sequence[str], model: CostModel) -> None:
        self.name = name
        self.candidates = candidates
        self.model = model
        self._cache: dict[tuple[int, ...], tuple[str, int, dict[str, float], str]] = {}

    def choose(self, lengths: tuple[int, ...]) -> Decision:
        page_size = self.model.shape.page_size
        key = tuple(sorted([_rounded(-(-length // page_size)) for length in lengths]))
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            found = self._cache[key] = self._compare(key)
        strategy, num_splits, predicted_us, why = found
        return Decision(strategy, num_splits, predicted_us, f"{_batch(lengths)}: {why}")

    def _compare(self, tiles: tuple[int, ...]) -> tuple[str, int, dict[str, float], str]:
        best: dict[str, tuple[float, int]] = {}
        for strategy in self.candidates:
            splits = split_choices(strategy, tiles, self.model.shape, self.model.workers)
            best[strategy] = min((self.model.predict(strategy, tiles, s), s) for s in splits)
        ranked = sorted(best, key=lambda strategy: best[strategy][0])
        first, num_splits = ranked[0], best[ranked[0]][1]
        predicted = {strategy: round(us, 1) for strategy, (us, _) in best.items()}
        label = f"{first} in {num_splits} splits" if num_splits > 1 else first
        if self.name.startswith(_FORCED):
            why = f"{label}, forced"
        elif len(ranked) == 1:
            why = f"{label} is all that runs here"
        else:
            ratio = best[ranked[1]][0] / max(best[first][0], 1e-9)
            why = f"{label} is predicted {ratio:.2f}x as fast as {ranked[1]}"
        return first, num_splits, predicted, why


def _rounded(tiles: int) -> int:
    """Up to the next of eight steps per octave; exact up to 16."""
    step = 1 << max(0, tiles.bit_length() - 4)
    return -(-tiles // step) * step


def _batch(lengths: tuple[int, ...]) -> str:
    if len(lengths) == 1:
        return f"1 chat of {lengths[0]} tokens"
    return f"{len(lengths)} chats of {min(lengths)} to {max(lengths)} tokens"
