"""A trace as batches that lie ready, and the ways to time one step of it.

The wall time goes from before the policy's choice to the device's last kernel; for FlashInfer, its
own form of the batch lies ready, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from pkvchat.kernels.attention.batch import DecodeBatch
from pkvchat.kernels.attention.kv import page_bytes
from pkvchat.kernels.attention.strategy import Strategy
from pkvchat.kernels.policy.graph_timing import captured
from pkvchat.kernels.policy.policy import Decision

from ..clean import one_line
from ..errors import ChatError
from .check import Check
from .engines import Engine, Engines
from .problem import KvPool, Queries, StaticBatch, decode_batch, num_cold_layers
from .traces import Request, Step, place_pages, schedule

_LEAD_CYCLES = (
    2_000_000  # of the device, about a millisecond: longer than the host takes for a call
)
_POOL_BYTES = {"cuda": 16 << 30, "cpu": 512 << 20}
_MAX_LAYERS = 64

Layers = tuple[int, ...]  # that a step runs, by their place in the pool
Measured = tuple[float, float, str]  # us by the clock, us on the device, the strategy


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
    max_pages: int,
) -> Workload:
    """A request owns the pages that ``max_steps`` reach, and none if it never runs.

    Raises ChatError where they are more than ``max_pages``.
    """
    steps = schedule(requests, max_active, max_steps)
    reached = {row.request: row.length for step in steps for row in step}
    counts = {i: -(-reached[i] // page_size) for i in sorted(reached)}
    need = math.ceil(sum(counts.values()) / (1 - hole_fraction)) + 1
    if need > max_pages:
        raise ChatError(
            f"the trace {one_line(name)[:40]} needs {need} KV pages in a layer and there is memory "
            f"for {max_pages}: lower --max-active or --steps, or take shorter prompts"
        )
    pages, num_pages = place_pages(list(counts.values()), hole_fraction, seed or 0)
    owned = dict(zip(counts, pages, strict=True))
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
        self._model = tuple(layer % layers for layer in range(num_layers))
        self._graphs: dict[tuple[int, int, Layers], torch.cuda.CUDAGraph] = {}
        self._turn = 0

    # --- launched --------------------------------------------------------------------------------

    def call(self, engine: Engine, batch: DecodeBatch) -> str:
        """One attention call on a layer whose KV is cold; returns the strategy."""
        decision = engine.plan(batch)
        queries = self.queries[len(batch)]
        self._turn = (self._turn + 1) % len(self.kv_layers)
        kv_layer = self.kv_layers[self._turn]
        engine.strategies[decision.strategy].run(queries.q, kv_layer, queries.out, queries.spec)
        return decision.strategy

    def time_call(self, engine: Engine, batch: DecodeBatch) -> Measured:
        """By the clock alone."""
        engine.prepare(batch)
        self._synchronize()
        start = time.perf_counter()
        picked = self.call(engine, batch)
        self._synchronize()
        wall_us = (time.perf_counter() - start) * 1e6
        return wall_us, wall_us, picked

    def time_call_on_device(self, engine: Engine, batch: DecodeBatch) -> Measured:
        """Launched behind a kernel that waits, so that no gap is the host's."""
        engine.prepare(batch)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_LEAD_CYCLES)
        begin.record()
        picked = self.call(engine, batch)
        end.record()
        end.synchronize()
        device_us = float(begin.elapsed_time(end)) * 1e3
        return device_us, device_us, picked

    # --- in CUDA graphs --------------------------------------------------------------------------

    def time_replay(self, engine: Engine, source: DecodeBatch) -> Measured:
        """One call that is a graph's replay, where the strategy can be captured."""
        self._turn = (self._turn + 1) % len(self.kv_layers)
        wall_us, device_us, decision = self._step(engine, source, (self._turn,))
        return wall_us, device_us, decision.strategy

    def time_model(self, engine: Engine, source: DecodeBatch) -> Measured:
        """A step that plans once and runs all layers of a model."""
        wall_us, device_us, decision = self._step(engine, source, self._model)
        engine.policy.observe(source.lengths, decision, wall_us)
        return wall_us, device_us, decision.strategy

    def _step(
        self, engine: Engine, source: DecodeBatch, layers: Layers
    ) -> tuple[float, float, Decision]:
        batch = self.static[len(source)].load(source)
        engine.prepare(batch)
        self._synchronize()
        start = time.perf_counter()
        decision = engine.plan(batch)
        strategy = engine.strategies[decision.strategy]
        if not self.on_cuda:
            self._run(strategy, batch, layers)
            wall_us = (time.perf_counter() - start) * 1e6
            return wall_us, wall_us, decision
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph = self._graphs.get((id(strategy), len(batch), layers))
        if graph is not None:
            graph.replay()
        else:
            self._run(strategy, batch, layers)
        end.record()
        end.synchronize()
        wall_us = (time.perf_counter() - start) * 1e6
        return wall_us, begin.elapsed_time(end) * 1e3, decision

    def _run(self, strategy: Strategy, batch: DecodeBatch, layers: Layers) -> None:
        queries = self.queries[len(batch)]
        for layer in layers:
            strategy.run(queries.q, self.kv_layers[layer], queries.out, queries.spec)
            if len(layers) > 1:
                queries.q.copy_(queries.out)

    def capture(self, strategies: Sequence[Strategy]) -> None:
        """Graphs of all layers and of each one, for each strategy and number of rows."""
        if not self.on_cuda:
            return
        single = [(layer,) for layer in range(len(self.kv_layers))]
        for rows, static in self.static.items():
            for strategy in (each for each in strategies if each.capturable):
                for layers in (self._model, *single):
                    strategy.plan(static.batch, 1)
                    self._run(strategy, static.batch, layers)
                    strategy.plan(static.batch, 1)
                    body = partial(self._run, strategy, static.batch, layers)
                    self._graphs[id(strategy), rows, layers] = captured(body)

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
