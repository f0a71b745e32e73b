"""Ratios of what was measured: FlashInfer over ours, the adaptive policy against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from .results import CaseResult, Elapsed, Results, Timing, TraceResult

OURS = ("split", "workqueue")
_FLASHINFER = "flashinfer"


def better_path(names: Iterable[str], us: Callable[[str], float]) -> str | None:
    """FlashInfer's faster path among engines' names, by their time; None where it did not run."""
    paths = [name for name in names if name.startswith(_FLASHINFER)]
    return min(paths, key=us) if paths else None


def flashinfer(case: CaseResult) -> str | None:
    return better_path(case.times, lambda name: case.times[name].layer_us)


def best_of_ours(case: CaseResult) -> str | None:
    ours = [name for name in OURS if name in case.times]
    return min(ours, key=lambda name: case.times[name].layer_us) if ours else None


def ratio(case: CaseResult) -> float | None:
    """FlashInfer's time of a layer over ours, the better of each."""
    theirs, ours = flashinfer(case), best_of_ours(case)
    if theirs is None or ours is None:
        return None
    return case.times[theirs].layer_us / case.times[ours].layer_us


@dataclass(frozen=True)
class Adaptive:
    """The adaptive policy over many cases. over: its time over the oracle's, less one.

    against: FlashInfer's time over its, at worst; None where FlashInfer did not run. *_case: where.
    """

    median_over: float
    worst_over: float
    worst_case: str
    against: float | None
    against_case: str


def adaptive(cases: Sequence[CaseResult], us: Callable[[Timing], float]) -> Adaptive | None:
    """By ``us``, a time of a layer. None where it was not measured beside a strategy."""
    over: list[tuple[float, str]] = []
    against: list[tuple[float, str]] = []
    for case in cases:
        fixed = {name: us(timing) for name, timing in case.times.items() if name != "adaptive"}
        if "adaptive" not in case.times or not fixed:
            continue
        own = us(case.times["adaptive"])
        over.append((own / min(*fixed.values(), own) - 1, case.case))
        path = better_path(fixed, fixed.__getitem__)
        if path is not None:
            against.append((fixed[path] / own, case.case))
    if not over:
        return None
    worst, where = max(over)
    least, against_where = min(against) if against else (None, "")
    return Adaptive(median(each for each, _ in over), worst, where, least, against_where)


def largest_errors(results: Results) -> dict[str, float]:
    """max |e| of each engine over all that was checked."""
    found: dict[str, float] = {}
    cases, traces = results.cases, results.traces
    for errors in (*(case.errors for case in cases), *(trace.errors for trace in traces)):
        for name, error in errors.items():
            found[name] = max(error, found.get(name, 0.0))
    return found


# --- traces --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(mean(values), stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class Served:
    """One engine on one trace over all seeds, by the clock and on the device.

    Tokens per second, and FlashInfer's time over this engine's (None where FlashInfer did not run).
    """

    wall_tps: Spread
    device_tps: Spread
    wall_ratio: Spread | None
    device_ratio: Spread | None


def by_setting(traces: Iterable[TraceResult]) -> dict[str, list[TraceResult]]:
    """The seeds of each trace, under a name such as "bimodal B8"."""
    groups: dict[str, list[TraceResult]] = {}
    for trace in traces:
        groups.setdefault(f"{trace.trace} B{trace.max_active}", []).append(trace)
    return groups


def served(traces: Sequence[TraceResult], protocol: str, engine: str) -> Served:
    """traces: the seeds of one setting. protocol: see ``serving``."""

    def spreads(ms: Callable[[Elapsed], float]) -> tuple[Spread, Spread | None]:
        rates, ratios = [], []
        for trace in traces:
            elapsed = trace.elapsed[protocol]
            own = ms(elapsed[engine])
            rates.append(trace.tokens / own * 1e3)
            theirs = {name: ms(each) for name, each in elapsed.items()}
            path = better_path(theirs, theirs.__getitem__)
            if path is not None:
                ratios.append(theirs[path] / own)
        return Spread.of(rates), Spread.of(ratios) if ratios else None

    wall_tps, wall_ratio = spreads(lambda elapsed: elapsed.wall_ms)
    device_tps, device_ratio = spreads(lambda elapsed: elapsed.device_ms)
    return Served(wall_tps, device_tps, wall_ratio, device_ratio)
