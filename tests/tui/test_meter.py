"""Rates and shares from step records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pkvchat.steps import StepRecord
from pkvchat.tui.meter import Meter
from pkvchat.tui.panel import sparkline

Record = Callable[..., StepRecord]


def test_rates_count_every_row_and_leave_idle_time_out(record: Record) -> None:
    meter = Meter()
    for second in (0, 1, 2, 3):
        records = [record(i, batch=2, step_ms=100.0) for i in range(10)]
        meter.add(records, now=100.0 + second)
    assert meter.now(at=103.0) == pytest.approx(20.0)
    assert meter.average == pytest.approx(20.0)
    meter.add([record(0, batch=2, step_ms=100.0)], now=500.0)
    assert meter.average == pytest.approx(20.0)
    assert meter.now(at=502.0) == 0.0


def test_shares_count_steps(record: Record) -> None:
    meter = Meter()
    meter.add([record(0, "split"), record(1, "sdpa"), record(2, "split")], now=1.0)
    assert meter.shares == {"split": 2, "sdpa": 1}
    assert meter.last is not None
    assert meter.last.step == 2


@pytest.mark.parametrize("count", [0, 1, 7, 40, 601])
def test_a_sparkline_never_outgrows_its_width(count: int) -> None:
    line = sparkline([float(i % 9) for i in range(count)], 10)
    assert len(line) == min(count, 10) if count <= 10 else len(line) <= 10


@pytest.mark.parametrize(("count", "expected"), [(0, (0, 0)), (1, (1, 1)), (100, (50, 95))])
def test_latencies_are_nearest_ranks(
    record: Record, count: int, expected: tuple[float, float]
) -> None:
    meter = Meter()
    meter.add([record(i, step_ms=float(count - i)) for i in range(count)], now=1.0)
    meter.ttfts.extend(float(i + 1) for i in range(count))
    assert meter.itl_ms() == expected
    assert meter.ttft_s() == expected
