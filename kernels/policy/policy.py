"""Which strategy a decode step runs with, and why. Pure, and on the host alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import ge, le
from typing import TYPE_CHECKING, Protocol

from ..attention.registry import STRATEGIES, check_installed, why_unavailable
from ..attention.strategy import StrategyUnavailable
from .cost import CostModel
from .surcharge import StepTimes, Surcharge
from .trials import Ranked, Trials, batch_kind

if TYPE_CHECKING:  # the names are known without torch
    from ..attention.batch import AttentionShape
    from .calibration import Calibration

_FORCED = "forced-"
_TIE = 0.02  # a difference too small to speak of
_RAGGED = 0.03  # of split's time, that is doubted where the longest row is twice the mean
_HOLD_TOKENS, _HOLD_SHARE = 128, 32  # what a row may grow by before strategies are compared again
_LARGE = 16  # rows from which on a sixteenth more or less of everything is the same batch


@dataclass(frozen=True)
class Decision:
    """predicted_us: of one layer's attention, per candidate at its best num_splits, and of what the
    candidate is charged for beside it (see Surcharge).

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

    def observe(self, lengths: tuple[int, ...], decision: Decision, step_us: float) -> None:
        """Learn from the time of a whole step that did nothing but decode as decided.

        Called in the steps' order; steps may be left out.
        """


def policy_names() -> list[str]:
    return ["adaptive", *(_FORCED + name for name in STRATEGIES)]


def check_policy(name: str, device: str) -> None:
    """What can be known of it before there is a model. device: its type.

    Raises ValueError for an unknown name, StrategyUnavailable for a forced strategy that no such
    device has, or whose library is not installed.
    """
    if forced := _forced(name):
        try:
            check_installed(forced, device)
        except StrategyUnavailable as error:
            raise StrategyUnavailable(f"--policy {name}: {error}") from None


def _forced(name: str) -> str:
    """The strategy that the policy always takes, "" where it chooses. Raises ValueError."""
    if name not in policy_names():
        raise ValueError(f"unknown policy {name!r}; choose one of {', '.join(policy_names())}")
    return name.removeprefix(_FORCED) if name.startswith(_FORCED) else ""


def create_policy(
    name: str,
    shape: AttentionShape,
    calibration: Calibration,
    available: Sequence[str],
    num_layers: int,
    windows: Sequence[int] = (),
    steps: Sequence[StepTimes] = (),
) -> Policy:
    """num_layers: over which one step's planning is spread. windows: see CostModel. steps: of the
    model that it is for, where they were timed.

    Raises ValueError for an unknown name, StrategyUnavailable for a forced strategy that is not
    in ``available``.
    """
    forced = _forced(name)
    model = CostModel(shape, calibration.workers, calibration.costs, num_layers, windows)
    surcharge = Surcharge(steps, model)
    if not forced:
        candidates = [s for s in STRATEGIES if s in available]
        return CostPolicy(name, candidates, model, surcharge)
    if forced not in available:
        why = why_unavailable(forced, shape) or f"{forced} was not there when this model started"
        raise StrategyUnavailable(f"--policy {name}: {why}")
    return CostPolicy(name, [forced], model, surcharge)


class CostPolicy:
    """The candidate, with its num_splits, that the cost model predicts to be fastest.

    What whole steps of the model have shown beside that is charged to the candidates. What is to
    be doubted in a prediction is added to it: of two that are close, the safer one is chosen. A
    comparison holds while the same rows grow by a little: most steps only check that. With more
    than one candidate, trials correct the model by what steps really took.
    """

    def __init__(
        self, name: str, candidates: Sequence[str], model: CostModel, surcharge: Surcharge
    ) -> None:
        self.name = name
        self.candidates = candidates
        self.model = model
        self._surcharge = surcharge
        self._trials = Trials(model.num_layers)
        self._from: tuple[int, ...] = ()  # lengths from which the comparison holds,
        self._to: tuple[int, ...] = ()  # and up to which
        self._best = ""
        self._num_splits: dict[str, int] = {}
        self._predicted_us: dict[str, float] = {}
        self._why = ""

    def choose(self, lengths: tuple[int, ...]) -> Decision:
        if not (self._same_rows(lengths) or self._much_the_same(lengths)):
            self._compare(lengths)
        strategy, why = self._best, self._why
        trial = self._trials.next_trial()
        if trial is not None:
            strategy, why = trial, f"a trial of {trial} for this step; else {why}"
        return Decision(
            strategy, self._num_splits[strategy], self._predicted_us, f"{_batch(lengths)}: {why}"
        )

    def observe(self, lengths: tuple[int, ...], decision: Decision, step_us: float) -> None:
        if self._same_rows(lengths) and self._trials.observe(decision.strategy, step_us):
            self._compare(lengths)

    def _same_rows(self, lengths: tuple[int, ...]) -> bool:
        """The rows that were compared for, grown by a little."""
        return (
            len(lengths) == len(self._to)
            and all(map(le, lengths, self._to))
            and all(map(ge, lengths, self._from))
        )

    def _much_the_same(self, lengths: tuple[int, ...]) -> bool:
        """A large batch, in which rows that came or went change next to nothing."""
        compared = self._from
        if len(compared) < _LARGE or abs(len(lengths) - len(compared)) * _LARGE > len(compared):
            return False
        total, before = sum(lengths), sum(compared)
        longest = max(compared)
        return (
            abs(total - before) * _LARGE <= before
            and abs(max(lengths) - longest) * _LARGE <= longest
        )

    def _compare(self, lengths: tuple[int, ...]) -> None:
        self._from = lengths
        self._to = tuple([n + max(_HOLD_TOKENS, n // _HOLD_SHARE) for n in lengths])
        tiles = [-(-length // self.model.shape.page_size) for length in lengths]
        kind, ranked = batch_kind(lengths), []
        self._predicted_us = {}  # earlier decisions keep theirs
        for strategy in self.candidates:
            us, num_splits = self.model.best(strategy, tiles)
            us += self._surcharge(strategy, lengths)
            factor = self._trials.factor(kind, strategy)
            self._num_splits[strategy] = num_splits
            self._predicted_us[strategy] = round(us * factor, 1)
            careful = us * (1 + self._doubt(strategy, lengths))
            ranked.append(Ranked(strategy, careful, careful * factor))
        ranked.sort(key=lambda r: r.us)
        self._best = ranked[0].strategy
        self._why = self._reason(ranked)
        self._trials.watch(kind, ranked)

    def _doubt(self, strategy: str, lengths: tuple[int, ...]) -> float:
        """By what share of its time a strategy must be predicted to win.

        The prediction's usual error, and more on CUDA: split cuts rows into as many pieces each, so
        that ragged ones are hard to predict, less so the more of all its programs take turns; and
        FlashInfer has to win by more than its error whatever the others' are, unless steps of the
        model were timed.
        """
        errors = {name: self.model.costs[name].error for name in self.candidates}
        doubt = errors.pop(strategy)
        if self.model.shape.device.type == "cuda":
            if strategy == "split":
                pieces = len(lengths) * self._num_splits[strategy]
                waves = pieces * self.model.shape.num_kv_heads / self.model.workers
                uneven = max(lengths) * len(lengths) / sum(lengths) - 1
                doubt += _RAGGED * uneven / max(1.0, waves)
            if strategy == "flashinfer" and not self._surcharge.known:
                doubt += max((errors[name] for name in errors if name != "sdpa"), default=0.0)
        return doubt

    def _reason(self, ranked: Sequence[Ranked]) -> str:
        first, *others = ranked
        name, us = self._label(first), max(self._predicted_us[first.strategy], 0.1)
        if self.name.startswith(_FORCED):
            return f"{name}, forced"
        if not others:
            return f"{name} is all that runs here"
        second = others[0]
        second_us = self._predicted_us[second.strategy]
        by = "going by trials, " if any(r.us != r.model_us for r in (first, second)) else ""
        if second_us < us * (1 + _TIE):
            both = f"{name} and {self._label(second)} should take about the same"
            return f"{by}{both}, {_us(us)} µs a layer{self._passed_over(ranked)}"
        more = f"{second_us / us - 1:.0%} more" if second_us < 2 * us else f"{second_us / us:.1f}x"
        return (
            f"{by}{name} should take {_us(us)} µs a layer, "
            f"{self._label(second)} {_us(second_us)} ({more}){self._passed_over(ranked)}"
        )

    def _passed_over(self, ranked: Sequence[Ranked]) -> str:
        """On the smallest prediction, where doubt in it let another win; else ""."""
        least = min(self._predicted_us, key=lambda name: self._predicted_us[name])
        chosen_us = self._predicted_us[ranked[0].strategy]
        less = 1 - self._predicted_us[least] / max(chosen_us, 0.1)
        if less <= 0:
            return ""
        return f"; {least}'s {less:.{0 if less >= 0.005 else 1}%} less is within its error"

    def _label(self, ranked: Ranked) -> str:
        splits = self._num_splits[ranked.strategy]
        return f"{ranked.strategy} in {splits} splits" if splits > 1 else ranked.strategy


def _us(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def _batch(lengths: tuple[int, ...]) -> str:
    if len(lengths) == 1:
        return f"1 chat of {lengths[0]} tokens"
    shortest, longest = min(lengths), max(lengths)
    if shortest == longest:
        return f"{len(lengths)} chats of {longest} tokens each"
    return f"{len(lengths)} chats of {shortest} to {longest} tokens"
