"""The results as Markdown: batches, traces under each protocol, counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from . import summary
from .results import CaseResult, Counters, Results, Timing, TraceResult
from .summary import Adaptive, Spread

_PROTOCOLS = {
    "calls": "one attention call a step, planned in it",
    "replays": "the same, in a CUDA graph",
    "model": "a model of {layers} layers, planned once a step",
}


def markdown(results: Results) -> str:
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    about = results.about
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    yield f"{about['device']}, {versions}, {about['date']}"
    yield f"{about['shape']}"
    yield ""
    yield f"    {about['command']}"
    if results.cases:
        yield from ("", "## Batches", "", *_case_lines(results))
    if results.traces:
        for protocol, title in _PROTOCOLS.items():
            if protocol in results.traces[0].elapsed:
                title = title.format(layers=results.traces[0].layers)
                yield from ("", f"## Traces, {title}", "")
                yield from _trace_lines(results.traces, protocol)
        yield from ("", "## One call", "", *_counter_lines(results))
    errors = summary.largest_errors(results)
    if errors:
        found = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        yield from ("", f"Largest error against float64: {found}.")
    if results.notes:
        yield from ("", *(f"- {note}" for note in results.notes))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"


# --- batches -------------------------------------------------------------------------------------


def _case_lines(results: Results) -> Iterator[str]:
    """Microseconds of a layer on the device; of FlashInfer its better path."""
    cases = results.cases
    engines = [
        name for name in ("split", "workqueue", "sdpa") if any(name in c.times for c in cases)
    ]
    with_target = any(case.target is not None for case in cases)
    header = ["case", "KV MB", "floor µs", "FlashInfer µs", *(f"{name} µs" for name in engines)]
    header += ["of the floor", "FlashInfer / best", *(["target"] if with_target else [])]
    header += ["adaptive µs", "picked"]
    rows = []
    for case in cases:
        row = [case.case, f"{case.kv_bytes / 1e6:.1f}", f"{case.floor_us:.1f}", _theirs(case)]
        row += [_timing(case.times.get(name)) for name in engines]
        row += [_of_floor(case), _ratio(summary.ratio(case))]
        row += [f"{case.target:.2f}" if case.target else ""] if with_target else []
        row += [_timing(case.times.get("adaptive")), case.picked]
        rows.append(row)
    yield from table(header, rows)
    steps = f"of a layer with planning spread over {results.layers}"
    for what, found in (
        ("of a layer on the device", summary.adaptive(cases, lambda timing: timing.layer_us)),
        (steps, summary.adaptive(cases, lambda timing: timing.step_us(results.layers))),
    ):
        if found is not None:
            yield from ("", _adaptive(what, len(cases), found))


def _theirs(case: CaseResult) -> str:
    name = summary.flashinfer(case)
    return f"{case.times[name].layer_us:.1f} {name.split()[-1]}" if name else ""


def _timing(timing: Timing | None) -> str:
    if timing is None:
        return ""
    splits = f" ({timing.num_splits})" if timing.num_splits > 1 else ""
    return f"{timing.layer_us:.1f}{splits}"


def _of_floor(case: CaseResult) -> str:
    best = min(timing.layer_us for timing in case.times.values())
    return f"{case.floor_us / best:.0%}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _adaptive(what: str, count: int, found: Adaptive) -> str:
    line = (
        f"Adaptive, by the time {what}, over {count} batches: {found.median_over:.1%} over the "
        f"oracle's in the median, {found.worst_over:.1%} at worst ({found.worst_case})"
    )
    if found.against is None:
        return line + "."
    return line + f"; FlashInfer / adaptive at least {found.against:.3f} ({found.against_case})."


# --- traces --------------------------------------------------------------------------------------


def _trace_lines(traces: Sequence[TraceResult], protocol: str) -> Iterator[str]:
    """Means and standard deviations over the seeds; on a CPU, the clock's are the device's."""
    header = ["trace", "seeds", "engine", "tokens/s, wall", "device"]
    header += ["FlashInfer / it, wall", "device", "picked"]
    rows = []
    for label, seeds in summary.by_setting(traces).items():
        for engine in seeds[0].elapsed[protocol]:
            found = summary.served(seeds, protocol, engine)
            row = [label, str(len(seeds)), engine]
            row += [_rate(found.wall_tps.mean), _rate(found.device_tps.mean)]
            row += [_spread(found.wall_ratio), _spread(found.device_ratio)]
            rows.append([*row, _picks(seeds, protocol) if engine == "adaptive" else ""])
    yield from table(header, rows)


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _spread(value: Spread | None) -> str:
    return "" if value is None else f"{value.mean:.3f} ± {value.sd:.3f}"


def _picks(seeds: Sequence[TraceResult], protocol: str) -> str:
    total: dict[str, int] = {}
    for trace in seeds:
        for name, count in trace.picks[protocol].items():
            total[name] = total.get(name, 0) + count
    steps = sum(total.values())
    return ", ".join(f"{name} {count / steps:.0%}" for name, count in total.items())


def _counter_lines(results: Results) -> Iterator[str]:
    """Of one attention call: counted in the middle of a trace, timed over all of it."""
    header = ["trace", "engine", "kernels", "tasks", "with work", "merge MB", "KV MB"]
    header += ["device µs", "GB/s", "of the floor"]
    rows = []
    for label, seeds in summary.by_setting(results.traces).items():
        kv_bytes = mean(trace.kv_bytes for trace in seeds)
        floor_us = mean(trace.floor_us for trace in seeds)
        for engine, counters in results.counters.get(label, {}).items():
            if any(engine not in trace.elapsed["calls"] for trace in seeds):
                continue  # counted in one of several runs, and timed in another
            us = (
                mean(trace.elapsed["calls"][engine].device_ms / trace.steps for trace in seeds)
                * 1e3
            )
            row = [label, engine, *_counted(counters), f"{kv_bytes / 1e6:.1f}", f"{us:.1f}"]
            rows.append([*row, _rate(kv_bytes / us / 1e3), f"{floor_us / us:.0%}"])
    yield from table(header, rows)


def _counted(counters: Counters) -> list[str]:
    return [
        "" if counters.launches is None else str(counters.launches),
        "" if counters.tasks is None else str(counters.tasks),
        "" if counters.filled is None else f"{counters.filled:.0%}",
        "" if counters.merge_bytes is None else f"{counters.merge_bytes / 1e6:.2f}",
    ]
