"""Times whole decode steps of the model under each strategy, so that the policy knows this model.

They run through CUDA graphs, as a chat's steps do, but through graphs of their own, whose memory is
given back before the chats come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from pkvchat.kernels.attention.strategy import Strategy
from pkvchat.kernels.policy.cost import CostModel
from pkvchat.kernels.policy.surcharge import StepTimes
from pkvchat.kernels.progress import Progress

from .engine.graph_runner import Kind, StepGraphs
from .engine.runner import ModelRunner
from .engine.sequence import Sequence

STAGE = "timing decode steps"
# (rows, tokens of each); where time is short, the first ones.
_BATCHES = (
    (1, 8192), (1, 128), (1, 32768), (8, 2048), (2, 2048), (4, 2048), (1, 2048), (1, 512),
    (1, 131072), (8, 16384), (8, 256), (2, 16384), (2, 256), (4, 16384), (4, 256), (16, 2048),
    (16, 256), (32, 1024),
)  # fmt: skip
_BUDGET_S, _THOROUGH_S = 0.7, 6.0  # of steps; compiling and capturing come on top
_STEPS, _SAMPLES = 2, 2


class StepBench:
    """Even batches on pages of the KV cache, which nobody else uses yet. CUDA only."""

    def __init__(
        self,
        runner: ModelRunner,
        strategies: Mapping[str, Strategy],
        costs: CostModel,
        num_pages: int,
        context: int,
    ) -> None:
        """num_pages: of the cache, beside scratch page 0. context: tokens a row may have."""
        self._runner, self._costs = runner, costs
        self.strategies = {name: each for name, each in strategies.items() if each.capturable}
        self._num_pages, self._context = num_pages, context

    def times(self, progress: Progress, *, thorough: bool = False) -> list[StepTimes]:
        """Nothing where there is no choice; what there is when memory runs out.

        thorough: more batches, some seconds instead of one.
        """
        found: list[StepTimes] = []
        batches = [batch for batch in _BATCHES if self._has_room(*batch)]
        left_us = 1e6 * (_THOROUGH_S if thorough else _BUDGET_S)
        graphs_rows = 0  # that the graphs are for
        for done, (rows, length) in enumerate(batches if len(self.strategies) > 1 else []):
            if left_us < 0:
                break
            progress(STAGE, done, len(batches))
            if rows != graphs_rows:
                graphs, graphs_rows = self._new_graphs(), rows
            try:
                us = self._time(graphs, rows, length)
            except torch.OutOfMemoryError:
                break
            if us is not None:
                found.append(StepTimes(rows, length, us))
                left_us -= sum(us.values()) * _SAMPLES * (_STEPS + 1)
        return found

    def _has_room(self, rows: int, length: int) -> bool:
        """In the context and in the cache."""
        pages = rows * -(-length // self._costs.shape.page_size)
        return length <= self._context and pages <= self._num_pages

    @torch.inference_mode()
    def _time(self, graphs: StepGraphs, rows: int, length: int) -> dict[str, float] | None:
        """Microseconds of a step by strategy, taken in turns; None where one has no graph."""
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
        steps = {}
        for name, strategy in self.strategies.items():
            kind = graphs.kind(strategy, rows)
            if kind is None:
                return None
            _, num_splits = self._costs.best(name, [count] * rows)
            steps[name] = partial(_run, graphs, kind, sequences, num_splits)
        samples: dict[str, list[float]] = {name: [] for name in steps}
        for step in steps.values():
            step()  # compiles
            step()  # makes the graph
        if len(graphs) < len(steps):
            return None
        for _ in range(_SAMPLES):
            for name, step in steps.items():
                step()
                samples[name].append(_mean_us(step))
        return {name: min(each) for name, each in samples.items()}

    def _new_graphs(self) -> StepGraphs:
        runner, max_pages = self._runner, -(-self._context // self._costs.shape.page_size)
        return StepGraphs(
            runner.model, runner.shape, runner.kv_layers, max_pages, notify=lambda line: None
        )


def _run(graphs: StepGraphs, kind: Kind, sequences: list[Sequence], num_splits: int) -> None:
    graphs.prepare(kind, sequences, num_splits)()


def _mean_us(step: Callable[[], None]) -> float:
    """The host plans one step while the device is at the one before, as the engine does."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_STEPS):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / _STEPS
