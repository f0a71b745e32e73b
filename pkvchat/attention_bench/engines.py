"""What is compared: each strategy under a policy that always takes it, and the adaptive policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pkvchat.kernels.batch import AttentionShape, DecodeBatch
from pkvchat.kernels.calibration import Calibration, Calibrator
from pkvchat.kernels.policy import Decision, Policy, create_policy
from pkvchat.kernels.registry import STRATEGIES, create_strategy
from pkvchat.kernels.strategy import Strategy, StrategyUnavailable

from ..errors import ChatError

ADAPTIVE, ORACLE, FLASHINFER = "adaptive", "oracle", "flashinfer"


@dataclass
class Engine:
    """A policy and the strategy objects that it chooses from, by the policy's names for them."""

    name: str
    strategies: Mapping[str, Strategy]
    make_policy: Callable[[], Policy]
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again with a policy that has seen no batch yet."""
        self.policy = self.make_policy()

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
        self._paths = self._flashinfer_paths() if FLASHINFER in self._strategies else {}
        self._calibration: Calibration = calibrator.costs(shape, list(self._strategies))

    def _flashinfer_paths(self) -> dict[str, Strategy]:
        """The path that the strategy takes by itself, and the other one where that can run."""
        from pkvchat.kernels.flashinfer import FlashInfer

        own = self._strategies[FLASHINFER]
        assert isinstance(own, FlashInfer)
        paths: dict[bool, Strategy] = {own.tensor_cores: own}
        with suppress(StrategyUnavailable):  # the CUDA cores' kernel has not every group size
            paths[not own.tensor_cores] = FlashInfer(self.shape, not own.tensor_cores)
        return {f"{FLASHINFER} {'tc' if tc else 'cc'}": path for tc, path in paths.items()}

    def engines(self, num_layers: int) -> Engines:
        """num_layers: over which policies spread one step's planning."""
        fixed = []
        for name, strategy in self._strategies.items():
            if name in self.names:
                paths = self._paths if name == FLASHINFER else {name: strategy}
                fixed += [
                    self._engine(path, f"forced-{name}", {name: each}, num_layers)
                    for path, each in paths.items()
                ]
        adaptive = None
        if ADAPTIVE in self.names:
            adaptive = self._engine(ADAPTIVE, ADAPTIVE, self._strategies, num_layers)
        return Engines(fixed, adaptive, ORACLE in self.names and bool(fixed))

    def _engine(
        self, name: str, policy: str, strategies: Mapping[str, Strategy], num_layers: int
    ) -> Engine:
        def make_policy() -> Policy:
            candidates = list(strategies)
            return create_policy(policy, self.shape, self._calibration, candidates, num_layers)

        return Engine(name, strategies, make_policy)
