"""What is compared: each strategy under a policy that always takes it, and the adaptive policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch
from pkvchat.kernels.attention.registry import STRATEGIES, create_strategy
from pkvchat.kernels.attention.strategy import Strategy, StrategyUnavailable
from pkvchat.kernels.policy.calibration import Calibration, Calibrator
from pkvchat.kernels.policy.cost import split_choices
from pkvchat.kernels.policy.policy import Decision, Policy, create_policy

from ..errors import ChatError

if TYPE_CHECKING:  # FlashInfer is not everywhere
    from .flashinfer_alone import FlashInferAlone

ADAPTIVE, ORACLE, FLASHINFER = "adaptive", "oracle", "flashinfer"
_MANY = 1 << 16  # pages of a row: enough to be split if a strategy splits


class Always:
    """Takes one strategy, whose num_splits matters to nobody, and no time; implements Policy."""

    def __init__(self, strategy: str) -> None:
        self.name = f"forced-{strategy}"
        self._decision = Decision(strategy, 1, {}, f"{strategy}, forced")

    def choose(self, lengths: tuple[int, ...]) -> Decision:
        return self._decision

    def observe(self, lengths: tuple[int, ...], decision: Decision, step_us: float) -> None:
        pass


class Engine:
    """A policy and the strategy objects that it chooses from, by the policy's names for them.

    prepare: makes what lies ready before a step begins; FlashInfer's own form of the batch.
    """

    def __init__(
        self,
        name: str,
        strategies: Mapping[str, Strategy],
        make_policy: Callable[[], Policy],
        prepare: Callable[[DecodeBatch], None] = lambda batch: None,
    ) -> None:
        self.name, self.strategies, self.prepare = name, strategies, prepare
        self._make_policy = make_policy
        self._policy: Policy | None = None

    @property
    def policy(self) -> Policy:
        """Made when it is first asked for, since that may take a calibration."""
        if self._policy is None:
            self._policy = self._make_policy()
        return self._policy

    def forget(self) -> None:
        """Begin again with a policy that has seen no batch yet."""
        self._policy = self._make_policy()

    def plan(self, batch: DecodeBatch) -> Decision:
        """Choose and plan, as a decode step does."""
        decision = self.policy.choose(batch.lengths)
        self.strategies[decision.strategy].plan(batch, decision.num_splits)
        return decision


@dataclass(frozen=True)
class Engines:
    """fixed: one for each strategy, for FlashInfer one for each of its paths. adaptive: None where
    it was not asked for. oracle: whether the best of the fixed ones was."""

    fixed: list[Engine]
    adaptive: Engine | None
    oracle: bool

    @property
    def all(self) -> list[Engine]:
        return [*self.fixed, *([self.adaptive] if self.adaptive else [])]


class Roster:
    """The strategies that run for one shape here, and what they cost."""

    def __init__(self, names: Sequence[str], shape: AttentionShape, calibrator: Calibrator) -> None:
        """names: of engines; all strategies are candidates of the adaptive one.

        missing: why a strategy isn't here. Raises ChatError where nothing of what is named can run.
        """
        self.shape, self.names = shape, names
        self.missing: dict[str, str] = {}
        self._strategies: dict[str, Strategy] = {}
        for name in STRATEGIES:
            if name in names or ADAPTIVE in names:
                try:
                    self._strategies[name] = create_strategy(name, shape)
                except StrategyUnavailable as error:
                    self.missing[name] = str(error)
        if not self._strategies:
            raise ChatError("; ".join(self.missing.values()) or "the oracle needs other engines")
        self._calibrator = calibrator
        self._paths: dict[str, FlashInferAlone] = {}
        if FLASHINFER in names and FLASHINFER in self._strategies:
            self._paths = self._flashinfer_paths()

    @cached_property
    def _calibration(self) -> Calibration:
        return self._calibrator.costs(self.shape, list(self._strategies))

    def _flashinfer_paths(self) -> dict[str, FlashInferAlone]:
        """On tensor cores, and on CUDA cores where that path knows the group size."""
        from .flashinfer_alone import FlashInferAlone

        paths: dict[str, FlashInferAlone] = {}
        for name, tensor_cores in ((f"{FLASHINFER} tc", True), (f"{FLASHINFER} cc", False)):
            with suppress(StrategyUnavailable):
                paths[name] = FlashInferAlone(self.shape, tensor_cores)
        return paths

    def engines(self, num_layers: int) -> Engines:
        """num_layers: over which policies spread one step's planning."""
        fixed = []
        for name, strategy in self._strategies.items():
            if name == FLASHINFER:
                for path, alone in self._paths.items():
                    one = {name: alone}
                    fixed.append(self._engine(path, name, one, num_layers, alone.prepare))
            elif name in self.names:
                fixed.append(self._engine(name, name, {name: strategy}, num_layers))
        adaptive = None
        if ADAPTIVE in self.names:
            adaptive = self._engine(ADAPTIVE, "", self._strategies, num_layers)
        return Engines(fixed, adaptive, ORACLE in self.names and bool(fixed))

    def _engine(
        self,
        name: str,
        forced: str,
        strategies: Mapping[str, Strategy],
        num_layers: int,
        prepare: Callable[[DecodeBatch], None] = lambda batch: None,
    ) -> Engine:
        """forced: the strategy that is always taken, "" where the policy chooses."""
        policy, candidates = f"forced-{forced}" if forced else ADAPTIVE, list(strategies)

        def make_policy() -> Policy:
            if forced and split_choices(forced, [_MANY], self.shape, 1) == [1]:
                return Always(forced)
            return create_policy(policy, self.shape, self._calibration, candidates, num_layers)

        return Engine(name, strategies, make_policy, prepare)
