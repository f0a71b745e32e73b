"""A picture of the results: each engine's time against the floor, over the bytes read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import ChatError
from . import summary
from .results import Results

_STYLE = {
    "FlashInfer": ("tab:green", "s"),
    "split": ("tab:orange", "^"),
    "workqueue": ("tab:blue", "o"),
    "sdpa": ("tab:gray", "x"),
    "adaptive": ("tab:red", "+"),
}

Point = tuple[float, float, dict[str, float]]  # KV MB, floor us, us by engine


def draw(results: Results, path: Path) -> None:
    """Write a PNG: microseconds on the left, shares of the floor on the right.

    Raises ChatError where there is nothing to draw or the file cannot be written.
    """
    from matplotlib.figure import Figure

    points = sorted([*_case_points(results), *_trace_points(results)], key=lambda point: point[0])
    if not points:
        raise ChatError("there is nothing to draw: the results hold no batch and no trace")
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*zip(*((mb, floor) for mb, floor, _ in points), strict=True), "k-", label="floor")
    for name, (colour, marker) in _STYLE.items():
        found = [(mb, us[name], floor / us[name]) for mb, floor, us in points if name in us]
        if found:
            mb, times, shares = zip(*found, strict=True)
            style = {"color": colour, "marker": marker, "linestyle": "", "alpha": 0.7}
            left.plot(mb, times, label=name, **style)
            right.plot(mb, shares, label=name, **style)
    right.axhline(1, color="black")
    left.set(xscale="log", yscale="log", ylabel="µs, one layer's attention")
    right.set(xscale="log", ylim=(0, 1.1), ylabel="share of the read-only floor")
    for axes in (left, right):
        axes.set_xlabel("KV read, MB")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.suptitle(f"{results.about['device']}: {results.about['shape']}")
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise ChatError(f"cannot write {path}: {error.strerror}") from error


def _case_points(results: Results) -> Iterator[Point]:
    for case in results.cases:
        us = {name: timing.layer_us for name, timing in case.times.items()}
        yield case.kv_bytes / 1e6, case.floor_us, _one_flashinfer(us)


def _trace_points(results: Results) -> Iterator[Point]:
    """The mean call of each trace."""
    for trace in results.traces:
        calls = trace.elapsed["calls"].items()
        us = {name: each.device_ms / trace.steps * 1e3 for name, each in calls}
        yield trace.kv_bytes / 1e6, trace.floor_us, _one_flashinfer(us)


def _one_flashinfer(us: dict[str, float]) -> dict[str, float]:
    path = summary.better_path(us, us.__getitem__)
    return {**us, "FlashInfer": us[path]} if path else us
