"""One batch at a time: the device time of a layer for each engine, and planning apart.

On CUDA a layer's time is that of a CUDA graph over so many layers that each one's KV is cold; what
cannot be captured, and everything on a CPU, is launched layer by layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from pkvchat.kernels.attention.kv import page_bytes
from pkvchat.kernels.attention.strategy import Strategy
from pkvchat.kernels.policy.calibration import count_workers
from pkvchat.kernels.policy.cost import split_choices
from pkvchat.kernels.policy.graph_timing import captured, replay_us

from .cases import Case
from .check import Check
from .engines import Engines
from .floor import Floor
from .problem import KvPool, Queries, StaticBatch, decode_batch, kv_bytes, num_cold_layers
from .results import CaseResult, Timing
from .traces import place_pages

_SPLITS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)  # compared in named cases
_MIN_LAYERS = 8
_MAX_LAUNCHED = 3  # layers launched one by one
_SAMPLES, _NAMED_SAMPLES = 5, 11


def case_pages(case: Case, page_size: int) -> list[int]:
    """Pages of each row."""
    return [-(-length // page_size) for length in case.lengths]


def pool_pages(case: Case, pool_page_bytes: int, page_size: int, device: torch.device) -> int:
    """Pages that all layers of a case take. pool_page_bytes: of one page in one layer."""
    pages = sum(case_pages(case, page_size)) + 1
    return pages * num_cold_layers(pages * pool_page_bytes, device)


class CaseProblem:
    """One batch, and one tensor of KV for each of the layers that take turns."""

    def __init__(self, case: Case, pool: KvPool, width: int, between: bool) -> None:
        """width: of the block table, in pages. between: see options."""
        shape = self.shape = pool.shape
        self.case, self.between = case, between
        pages, num_pages = place_pages(case_pages(case, shape.page_size), 0.0, seed=0)
        self.batch = StaticBatch(decode_batch(pages, case.lengths, width, shape.device)).batch
        layers = num_cold_layers(num_pages * page_bytes(1, shape), shape.device)
        self.kv_layers = pool.layers(num_pages, layers)
        self.queries = Queries(shape, len(case.lengths))
        self.samples = _SAMPLES if case.target is None else _NAMED_SAMPLES

    def run(self, strategy: Strategy, count: int) -> None:
        """The first ``count`` layers."""
        queries = self.queries
        for layer in range(count):
            kv_layer = self.kv_layers[layer % len(self.kv_layers)]
            strategy.run(queries.q, kv_layer, queries.out, queries.spec)
            if self.between:
                queries.q.copy_(queries.out)

    def plan_and_run(self, strategy: Strategy, num_splits: int, count: int) -> None:
        strategy.plan(self.batch, num_splits)
        self.run(strategy, count)


@dataclass(frozen=True)
class _Job:
    """A strategy to time for an engine, with the num_splits of which the best counts."""

    engine: str
    strategy: Strategy
    splits: Sequence[int]


def measure_case(
    problem: CaseProblem, engines: Engines, floor: Floor, progress: Callable[[int, int], None]
) -> CaseResult:
    """progress: of the engines. Raises ChatError where an engine's output is wrong."""
    case, queries = problem.case, problem.queries
    nbytes = kv_bytes(case.lengths, problem.shape)
    q = queries.q.clone()
    check = Check(problem.shape, problem.batch, q, problem.kv_layers[0], queries.spec)
    jobs = [
        _Job(engine.name, strategy, _splits(name, problem))
        for engine in engines.fixed
        for name, strategy in engine.strategies.items()
    ]
    picked = ""
    if engines.adaptive:
        engines.adaptive.forget()
        decision = engines.adaptive.policy.choose(problem.batch.lengths)
        picked = decision.strategy
        strategy = engines.adaptive.strategies[picked]
        jobs.append(_Job(engines.adaptive.name, strategy, [decision.num_splits]))
    timed: dict[tuple[int, int], Timing] = {}
    errors: dict[str, float] = {}
    for number, job in enumerate(jobs):
        progress(number, len(jobs))
        splits = [n for n in job.splits if (id(job.strategy), n) not in timed]
        if splits:  # what the adaptive policy picks has most often been timed
            queries.q.copy_(q)  # --between has overwritten it
            queries.out.fill_(float("nan"))
            problem.plan_and_run(job.strategy, splits[-1], 1)
            errors[job.engine] = check(f"{case.name}, {job.engine}", queries.out).max
            found = time_layers(job.strategy, problem, splits)
            timed |= {(id(job.strategy), n): timing for n, timing in found.items()}
    times = {
        job.engine: min((timed[id(job.strategy), n] for n in job.splits), key=_layer_us)
        for job in jobs
    }
    return CaseResult(
        case=case.name,
        rows=len(case.lengths),
        tokens=sum(case.lengths),
        heads=(case.num_qo_heads, case.num_kv_heads),
        kv_bytes=nbytes,
        floor_us=floor(nbytes),
        times=times,
        picked=picked,
        errors=errors,
        target=case.target,
    )


def _layer_us(timing: Timing) -> float:
    return timing.layer_us


def _splits(name: str, problem: CaseProblem) -> list[int]:
    """The num_splits to compare for a strategy."""
    shape = problem.shape
    tiles = case_pages(problem.case, shape.page_size)
    splits = {*split_choices(name, tiles, shape, count_workers(shape))}
    if name == "split" and problem.case.target is not None:
        splits |= {n for n in _SPLITS if n <= max(tiles)}
    return sorted(splits)


def time_layers(
    strategy: Strategy, problem: CaseProblem, splits: Sequence[int]
) -> dict[int, Timing]:
    """By num_splits."""
    if strategy.capturable and problem.shape.device.type == "cuda":
        return _time_graphs(strategy, problem, splits)
    return {n: _time_launches(strategy, problem, n) for n in splits}


def _time_graphs(
    strategy: Strategy, problem: CaseProblem, splits: Sequence[int]
) -> dict[int, Timing]:
    """One graph finds the plan made; one makes it, where that is the device's work."""
    count = max(_MIN_LAYERS, len(problem.kv_layers))
    problem.plan_and_run(strategy, splits[0], count)
    planned = captured(partial(problem.run, strategy, count))
    strategy.plan(problem.batch, splits[0])
    planning = captured(partial(problem.run, strategy, count))
    layer_us, host_us = {}, {}
    for num_splits in splits:
        host_us[num_splits] = median(_plan_us(strategy, problem, num_splits) for _ in range(3))
        layer_us[num_splits] = replay_us(planned, problem.samples) / count
    strategy.plan(problem.batch, min(layer_us, key=layer_us.__getitem__))
    both = replay_us(planning, problem.samples), replay_us(planned, problem.samples)
    device_us = max(0.0, both[0] - both[1])
    return {n: Timing(layer_us[n], host_us[n] + device_us, n) for n in splits}


def _time_launches(strategy: Strategy, problem: CaseProblem, num_splits: int) -> Timing:
    """Planning is what a first layer takes longer; the best of several runs."""
    count = min(_MAX_LAUNCHED, len(problem.kv_layers))
    layer_us = first_us = float("inf")
    for _ in range(3):
        first = partial(problem.plan_and_run, strategy, num_splits, 1)
        first_us = min(first_us, _wall_us(first))
        layer_us = min(layer_us, _wall_us(partial(problem.run, strategy, count)) / count)
    return Timing(layer_us, max(0.0, first_us - layer_us), num_splits)


def _plan_us(strategy: Strategy, problem: CaseProblem, num_splits: int) -> float:
    """Of the host, while the device is idle: what follows is launched only after it."""
    _synchronize()
    start = time.perf_counter()
    strategy.plan(problem.batch, num_splits)
    return (time.perf_counter() - start) * 1e6


def _wall_us(body: Callable[[], None]) -> float:
    """By the clock, until the device is done."""
    _synchronize()
    start = time.perf_counter()
    body()
    _synchronize()
    return (time.perf_counter() - start) * 1e6


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
