"""What was measured, as plain data that goes to JSON and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ChatError

VERSION = 1


@dataclass(frozen=True)
class Timing:
    """Microseconds of a layer on the device, and of planning a step on host and device."""

    layer_us: float
    plan_us: float
    num_splits: int = 1

    def step_us(self, num_layers: int) -> float:
        """A layer's share of a step that plans once."""
        return self.layer_us + self.plan_us / num_layers


@dataclass(frozen=True)
class CaseResult:
    """One batch. times, errors (max |e|): by engine, a strategy at its best num_splits.

    times["adaptive"]: of what the policy picked, by name in ``picked``.
    """

    case: str
    rows: int
    tokens: int
    heads: tuple[int, int]
    kv_bytes: int
    floor_us: float
    times: dict[str, Timing]
    picked: str
    errors: dict[str, float]
    target: float | None = None


@dataclass(frozen=True)
class Elapsed:
    """Milliseconds over all steps of a trace: by the clock, and on the device."""

    wall_ms: float
    device_ms: float


@dataclass(frozen=True)
class Counters:
    """Of one attention call; None where it is not known.

    launches: kernels that ran. tasks: pieces of rows. filled: share of the programs that had work.
    merge_bytes: of partial states.
    """

    launches: int | None = None
    tasks: int | None = None
    filled: float | None = None
    merge_bytes: int | None = None


@dataclass(frozen=True)
class TraceResult:
    """One trace under one seed.

    tokens: active sequences summed over the steps. kv_bytes: one layer's, the mean of a step.
    elapsed: by protocol (``serving``) and engine, "oracle" taking each step's best. picks: steps by
    protocol and strategy, of "adaptive". errors: max |e| by engine.
    """

    trace: str
    max_active: int
    seed: int | None
    steps: int
    tokens: int
    kv_bytes: int
    floor_us: float
    layers: int
    elapsed: dict[str, dict[str, Elapsed]]
    picks: dict[str, dict[str, int]]
    errors: dict[str, float]


@dataclass(frozen=True)
class Results:
    """about: the device, versions, date, command and shape. layers: over which cases spread plans.

    counters: by trace and engine. notes: what could not be measured, and why.
    """

    about: dict[str, Any]
    layers: int
    cases: list[CaseResult] = field(default_factory=list)
    traces: list[TraceResult] = field(default_factory=list)
    counters: dict[str, dict[str, Counters]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        data = _rounded({"version": VERSION} | asdict(self))
        lists = {name: data.pop(name) for name in ("cases", "traces")}
        lines = [f' "{key}": {json.dumps(value)}' for key, value in data.items()]
        for name, rows in lists.items():
            inner = ",\n  ".join(json.dumps(row) for row in rows)
            lines.append(f' "{name}": [\n  {inner}\n ]' if rows else f' "{name}": []')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def read_results(path: Path) -> Results:
    """Raises ChatError for a file that ``to_json`` has not written."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']!r}, not {VERSION}")
        return _results(data)
    except OSError as error:
        raise ChatError(f"cannot read the results file {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ChatError(
            f"{path} is not what bench-attention -o json writes ({type(error).__name__}: {error})"
        ) from error


def merge(parts: Sequence[Results]) -> Results:
    """Several runs as one. Raises ChatError where they do not measure the same."""
    first, *others = parts
    for name in ("device", "versions", "shape"):
        for other in others:
            if other.about[name] != first.about[name]:
                raise ChatError(
                    f"these are results of different runs: {name} is {first.about[name]} in one "
                    f"and {other.about[name]} in another"
                )
    counters: dict[str, dict[str, Counters]] = {}
    for part in parts:
        counters |= part.counters
    return Results(
        {**first.about, "command": " && ".join(part.about["command"] for part in parts)},
        first.layers,
        [case for part in parts for case in part.cases],
        [trace for part in parts for trace in part.traces],
        counters,
        list(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _results(data: Mapping[str, Any]) -> Results:
    about = dict(data["about"])
    for name, kind in (("device", str), ("versions", dict), ("date", str), ("shape", str)):
        _check(name, about[name], kind)
    _check("command", about["command"], str)
    counters = {
        label: {name: Counters(**each) for name, each in engines.items()}
        for label, engines in data["counters"].items()
    }
    return Results(
        about,
        _check("layers", data["layers"], int),
        [_case(row) for row in data["cases"]],
        [_trace(row) for row in data["traces"]],
        counters,
        [_check("note", note, str) for note in data["notes"]],
    )


def _case(row: Mapping[str, Any]) -> CaseResult:
    values = dict(row)
    values["heads"] = tuple(values["heads"])
    values["times"] = {name: _numbers(Timing, each) for name, each in values["times"].items()}
    for name in ("kv_bytes", "floor_us"):
        _check(name, values[name], float)
    return CaseResult(**values)


def _trace(row: Mapping[str, Any]) -> TraceResult:
    values = dict(row)
    values["elapsed"] = {
        protocol: {name: _numbers(Elapsed, each) for name, each in times.items()}
        for protocol, times in values["elapsed"].items()
    }
    _check("calls", values["elapsed"]["calls"], dict)
    for name in ("max_active", "steps", "tokens", "kv_bytes", "floor_us", "layers"):
        _check(name, values[name], float)
    return TraceResult(**values)


Row = TypeVar("Row")


def _numbers(cls: type[Row], values: Mapping[str, Any]) -> Row:
    return cls(**{name: _check(name, value, float) for name, value in values.items()})


def _check(name: str, value: Any, kind: type) -> Any:
    """``value``, where it is of its kind; a float may be whole."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise TypeError(f"{name} {value!r:.40}")
    return value


def _rounded(value: Any) -> Any:
    """With four significant digits, more than repeat from run to run."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_rounded(each) for each in value]
    return value
