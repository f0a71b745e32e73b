"""Times whole decode steps of the model under each strategy, so that the policy knows this model.

They run as a chat's steps do, through CUDA graphs, which the first answers then find captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median

import torch

from pkvchat.kernels.cost import CostModel
from pkvchat.kernels.progress import Progress
from pkvchat.kernels.strategy import Strategy
from pkvchat.kernels.surcharge import StepTimes

from .graph_runner import StepGraphs
from .sequence import Sequence

STAGE = "timing decode steps"
_LENGTHS = (8192, 256, 32768, 2048)  # of each row; where time is short, the first ones
_ROWS, _MORE_ROWS = (1,), (1, 8, 2, 4, 16)
_BUDGET_S = 0.8  # after which no other batch is begun
_MORE = 6  # as much for one who asked to have the device measured
_STEPS, _SAMPLES = 2, 3


class StepBench:
    """Even batches on pages of the KV cache, which nobody else uses yet. CUDA only."""

    def __init__(
        self,
        graphs: StepGraphs,
        strategies: Mapping[str, Strategy],
        costs: CostModel,
        num_pages: int,
        context: int,
    ) -> None:
        """num_pages: of the cache, beside scratch page 0. context: tokens a row may have."""
        self._graphs, self._costs = graphs, costs
        self.strategies = {name: each for name, each in strategies.items() if each.capturable}
        self._num_pages, self._context = num_pages, context

    def times(self, progress: Progress, *, thorough: bool = False) -> list[StepTimes]:
        """Nothing where there is no choice; what there is when memory runs out.

        thorough: more batches, some seconds instead of one.
        """
        if len(self.strategies) < 2:
            return []
        found: list[StepTimes] = []
        batches = list(self._batches(_MORE_ROWS if thorough else _ROWS))
        deadline = time.perf_counter() + _BUDGET_S * (_MORE if thorough else 1)
        for done, (rows, length) in enumerate(batches):
            if found and time.perf_counter() > deadline:
                break
            progress(STAGE, done, len(batches))
            try:
                found.append(StepTimes(rows, length, self._time(rows, length)))
            except torch.OutOfMemoryError:
                break
        return found

    def _batches(self, rows: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """(rows, length) of those that the cache, the context and graphs have room for."""
        size = self._costs.shape.page_size
        for count in rows:
            if not all(self._graphs.covers(each, count) for each in self.strategies.values()):
                continue
            most = min(self._context, self._num_pages // count * size)
            yield from ((count, length) for length in _LENGTHS if length <= most)

    @torch.inference_mode()
    def _time(self, rows: int, length: int) -> dict[str, float]:
        """Microseconds of a step by strategy; they take turns."""
        count = -(-length // self._costs.shape.page_size)
        sequences = [
            Sequence(
                f"row {row}",
                [0] * length,
                num_cached=length - 1,
                pages=list(range(1 + row * count, 1 + (row + 1) * count)),
            )
            for row in range(rows)
        ]
        steps = {
            name: self._step(strategy, sequences, [count] * rows)
            for name, strategy in self.strategies.items()
        }
        samples: dict[str, list[float]] = {name: [] for name in steps}
        for step in steps.values():
            step()  # makes the graph
        for _ in range(_SAMPLES):
            for name, step in steps.items():
                step()
                samples[name].append(_mean_us(step))
        return {name: median(each) for name, each in samples.items()}

    def _step(
        self, strategy: Strategy, sequences: list[Sequence], tiles: list[int]
    ) -> Callable[[], None]:
        _, num_splits = self._costs.best(strategy.name, tiles)

        def step() -> None:
            self._graphs.prepare(sequences, strategy, num_splits)()

        return step


def _mean_us(step: Callable[[], None]) -> float:
    """The host plans one step while the device is at the one before, as the engine does."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_STEPS):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / _STEPS
