"""A trace, step by step, under two protocols.

- calls, the paper's: each step is one attention call, planned in it; KV of another layer each time,
  so that no step finds in a cache what the one before has read.
- model: each step is planned once and runs ``layers`` layers, in a CUDA graph where the strategy
  can be captured, with a small kernel between layers that depends on both.

The tensors of a step's batch lie ready in both, in FlashInfer's own form for FlashInfer. The wall
time goes from before the policy's choice to the device's last kernel.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from pkvchat.kernels.batch import DecodeBatch
from pkvchat.kernels.graph_timing import captured
from pkvchat.kernels.kv import page_bytes
from pkvchat.kernels.progress import Progress
from pkvchat.kernels.strategy import Strategy

from .check import Check
from .counters import count
from .engines import Engine, Engines
from .floor import Floor
from .problem import KvPool, Queries, StaticBatch, decode_batch, kv_bytes, num_cold_layers
from .results import Counters, Elapsed, TraceResult
from .traces import Request, Step, place_pages, schedule

_CYCLES_PER_US = 2000  # of the device's clock, at most
_LEAD_US = 300.0  # by which the host should be ahead
_POOL_BYTES = {"cuda": 16 << 30, "cpu": 512 << 20}
_MAX_LAYERS = 64


@dataclass(frozen=True)
class Workload:
    """A trace's steps. pages: physical ones of each request; num_pages: of the KV cache."""

    name: str
    max_active: int
    seed: int | None
    requests: Sequence[Request]
    steps: Sequence[Step]
    pages: dict[int, list[int]]
    num_pages: int

    @property
    def label(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.name} B{self.max_active}{seed}"

    def pool_layers(self, bytes_per_page: int, page_size: int, device: torch.device) -> int:
        """Layers to take in turn: so many that a step's KV is cold, if memory allows it."""
        shortest = min(sum(row.length for row in step) for step in self.steps)
        cold = num_cold_layers(-(-shortest // page_size) * bytes_per_page, device)
        most = _POOL_BYTES[device.type] // (self.num_pages * bytes_per_page)
        return max(2, min(cold, most, _MAX_LAYERS))


def workload(
    name: str,
    requests: Sequence[Request],
    max_active: int,
    seed: int | None,
    max_steps: int,
    page_size: int,
    hole_fraction: float,
) -> Workload:
    """Requests that never run within ``max_steps`` own no pages."""
    steps = schedule(requests, max_active, max_steps)
    running = sorted({row.request for step in steps for row in step})
    counts = [-(-(requests[i].prompt + requests[i].decode) // page_size) for i in running]
    pages, num_pages = place_pages(counts, hole_fraction, seed or 0)
    owned = dict(zip(running, pages, strict=True))
    return Workload(name, max_active, seed, requests, steps, owned, num_pages)


class Server:
    """Walks through one workload with every engine in turn, step by step."""

    def __init__(self, workload: Workload, pool: KvPool, num_layers: int) -> None:
        shape = self.shape = pool.shape
        self.on_cuda = shape.device.type == "cuda"
        self.workload, self.num_layers = workload, num_layers
        layers = workload.pool_layers(page_bytes(1, shape), shape.page_size, shape.device)
        self.kv_layers = pool.layers(workload.num_pages, layers)
        width = max(len(pages) for pages in workload.pages.values())
        self.batches = [
            decode_batch(
                [workload.pages[row.request] for row in step],
                [row.length for row in step],
                width,
                shape.device,
            )
            for step in workload.steps
        ]
        sizes = {len(batch): batch for batch in self.batches}
        self.queries = {rows: Queries(shape, rows) for rows in sizes}
        self.static = {rows: StaticBatch(batch) for rows, batch in sizes.items()}
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._turn = 0

    # --- the paper's protocol --------------------------------------------------------------------

    def call(self, engine: Engine, batch: DecodeBatch) -> str:
        """One attention call on a layer whose KV is cold; returns the strategy."""
        decision = engine.plan(batch)
        queries = self.queries[len(batch)]
        self._turn = (self._turn + 1) % len(self.kv_layers)
        kv_layer = self.kv_layers[self._turn]
        engine.strategies[decision.strategy].run(queries.q, kv_layer, queries.out, queries.spec)
        return decision.strategy

    def time_call(self, engine: Engine, batch: DecodeBatch) -> tuple[float, float, str]:
        """Microseconds by the clock and on the device, and the strategy."""
        engine.prepare(batch)
        self._synchronize()
        start = time.perf_counter()
        picked = self.call(engine, batch)
        self._synchronize()
        wall_us = (time.perf_counter() - start) * 1e6
        if not self.on_cuda:
            return wall_us, wall_us, picked
        return wall_us, self._device_us(lambda: self.call(engine, batch), wall_us), picked

    def _device_us(self, body: Callable[[], object], wall_us: float) -> float:
        """Of ``body`` launched behind a kernel that waits, so that no gap is the host's."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int((wall_us + _LEAD_US) * _CYCLES_PER_US))
        begin.record()
        body()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3

    # --- a model's protocol ----------------------------------------------------------------------

    def time_model(self, engine: Engine, source: DecodeBatch) -> tuple[float, float, str]:
        """The same of a step that plans once and runs all layers."""
        batch = self.static[len(source)].load(source)
        engine.prepare(batch)
        self._synchronize()
        start = time.perf_counter()
        decision = engine.plan(batch)
        strategy = engine.strategies[decision.strategy]
        if self.on_cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph = self._graphs.get((id(strategy), len(batch)))
            if graph is not None:
                graph.replay()
            else:
                self._layers(strategy, batch)
            end.record()
            end.synchronize()
        else:
            self._layers(strategy, batch)
        wall_us = (time.perf_counter() - start) * 1e6
        engine.policy.observe(batch.lengths, decision, wall_us)
        device_us = begin.elapsed_time(end) * 1e3 if self.on_cuda else wall_us
        return wall_us, device_us, decision.strategy

    def _layers(self, strategy: Strategy, batch: DecodeBatch) -> None:
        queries = self.queries[len(batch)]
        for layer in range(self.num_layers):
            kv_layer = self.kv_layers[layer % len(self.kv_layers)]
            strategy.run(queries.q, kv_layer, queries.out, queries.spec)
            queries.q.copy_(queries.out)

    def capture(self, strategies: Sequence[Strategy]) -> None:
        """Graphs of all layers, one for each strategy and number of rows."""
        if not self.on_cuda:
            return
        for rows, static in self.static.items():
            for strategy in strategies:
                if strategy.capturable and (id(strategy), rows) not in self._graphs:
                    strategy.plan(static.batch, 1)
                    self._layers(strategy, static.batch)
                    strategy.plan(static.batch, 1)
                    self._graphs[id(strategy), rows] = captured(
                        partial(self._layers, strategy, static.batch)
                    )

    def _synchronize(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize(self.shape.device)

    # --- correctness -----------------------------------------------------------------------------

    def check(self, engines: Engines) -> dict[str, float]:
        """max |e| of each engine at the first step and the last. Raises ChatError where one is
        wrong."""
        errors: dict[str, float] = {}
        for number in sorted({0, len(self.batches) - 1}):
            batch = self.batches[number]
            queries = self.queries[len(batch)]
            self._turn = len(self.kv_layers) - 1  # the next call's layer is the first
            check = Check(self.shape, batch, queries.q, self.kv_layers[0], queries.spec)
            for engine in engines.all:
                queries.out.fill_(float("nan"))
                self._turn = len(self.kv_layers) - 1
                self.call(engine, batch)
                label = f"{self.workload.label}, step {number}, {engine.name}"
                found = check(label, queries.out).max
                errors[engine.name] = max(found, errors.get(engine.name, 0.0))
        return errors


def count_calls(server: Server, engines: Engines) -> dict[str, Counters]:
    """By engine, of the trace's middle step. What looks at kernels slows those after it down."""
    batch = server.batches[len(server.batches) // 2]
    counters = {}
    for engine in engines.all:
        decision = engine.policy.choose(batch.lengths)
        strategy = engine.strategies[decision.strategy]
        call = partial(server.call, engine, batch)
        counters[engine.name] = count(strategy, server.shape, batch, decision.num_splits, call)
    return counters


_Measure = Callable[[Engine, DecodeBatch], tuple[float, float, str]]


def serve(
    server: Server, calls: Engines, model: Engines, floor: Floor, repeats: int, progress: Progress
) -> TraceResult:
    """calls, model: the engines of each protocol, whose policies spread planning differently.

    Raises ChatError where an engine's output is wrong.
    """
    workload, shape = server.workload, server.shape
    errors = server.check(calls)
    server.capture([s for engine in model.all for s in engine.strategies.values()])
    by_call, call_picks = _protocol(server, calls, server.time_call, repeats, progress)
    by_model, model_picks = _protocol(server, model, server.time_model, repeats, progress)
    lengths = [[row.length for row in step] for step in workload.steps]
    mean_bytes = sum(kv_bytes(row, shape) for row in lengths) // len(lengths)
    return TraceResult(
        trace=workload.name,
        max_active=workload.max_active,
        seed=workload.seed,
        steps=len(workload.steps),
        tokens=sum(map(len, workload.steps)),
        kv_bytes=mean_bytes,
        floor_us=floor(mean_bytes),
        layers=server.num_layers,
        calls=by_call,
        model=by_model,
        picks={"calls": call_picks, "model": model_picks},
        errors=errors,
    )


def _protocol(
    server: Server, engines: Engines, measure: _Measure, repeats: int, progress: Progress
) -> tuple[dict[str, Elapsed], dict[str, int]]:
    """Elapsed by engine, each step the median of the repeats; and what "adaptive" picked."""
    batches = server.batches
    for batch in {len(batch): batch for batch in batches}.values():
        for engine in engines.all:
            measure(engine, batch)  # compile, allocate
    samples: dict[str, list[list[tuple[float, float]]]] = {}
    picks: Counter[str] = Counter()
    for repeat in range(repeats):
        for engine in engines.all:
            engine.forget()
        for number, batch in enumerate(batches):
            progress(server.workload.label, repeat * len(batches) + number, repeats * len(batches))
            for engine in engines.all:
                wall_us, device_us, picked = measure(engine, batch)
                steps = samples.setdefault(engine.name, [[] for _ in batches])
                steps[number].append((wall_us, device_us))
                picks[picked] += engine is engines.adaptive
    medians = {
        name: [tuple(median(times) for times in zip(*step, strict=True)) for step in steps]
        for name, steps in samples.items()
    }
    totals = {name: _total(steps) for name, steps in medians.items()}
    if engines.oracle:
        fixed = [medians[engine.name] for engine in engines.fixed]
        best = [tuple(map(min, zip(*each, strict=True))) for each in zip(*fixed, strict=True)]
        totals["oracle"] = _total(best)
    return totals, {name: count for name, count in picks.items() if count}


def _total(steps: Sequence[tuple[float, ...]]) -> Elapsed:
    """steps: microseconds by the clock and on the device."""
    wall_us, device_us = map(sum, zip(*steps, strict=True))
    return Elapsed(wall_us / 1e3, device_us / 1e3)
