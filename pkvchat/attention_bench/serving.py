"""A trace under three protocols, every engine taking its turn in each step.

- calls, the paper's: each step is one attention call, planned in it; KV of another layer each time,
  so that no step finds in a cache what the one before has read.
- replays: the same, the call being a CUDA graph's replay where the strategy can be captured.
- model: each step is planned once and replays a graph of ``layers`` layers, with a small kernel
  between layers that depends on both. On a CPU there are no graphs, and no replays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from pkvchat.kernels.batch import DecodeBatch
from pkvchat.kernels.progress import Progress

from .counters import count
from .engines import Engine, Engines
from .floor import Floor
from .problem import kv_bytes
from .results import Counters, Elapsed, TraceResult
from .server import Server

_Measure = Callable[[Engine, DecodeBatch], tuple[float, float, str]]


def serve(
    server: Server, calls: Engines, model: Engines, floor: Floor, repeats: int, progress: Progress
) -> TraceResult:
    """calls, model: engines whose policies spread planning over one call, and over all layers.

    Raises ChatError where an engine's output is wrong.
    """
    workload, shape = server.workload, server.shape
    errors = server.check(calls)
    server.capture([s for engine in model.all for s in engine.strategies.values()])
    elapsed: dict[str, dict[str, Elapsed]] = {}
    picks: dict[str, dict[str, int]] = {}
    for protocol, engines, measure in _protocols(server, calls, model):
        stage = f"{workload.label}, {protocol}"
        elapsed[protocol], picks[protocol] = _walk(
            server.batches, engines, measure, repeats, partial(progress, stage)
        )
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
        elapsed=elapsed,
        picks=picks,
        errors=errors,
    )


def _protocols(
    server: Server, calls: Engines, model: Engines
) -> Iterator[tuple[str, Engines, _Measure]]:
    yield "calls", calls, server.time_call
    if server.on_cuda:
        yield "replays", calls, server.time_replay
    yield "model", model, server.time_model


def _walk(
    batches: Sequence[DecodeBatch],
    engines: Engines,
    measure: _Measure,
    repeats: int,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, Elapsed], dict[str, int]]:
    """Elapsed by engine, each step the median of the repeats; and what "adaptive" picked."""
    for batch in {len(batch): batch for batch in batches}.values():
        for engine in engines.all:
            measure(engine, batch)  # compile, allocate
    samples: dict[str, list[list[tuple[float, float]]]] = {
        engine.name: [[] for _ in batches] for engine in engines.all
    }
    picks: Counter[str] = Counter()
    for repeat in range(repeats):
        for engine in engines.all:
            engine.forget()
        for number, batch in enumerate(batches):
            progress(repeat * len(batches) + number, repeats * len(batches))
            for engine in engines.all:
                wall_us, device_us, picked = measure(engine, batch)
                samples[engine.name][number].append((wall_us, device_us))
                if engine is engines.adaptive:
                    picks[picked] += 1
    medians = {
        name: [tuple(median(times) for times in zip(*step, strict=True)) for step in steps]
        for name, steps in samples.items()
    }
    totals = {name: _total(steps) for name, steps in medians.items()}
    if engines.oracle:
        fixed = [medians[engine.name] for engine in engines.fixed]
        best = [tuple(map(min, zip(*each, strict=True))) for each in zip(*fixed, strict=True)]
        totals["oracle"] = _total(best)
    return totals, dict(picks)


def _total(steps: Sequence[tuple[float, ...]]) -> Elapsed:
    """steps: microseconds by the clock and on the device."""
    wall_us, device_us = map(sum, zip(*steps, strict=True))
    return Elapsed(wall_us / 1e3, device_us / 1e3)


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
