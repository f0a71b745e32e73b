"""A trace under three protocols.

- calls, the paper's: each step is one attention call, planned in it; KV of another layer each time,
  so that no step finds in a cache what the one before has read.
- replays: the same, the call being a CUDA graph's replay where the strategy can be captured.
- model: each step is planned once and replays a graph of ``layers`` layers, with a small kernel
  between layers that depends on both. On a CPU there are no graphs, and no replays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from pkvchat.kernels.attention.batch import DecodeBatch
from pkvchat.kernels.progress import Progress

from .counters import count_launches, schedule
from .engines import Engine, Engines
from .floor import Floor
from .problem import kv_bytes
from .results import Counters, Elapsed, TraceResult
from .server import Measured, Server

_Measure = Callable[[Engine, DecodeBatch], Measured]
_Steps = dict[str, list[tuple[float, float]]]  # by engine: us by the clock and on the device


def serve(
    server: Server, calls: Engines, model: Engines, floor: Floor, repeats: int, progress: Progress
) -> TraceResult:
    """calls, model: engines whose policies spread planning over one call, and over all layers.

    Raises ChatError where an engine's output is wrong.
    """
    workload, shape = server.workload, server.shape
    errors = server.check(calls)
    server.capture([s for engine in model.all for s in engine.strategies.values()])
    picks: dict[str, dict[str, int]] = {}

    def walk(protocol: str, engines: Engines, measure: _Measure) -> _Steps:
        report = partial(progress, f"{workload.label}, {protocol}")
        steps, picks[protocol] = _walk(server.batches, engines, measure, repeats, report)
        return steps

    if server.on_cuda:
        on_device = walk("calls", calls, server.time_call_on_device)
        by_clock = walk("calls", calls, server.time_call)
        replays = walk("replays", calls, server.time_replay)
        protocols = {"calls": (calls, _joined(by_clock, on_device)), "replays": (calls, replays)}
    else:
        protocols = {"calls": (calls, walk("calls", calls, server.time_call))}
    protocols["model"] = model, walk("model", model, server.time_model)
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
        elapsed={name: _elapsed(*measured) for name, measured in protocols.items()},
        picks=picks,
        errors=errors,
    )


def _walk(
    batches: Sequence[DecodeBatch],
    engines: Engines,
    measure: _Measure,
    repeats: int,
    progress: Callable[[int, int], None],
) -> tuple[_Steps, dict[str, int]]:
    """Each step's median over the repeats; and what "adaptive" picked.

    One engine after another, as a program has only one: its host code is warm from step to step.
    """
    samples: dict[str, list[list[tuple[float, float]]]] = {}
    picks: Counter[str] = Counter()
    for batch in {len(batch): batch for batch in batches}.values():
        for engine in engines.all:
            measure(engine, batch)  # compile, allocate
    for repeat in range(repeats):
        for number, engine in enumerate(engines.all):
            progress(repeat * len(engines.all) + number, repeats * len(engines.all))
            engine.forget()
            steps = samples.setdefault(engine.name, [[] for _ in batches])
            for step, batch in zip(steps, batches, strict=True):
                wall_us, device_us, picked = measure(engine, batch)
                step.append((wall_us, device_us))
                if engine is engines.adaptive:
                    picks[picked] += 1
    medians = {
        name: [
            (median(wall), median(device)) for wall, device in (zip(*s, strict=True) for s in steps)
        ]
        for name, steps in samples.items()
    }
    return medians, dict(picks)


def _joined(by_clock: _Steps, on_device: _Steps) -> _Steps:
    return {
        name: [
            (wall, device) for (wall, _), (device, _) in zip(steps, on_device[name], strict=True)
        ]
        for name, steps in by_clock.items()
    }


def _elapsed(engines: Engines, measured: _Steps) -> dict[str, Elapsed]:
    """By engine, over all steps; the oracle takes each step's best."""
    totals = {name: _total(steps) for name, steps in measured.items()}
    if engines.oracle:
        fixed = [measured[engine.name] for engine in engines.fixed]
        best = [
            (min(wall), min(device))
            for wall, device in (zip(*step, strict=True) for step in zip(*fixed, strict=True))
        ]
        totals["oracle"] = _total(best)
    return totals


def _total(steps: Sequence[tuple[float, float]]) -> Elapsed:
    wall_us, device_us = map(sum, zip(*steps, strict=True))
    return Elapsed(wall_us / 1e3, device_us / 1e3)


def count_calls(server: Server, engines: Engines) -> dict[str, Counters]:
    """By engine, of the trace's middle step. What looks at kernels slows those after it down."""
    batch = server.batches[len(server.batches) // 2]
    schedules = {}
    for engine in engines.all:
        decision = engine.policy.choose(batch.lengths)
        strategy = engine.strategies[decision.strategy]
        schedules[engine.name] = schedule(strategy, server.shape, batch, decision.num_splits)
    calls = [partial(server.call, engine, batch) for engine in engines.all]
    launches = count_launches(calls) if server.on_cuda else [None for _ in calls]
    return {
        name: replace(counters, launches=found)
        for (name, counters), found in zip(schedules.items(), launches, strict=True)
    }
