"""Times every strategy on a few batches, for a calibration record's constants."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median
from typing import Protocol

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec
from .calibration import Calibration, count_workers
from .cost import StrategyCost, Work, split_choices, strategy_work
from .kv import allocate_kv, page_bytes
from .progress import Progress
from .registry import create_strategy
from .strategy import Strategy

_COLD_BYTES = 48 << 20  # beyond a core's caches: a layer finds its KV in memory
_CPU_LENGTHS: tuple[tuple[int, ...], ...] = (
    (50,), (300,), (1000,), (4000,), (200, 200, 200, 200), (1500, 100, 700, 300), (300,) * 8,
)  # fmt: skip
_CPU_BUDGET_S = 2.0


@dataclass
class Case:
    """run_us: of a layer; plan_us: of planning, per unit of Work.plans."""

    batch: DecodeBatch
    num_splits: int
    work: Work
    run_us: float = float("inf")
    plan_us: float = float("inf")


@dataclass
class Measured:
    """One strategy's cases; eager_us: see StrategyCost."""

    cases: list[Case]
    eager_us: float = 0.0

    def cost(self) -> StrategyCost:
        samples = [(case.work, case.run_us) for case in self.cases]
        cost = fit(samples, median(case.plan_us for case in self.cases))
        return replace(cost, eager=self.eager_us)


class Bench(Protocol):
    """workers: see CostModel."""

    workers: int

    def sample(self, name: str) -> Measured:
        """Time the strategy ``name`` on every batch."""


def measure_costs(
    shape: AttentionShape, available: Sequence[str], progress: Progress
) -> Calibration:
    """Run every strategy on a few batches and fit its constants."""
    stage = "measuring attention"
    bench = make_bench(shape, _CPU_BUDGET_S / len(available))
    costs: dict[str, StrategyCost] = {}
    for done, name in enumerate(available):
        progress(stage, done, len(available))
        costs[name] = bench.sample(name).cost()
    progress(stage, len(available), len(available))
    return Calibration(bench.workers, costs)


def make_bench(shape: AttentionShape, budget_s: float) -> Bench:
    """budget_s: of a strategy on CPU; a GPU needs no more than its number of cases."""
    if shape.device.type == "cuda":
        from .measure_cuda import CudaBench

        return CudaBench(shape)
    return CpuBench(shape, budget_s)


def random_batch(shape: AttentionShape, lengths: tuple[int, ...], num_pages: int) -> DecodeBatch:
    """Rows on pages in random order, page 0 left out; static, nothing in it ever changes."""
    size, device = shape.page_size, shape.device
    table = torch.zeros(len(lengths), -(-max(lengths) // size), dtype=torch.int32)
    pages = torch.randperm(num_pages - 1, dtype=torch.int32) + 1
    for row, length in enumerate(lengths):
        count = -(-length // size)
        table[row, :count], pages = pages[:count], pages[count:]
    return DecodeBatch(
        table.to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        torch.zeros(len(lengths), dtype=torch.int64, device=device),
        lengths,
        static=True,
    )


class CpuBench:
    """A KV cache of a few layers, each cold when its turn comes, and batches over it.

    Times are the best of several: what disturbs a measurement only ever makes it longer.
    """

    def __init__(self, shape: AttentionShape, budget_s: float) -> None:
        self.shape, self.budget_s = shape, budget_s
        self.workers = count_workers(shape.device)
        size = shape.page_size
        most = max(sum(-(-length // size) for length in lengths) for lengths in _CPU_LENGTHS) + 1
        layers = min(8, max(2, _COLD_BYTES // (most * page_bytes(1, shape))))
        self.kv_layers = allocate_kv(layers, most, shape)
        for kv_layer in self.kv_layers:
            kv_layer.fill_(1)  # untouched memory would be read from one zero page
        self.batches = [random_batch(shape, lengths, most) for lengths in _CPU_LENGTHS]

    def sample(self, name: str) -> Measured:
        """Every batch under a few num_splits, timed until the budget is spent, once at least."""
        shape = self.shape
        strategy = create_strategy(name, shape)
        cases: list[Case] = []
        for batch in self.batches:
            tiles = [-(-length // shape.page_size) for length in batch.lengths]
            choices = split_choices(name, tiles, shape, self.workers)
            for splits in sorted({choices[0], choices[len(choices) // 2], choices[-1]}):
                work = strategy_work(name, tiles, splits, shape, self.workers)
                cases.append(Case(batch, splits, work))
        deadline = time.perf_counter() + self.budget_s
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


def fit(samples: Sequence[tuple[Work, float]], plan_us: float) -> StrategyCost:
    """Non-negative least squares of relative errors. samples: (work, measured us of one layer).

    plan_us: measured apart, per unit of Work.plans.
    """
    rows = torch.tensor([astuple(work)[:-1] for work, _ in samples], dtype=torch.float64)
    times = torch.tensor([us for _, us in samples], dtype=torch.float64)
    a = rows / times.unsqueeze(1)
    scale = a.norm(dim=0).clamp_min(1e-30)
    active = a.norm(dim=0) > 0
    solution = torch.zeros(a.shape[1], dtype=torch.float64)
    while active.any():
        columns = a[:, active] / scale[active]
        # A little ridge: features that a short measurement cannot tell apart share the time.
        ridge = 1e-4 * torch.eye(int(active.sum()), dtype=torch.float64)
        normal = columns.T @ columns + ridge
        found = torch.linalg.solve(normal, columns.T @ torch.ones(len(times), dtype=torch.float64))
        solution.zero_()
        solution[active] = found / scale[active]
        if (found >= 0).all():
            break
        worst = torch.where(active, solution * scale, torch.inf).argmin()
        active[worst] = False
    call, tile, path, task, merge = solution.tolist()
    return StrategyCost(call, tile, path, task, merge, plan_us)
