"""Times a strategy on a GPU as a decode step runs it: in a CUDA graph, on KV that is not cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from statistics import median

import torch

from ..attention.batch import AttentionShape, DecodeBatch, LayerSpec
from ..attention.kv import allocate_kv, fill_random, page_bytes
from ..attention.registry import create_strategy
from ..attention.strategy import Strategy
from ..norm import rms_norm
from ..progress import Progress
from .calibration import count_workers
from .cost import split_choices, strategy_work
from .graph_timing import captured, replay_us
from .measure_costs import STAGE, Case, Measured, pages_of, random_batch

# Even batches, and others that lie between them or are ragged; where time is short, the first ones.
_TOKENS = (2048, 512, 8192, 32768, 1024, 4096, 16384, 131072, 65536)
_ROWS = (1, 8, 2, 32, 4, 16, 64, 12, 24)
_MOST_TOKENS = 1 << 21
_EVEN = [(n,) * rows for n in _TOKENS for rows in _ROWS if rows * n <= _MOST_TOKENS]
_OTHERS: list[tuple[int, ...]] = [
    (30000, 4000, 2000, 6000), (6000, 350, 1250, 320), (1000, 60),
    (20000, 1000, 14000, 9000, 5000, 17000, 3000, 12000), (300, 900, 500, 700) * 6,
    (50000, 3000, 9000, 6000, 40000, 2000, 8000, 5000), (3000,) * 3, (4000, 200), (400, 30) * 4,
    (4000, 100, 900, 300, 2000, 500, 200, 1500) * 4, (1600, 90, 300, 80), (250,) * 64,
    (18000, 22000, 20500, 19000, 21500, 17500, 20000, 21000), (2000,) * 5, (120000, 30000),
    (400, 1500, 900, 200, 3000, 700), (300, 6000, 1200, 800) * 4, (900, 50, 200, 100) * 4,
    (6000, 2000, 9000), (8000,) * 20,
]  # fmt: skip
_LENGTHS = [lengths for pair in zip_longest(_EVEN, _OTHERS) for lengths in pair if lengths]
_POOL_BYTES = 4352 << 20
_COLD_BYTES = 256 << 20  # several times any L2
_LEAST_LAYERS, _MAX_LAYERS = 4, 128
_LEAST_BATCHES = 12  # measured even when that takes longer than it should
_EAGER_LAYERS = 3
_EXPOSED = 0.05  # of the host's planning: the rest is done while the device runs the step before
# What the host starts for one layer beside attention: two norms, four products, rope, the KV write,
# the activation, and copies between them.
_LAUNCHES = 10


class CudaBench:
    """Batches over one pool of random KV, each with its own cut of it into layers.

    Layers follow one another directly, as benchmarks of attention have them. What the kernels of a
    model do between them, steps of the model tell (see Surcharge).
    """

    def __init__(self, shape: AttentionShape, names: Sequence[str]) -> None:
        """Raises torch.OutOfMemoryError where too little memory is free."""
        self.shape = shape
        self.workers = count_workers(shape)
        free, _ = torch.cuda.mem_get_info(shape.device)
        num_pages = min(_POOL_BYTES, free // 2) // page_bytes(1, shape)
        self.strategies = [create_strategy(name, shape) for name in names]
        (self._pool,) = allocate_kv(1, num_pages, shape)
        fill_random(self._pool)

    def sample(self, progress: Progress, budget_s: float) -> dict[str, Measured]:
        """Every batch, under the num_splits that a policy would compare.

        The strategies take turns on each batch, so that a clock that drifts changes no comparison.
        """
        measured = {strategy.name: Measured([]) for strategy in self.strategies}
        deadline = time.perf_counter() + budget_s
        with torch.cuda.device(self.shape.device):
            for done, lengths in enumerate(_LENGTHS):
                progress(STAGE, done, len(_LENGTHS))
                if done >= _LEAST_BATCHES and time.perf_counter() > deadline:
                    break
                kv_layers = self._kv_layers(lengths)
                if not kv_layers:
                    continue
                batch = random_batch(self.shape, lengths, len(kv_layers[0]))
                for strategy in self.strategies:
                    measured[strategy.name].cases += self._measure(strategy, batch, kv_layers)
            for strategy in self.strategies:
                if not strategy.capturable:
                    measured[strategy.name].eager_us = _LAUNCHES * self._launch_us()
        progress(STAGE, len(_LENGTHS), len(_LENGTHS))
        return measured

    def _kv_layers(self, lengths: Sequence[int]) -> list[torch.Tensor]:
        """The pool cut into layers that a batch of these lengths finds cold, as far as it goes."""
        shape = self.shape
        pages = sum(-(-length // shape.page_size) for length in lengths) + 1
        size = pages * page_bytes(1, shape)
        layers = min(_MAX_LAYERS, -(-_COLD_BYTES // size), len(self._pool) // pages)
        if layers < 1 or (layers < 2 and size < _COLD_BYTES):
            return []
        kv_layers = list(self._pool[: layers * pages].split(pages))
        return kv_layers * -(-_LEAST_LAYERS // layers)

    def _measure(
        self, strategy: Strategy, batch: DecodeBatch, kv_layers: list[torch.Tensor]
    ) -> list[Case]:
        shape, name = self.shape, strategy.name
        tiles = pages_of(batch, shape)
        cases = [
            Case(batch, splits, strategy_work(name, tiles, splits, shape, self.workers))
            for splits in split_choices(name, tiles, shape, self.workers)
        ]
        size = (len(batch), shape.num_qo_heads, shape.head_dim)
        q = torch.randn(size, device=shape.device).to(shape.dtype)
        spec, out = LayerSpec(shape.head_dim**-0.5), torch.empty_like(q)

        def layers(count: int) -> None:
            for kv_layer in kv_layers[:count]:
                strategy.run(q, kv_layer, out, spec)

        time_all = self._time_graphs if strategy.capturable else self._time_launches
        time_all(strategy, cases, layers, len(kv_layers))
        return cases

    def _time_graphs(
        self, strategy: Strategy, cases: list[Case], layers: Callable[[int], None], count: int
    ) -> None:
        """One graph finds the plan made; one makes it, where that is the device's work."""
        first = cases[0]
        strategy.plan(first.batch, first.num_splits)
        layers(count)
        planned = captured(lambda: layers(count))
        strategy.plan(first.batch, first.num_splits)
        planning = captured(lambda: layers(count))
        device_us = max(0.0, replay_us(planning) - replay_us(planned))
        for case in cases:
            host_us = median(_plan_us(strategy, case) for _ in range(5))
            case.run_us = replay_us(planned) / count
            case.plan_us = _EXPOSED * host_us + device_us

    def _time_launches(
        self, strategy: Strategy, cases: list[Case], layers: Callable[[int], None], count: int
    ) -> None:
        """Planning is what the first layer takes longer."""
        count = min(count, _EAGER_LAYERS)
        for case in cases:
            for _ in range(3):
                strategy.plan(case.batch, case.num_splits)
                first = _wall_us(lambda: layers(1))
                case.run_us = min(case.run_us, _wall_us(lambda: layers(count)) / count)
                case.plan_us = min(case.plan_us, max(0.0, first - case.run_us) / case.work.plans)

    def _launch_us(self) -> float:
        """What the host takes to start one of a model's kernels."""
        x = torch.ones(1, self.shape.head_dim, dtype=self.shape.dtype, device=self.shape.device)
        weight, count = torch.ones_like(x[0]), 100

        def launches() -> None:
            for _ in range(count):
                rms_norm(x, weight, 1e-5)

        return min(_wall_us(launches) for _ in range(3)) / count


def _plan_us(strategy: Strategy, case: Case) -> float:
    """Of the host, while the device is idle: a graph is launched only after it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    strategy.plan(case.batch, case.num_splits)
    return (time.perf_counter() - start) * 1e6


def _wall_us(body: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    body()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6
