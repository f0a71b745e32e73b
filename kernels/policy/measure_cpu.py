"""Times strategies on a CPU, on KV that is in no cache."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ..attention.batch import AttentionShape, LayerSpec
from ..attention.kv import allocate_kv, page_bytes
from ..attention.registry import create_strategy
from ..attention.strategy import Strategy
from ..progress import Progress
from .calibration import count_workers
from .cost import split_choices, strategy_work
from .measure_costs import STAGE, Case, Measured, random_batch

_COLD_BYTES = 48 << 20  # beyond a core's caches: a layer finds its KV in memory
_LENGTHS: tuple[tuple[int, ...], ...] = (
    (50,), (300,), (1000,), (4000,), (200, 200, 200, 200), (1500, 100, 700, 300), (300,) * 8,
)  # fmt: skip


class CpuBench:
    """A KV cache of a few layers, each cold when its turn comes, and batches over it.

    Times are the best of several: what disturbs a measurement only ever makes it longer.
    """

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self.workers = count_workers(shape)
        size = shape.page_size
        most = max(sum(-(-length // size) for length in lengths) for lengths in _LENGTHS) + 1
        layers = min(8, max(2, _COLD_BYTES // (most * page_bytes(1, shape))))
        self.kv_layers = allocate_kv(layers, most, shape)
        for kv_layer in self.kv_layers:
            kv_layer.fill_(1)  # untouched memory would be read from one zero page
        self.batches = [random_batch(shape, lengths, most) for lengths in _LENGTHS]

    def sample(
        self, names: Sequence[str], progress: Progress, budget_s: float
    ) -> dict[str, Measured]:
        """Every batch under a few num_splits, as often as the time allows, once at least."""
        measured = {}
        for done, name in enumerate(names):
            progress(STAGE, done, len(names))
            measured[name] = self._sample(name, budget_s / len(names))
        progress(STAGE, len(names), len(names))
        return measured

    def _sample(self, name: str, budget_s: float) -> Measured:
        shape = self.shape
        strategy = create_strategy(name, shape)
        cases: list[Case] = []
        for batch in self.batches:
            tiles = [-(-length // shape.page_size) for length in batch.lengths]
            choices = split_choices(name, tiles, shape, self.workers)
            for splits in sorted({choices[0], choices[len(choices) // 2], choices[-1]}):
                work = strategy_work(name, tiles, splits, shape, self.workers)
                cases.append(Case(batch, splits, work))
        deadline = time.perf_counter() + budget_s
        for attempt in range(5):
            for case in cases:
                if attempt and time.perf_counter() > deadline:
                    return Measured(cases)
                self._time(strategy, case)
        return Measured(cases)

    def _time(self, strategy: Strategy, case: Case) -> None:
        shape, layers = self.shape, self.kv_layers
        spec = LayerSpec(shape.head_dim**-0.5)
        size = (len(case.batch), shape.num_qo_heads, shape.head_dim)
        q = torch.ones(size, dtype=shape.dtype)
        out = torch.empty_like(q)
        start = time.perf_counter()
        strategy.plan(case.batch, case.num_splits)
        strategy.run(q, layers[0], out, spec)
        first = time.perf_counter() - start
        for kv_layer in layers:  # each is a chance of an undisturbed run
            start = time.perf_counter()
            strategy.run(q, kv_layer, out, spec)
            case.run_us = min(case.run_us, (time.perf_counter() - start) * 1e6)
        case.plan_us = min(case.plan_us, max(0.0, first * 1e6 - case.run_us) / case.work.plans)
