"""Times every strategy on a few batches, for a calibration record's constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median

import torch

from ..attention.batch import AttentionShape, DecodeBatch
from ..progress import Progress
from .calibration import Calibration, count_workers
from .cost import StrategyCost, Work

STAGE = "measuring attention"
_BUDGET_S = {"cpu": 2.0, "cuda": 12.0}  # compiling not counted
_THOROUGH = 3
_CONSTANTS, _TILE = 5, 1  # of a layer's own work: call, tile, path, task, merge
_DISBELIEF = 0.5  # cases as the constants have them, that stand beside those of one kind
_FOCUS = 4  # power by which a case loses weight the slower it is than its batch's fastest


@dataclass
class Case:
    """run_us: of a layer; plan_us: of planning, per unit of Work.plans.

    weight: of the case in the fit.
    """

    batch: DecodeBatch
    num_splits: int
    work: Work
    run_us: float = float("inf")
    plan_us: float = float("inf")
    weight: float = 1.0


@dataclass
class Measured:
    """One strategy's cases; eager_us: see StrategyCost."""

    cases: list[Case]
    eager_us: float = 0.0

    def cost(self, least_tile: float = 0.0) -> StrategyCost:
        """least_tile: see fit."""
        samples = [(case.work, case.run_us, case.weight) for case in self.cases]
        cost = fit(samples, median(case.plan_us for case in self.cases), least_tile)
        return replace(cost, eager=self.eager_us, missed=missed(self.cases, cost))


def measure_costs(
    shape: AttentionShape, names: Sequence[str], progress: Progress, *, thorough: bool = False
) -> Calibration:
    """Run every strategy in ``names`` on a few batches and fit its constants.

    thorough: for several times as long. Raises torch.OutOfMemoryError where a GPU has no room.
    """
    budget_s = _BUDGET_S[shape.device.type] * (_THOROUGH if thorough else 1)
    measured = sample_costs(shape, names, progress, budget_s)
    return Calibration(count_workers(shape), costs_of(shape, measured))


def sample_costs(
    shape: AttentionShape, names: Sequence[str], progress: Progress, budget_s: float
) -> dict[str, Measured]:
    """The times that ``measure_costs`` fits, by strategy."""
    if shape.device.type == "cuda":
        from .measure_cuda import CudaBench

        measured = CudaBench(shape, names).sample(progress, budget_s)
    else:
        from .measure_cpu import CpuBench

        measured = CpuBench(shape).sample(names, progress, budget_s)
    weigh([case for found in measured.values() for case in found.cases])
    return measured


def costs_of(shape: AttentionShape, measured: dict[str, Measured]) -> dict[str, StrategyCost]:
    """Constants for each strategy; on CUDA none reads faster than memory was seen to be."""
    least_tile = 0.0
    if shape.device.type == "cuda":
        least_tile = min(
            case.run_us / (sum(pages_of(case.batch, shape)) * shape.num_kv_heads)
            for found in measured.values()
            for case in found.cases
        )
    return {name: found.cost(least_tile) for name, found in measured.items()}


def pages_of(batch: DecodeBatch, shape: AttentionShape) -> list[int]:
    """Of each row."""
    return [-(-length // shape.page_size) for length in batch.lengths]


def weigh(cases: Sequence[Case]) -> None:
    """Fits need to be right where strategies are close, not for what nobody would choose."""
    fastest: dict[tuple[int, ...], float] = {}
    for case in cases:
        lengths = case.batch.lengths
        fastest[lengths] = min(case.run_us, fastest.get(lengths, math.inf))
    for case in cases:
        case.weight = (fastest[case.batch.lengths] / case.run_us) ** _FOCUS


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


def fit(
    samples: Sequence[tuple[Work, float, float]], plan_us: float, least_tile: float = 0.0
) -> StrategyCost:
    """Non-negative least squares of relative errors. samples: (work, us of one layer, weight).

    plan_us: measured apart, per unit of Work.plans. least_tile: microseconds that a tile takes.
    """
    work = torch.tensor([astuple(each)[:_CONSTANTS] for each, *_ in samples], dtype=torch.float64)
    times, weights = torch.tensor([rest for _, *rest in samples], dtype=torch.float64).T
    relative = work / times.unsqueeze(1)
    a = relative * weights.unsqueeze(1)
    b = weights - a[:, _TILE] * least_tile
    scale = a.norm(dim=0).clamp_min(1e-30)
    active = a.norm(dim=0) > 0
    solution = torch.zeros(a.shape[1], dtype=torch.float64)
    while active.any():
        columns = a[:, active] / scale[active]
        # A little ridge: features that a short measurement cannot tell apart share the time.
        ridge = 1e-4 * torch.eye(int(active.sum()), dtype=torch.float64)
        found = torch.linalg.solve(columns.T @ columns + ridge, columns.T @ b)
        solution.zero_()
        solution[active] = found / scale[active]
        if (found >= 0).all():
            break
        worst = torch.where(active, solution * scale, torch.inf).argmin()
        active[worst] = False
    solution[_TILE] += least_tile
    call, tile, path, task, merge = solution.tolist()
    errors, order = (relative @ solution - 1).abs().sort()
    share = weights[order].cumsum(0) / weights.sum()
    error = errors[int((share < 0.5).sum())].item()
    return StrategyCost(call, tile, path, task, merge, plan_us, error=error)


def missed(cases: Sequence[Case], cost: StrategyCost) -> dict[str, float]:
    """See StrategyCost: geometric means of what the constants of ``cost`` are off by."""
    by_kind: dict[str, list[float]] = {}
    for case in cases:
        if case.work.kind:
            ratio = case.run_us / cost.fitted(case.work)
            by_kind.setdefault(case.work.kind, []).append(math.log(ratio))
    return {
        kind: round(math.exp(sum(logs) / (len(logs) + _DISBELIEF)), 4)
        for kind, logs in by_kind.items()
    }
