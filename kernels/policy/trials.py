"""Corrects the cost model's predictions by the times of real decode steps.

One step in EVERY, at most, is a trial: it runs a rival of the strategy that the policy prefers.
Its time less that of the steps around it is the difference between the two strategies' attention,
whatever else the step spends. Medians of several such pairs, against the noise between the
preferred strategy's own steps, decide; then the pair is settled for that kind of batch, and its
trials end.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

EVERY = 256  # steps from one trial to the next
NEAR = 1.25  # a rival is predicted to take at most this many times as long as the best
_AROUND = 4  # steps before a trial, and after it, that it is compared with
_MIN_PAIRS, _MAX_PAIRS = 6, 24
_SURE = 4.0  # standard errors that a difference must exceed
_LEAST_GAIN = 0.01  # of attention's time, for which the preferred strategy changes
_CORRECTION = 0.7  # the least factor on a prediction; its inverse is the greatest
_DIFFERENCES = 128  # between successive steps, that the noise is taken from
_MEDIAN_ERROR = 1.25  # standard error of a median over that of a mean, of normal values
_MAD_TO_SIGMA = 1.4826 / math.sqrt(2)  # of differences between two values of one sigma each

Kind = tuple[int, int, int]


def batch_kind(lengths: Sequence[int]) -> Kind:
    """Batches of one kind differ by less than a factor of two in rows, tokens and raggedness."""
    total = sum(lengths)
    ragged = max(lengths) * len(lengths) // total  # 1 for even rows
    return len(lengths).bit_length(), total.bit_length(), ragged.bit_length()


@dataclass(frozen=True)
class Ranked:
    """A candidate and what ranks it, in microseconds of one layer, before and after correction."""

    strategy: str
    model_us: float
    us: float


class Trials:
    """num_layers: of attention in a step."""

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self._factors: dict[tuple[Kind, str], float] = {}
        self._pairs: dict[tuple[Kind, str, str], list[float]] = defaultdict(list)
        self._settled: set[tuple[Kind, frozenset[str]]] = set()
        self._kind: Kind | None = None
        self._best = self._rival = Ranked("", 0.0, 0.0)
        self._since = 0  # steps since the last trial
        self._before: deque[float] = deque(maxlen=_AROUND)
        self._trial_us: float | None = None
        self._after: list[float] = []
        self._changes: deque[float] = deque(maxlen=_DIFFERENCES)

    def factor(self, kind: Kind, strategy: str) -> float:
        """What a prediction for this kind of batch is multiplied with; 1 before any verdict."""
        return self._factors.get((kind, strategy), 1.0)

    def watch(self, kind: Kind, ranked: Sequence[Ranked]) -> None:
        """From now on steps run ``ranked[0]``, and the nearest rival that is not settled is tried.

        Steps seen so far were of another batch: none is compared with those to come.
        """
        best = ranked[0]
        near = [
            rival
            for rival in ranked[1:]
            if rival.us <= NEAR * best.us
            and (kind, frozenset((best.strategy, rival.strategy))) not in self._settled
        ]
        if kind != self._kind:
            self._changes.clear()
        self._kind, self._best = kind, best
        self._rival = near[0] if near else Ranked("", 0.0, 0.0)
        self._before.clear()
        self._trial_us = None

    def next_trial(self) -> str | None:
        """Called once a step: the strategy to try in it, if it is to be a trial."""
        self._since += 1
        if self._since < EVERY or not self._rival.strategy or len(self._before) < _AROUND:
            return None
        self._since = 0
        return self._rival.strategy

    def observe(self, strategy: str, step_us: float) -> bool:
        """Take a step's time; True when it has settled which of the two strategies is faster."""
        if strategy != self._best.strategy:
            if strategy == self._rival.strategy and len(self._before) == _AROUND:
                self._trial_us, self._after = step_us, []
            return False
        if self._trial_us is None:
            if self._before:
                self._changes.append(abs(step_us - self._before[-1]))
            self._before.append(step_us)
            return False
        self._after.append(step_us)
        if len(self._after) < _AROUND:
            return False
        difference = self._trial_us - median([*self._before, *self._after])
        self._before.extend(self._after)
        self._trial_us = None
        return self._judge(difference)

    def _judge(self, difference_us: float) -> bool:
        """Weigh one more pair. All in units of the attention's own time in a step."""
        assert self._kind is not None
        kind, best, rival = self._kind, self._best, self._rival
        attention_us = best.us * self.num_layers
        pairs = self._pairs[kind, best.strategy, rival.strategy]
        pairs.append(difference_us / attention_us)
        if len(pairs) < _MIN_PAIRS:
            return False
        noise = _MAD_TO_SIGMA * median(self._changes) / attention_us
        sure = _SURE * _MEDIAN_ERROR * noise / math.sqrt(len(pairs))
        middle = median(pairs)
        faster = middle < -max(sure, _LEAST_GAIN)
        if not faster and middle < sure and len(pairs) < _MAX_PAIRS:
            return False
        self._settled.add((kind, frozenset((best.strategy, rival.strategy))))
        del self._pairs[kind, best.strategy, rival.strategy]
        if faster or middle > 0:  # else nothing was shown, and the prediction stands
            factor = best.us * (1 + middle) / rival.model_us
            factor = min(max(factor, _CORRECTION), 1 / _CORRECTION)
            self._factors[kind, rival.strategy] = factor
        return True
