"""Times every strategy on a few batches, for a calibration record's constants.

Times are the best of several: what disturbs a measurement only ever makes it longer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import median

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec
from .calibration import Calibration, Progress
from .cost import StrategyCost, Work, split_choices, strategy_work
from .kv import allocate_kv, page_bytes
from .registry import create_strategy
from .strategy import Strategy

_COLD_BYTES = 48 << 20  # beyond a core's caches: a layer finds its KV in memory
_CPU_LENGTHS: tuple[tuple[int, ...], ...] = (
    (50,), (300,), (1000,), (4000,), (200, 200, 200, 200), (1500, 100, 700, 300), (300,) * 8,
)  # fmt: skip
_CUDA_LENGTHS: tuple[tuple[int, ...], ...] = (
    (1000,), (4000,), (16000,), (64000,), (8000,) * 4, (30000, 4000, 2000, 6000),
    (1000,) * 8, (16000,) * 8, (50000, 3000, 9000, 6000, 40000, 2000, 8000, 5000), (2000,) * 32,
)  # fmt: skip


def measure_costs(
    shape: AttentionShape, available: Sequence[str], progress: Progress
) -> Calibration:
    """Run every strategy on a few batches and fit its constants."""
    stage = "measuring attention"
    cuda = shape.device.type == "cuda"
    workers = torch.get_num_threads()
    if cuda:
        workers = torch.cuda.get_device_properties(shape.device).multi_processor_count
    bench = _Bench(shape, _CUDA_LENGTHS if cuda else _CPU_LENGTHS)
    budget_s = 20.0 if cuda else 2.0  # the first of the runs on CUDA may compile
    costs: dict[str, StrategyCost] = {}
    for done, name in enumerate(available):
        progress(stage, done, len(available))
        cases = bench.sample(name, workers, budget_s / len(available))
        samples = [(case.work, case.run_us) for case in cases]
        costs[name] = fit(samples, median(case.plan_us for case in cases))
    progress(stage, len(available), len(available))
    return Calibration(workers, costs)


@dataclass
class _Case:
    """run_us: of a layer; plan_us: of planning, per unit of Work.plans."""

    batch: DecodeBatch
    num_splits: int
    work: Work
    run_us: float = float("inf")
    plan_us: float = float("inf")


class _Bench:
    """A KV cache of a few layers, each cold when its turn comes, and batches over it."""

    def __init__(self, shape: AttentionShape, batches: Sequence[tuple[int, ...]]) -> None:
        self.shape = shape
        size = shape.page_size
        most = max(sum(-(-length // size) for length in lengths) for lengths in batches) + 1
        layers = min(8, max(2, _COLD_BYTES // (most * page_bytes(1, shape))))
        self.kv_layers = allocate_kv(layers, most, shape)
        for kv_layer in self.kv_layers:
            kv_layer.fill_(1)  # untouched memory would be read from one zero page
        self.batches = [self._batch(lengths) for lengths in batches]

    def _batch(self, lengths: tuple[int, ...]) -> DecodeBatch:
        size, device = self.shape.page_size, self.shape.device
        table = torch.zeros(len(lengths), -(-max(lengths) // size), dtype=torch.int32)
        pages = torch.randperm(len(self.kv_layers[0]) - 1, dtype=torch.int32) + 1
        for row, length in enumerate(lengths):
            count = -(-length // size)
            table[row, :count], pages = pages[:count], pages[count:]
        return DecodeBatch(
            table.to(device),
            torch.tensor(lengths, dtype=torch.int32, device=device),
            torch.zeros(len(lengths), dtype=torch.int64, device=device),
            lengths,
        )

    def sample(self, name: str, workers: int, budget_s: float) -> list[_Case]:
        """Every batch under a few num_splits, timed until the budget is spent, once at least."""
        shape = self.shape
        strategy = create_strategy(name, shape)
        cases: list[_Case] = []
        for batch in self.batches:
            tiles = [-(-length // shape.page_size) for length in batch.lengths]
            choices = split_choices(name, tiles, shape.device)
            for splits in sorted({choices[0], choices[len(choices) // 2], choices[-1]}):
                work = strategy_work(name, tiles, splits, shape, workers)
                cases.append(_Case(batch, splits, work))
        deadline = time.perf_counter() + budget_s
        for attempt in range(5):
            for case in cases:
                if attempt and time.perf_counter() > deadline:
                    return cases
                self._time(strategy, case)
        return cases

    def _time(self, strategy: Strategy, case: _Case) -> None:
        shape, layers = self.shape, self.kv_layers
        spec = LayerSpec(shape.head_dim**-0.5)
        size = (len(case.batch), shape.num_qo_heads, shape.head_dim)
        q = torch.ones(size, dtype=shape.dtype, device=shape.device)
        out = torch.empty_like(q)
        start = _now(shape.device)
        strategy.plan(case.batch, case.num_splits)
        strategy.run(q, layers[0], out, spec)
        first = _now(shape.device) - start
        # A GPU is only waited for once; on CPU each layer is a chance of an undisturbed run.
        runs = [layers] if shape.device.type == "cuda" else [[layer] for layer in layers]
        for group in runs:
            start = _now(shape.device)
            for kv_layer in group:
                strategy.run(q, kv_layer, out, spec)
            case.run_us = min(case.run_us, (_now(shape.device) - start) / len(group))
        case.plan_us = min(case.plan_us, max(0.0, first - case.run_us) / case.work.plans)


def _now(device: torch.device) -> float:
    """Microseconds, with nothing left to run on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() * 1e6


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
