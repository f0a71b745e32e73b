"""Rates and shares from step records."""

from __future__ import annotations

import pytest

from pkvchat.meter import Meter
from pkvchat.steps import StepRecord


def record(
    number: int, strategy: str = "split", batch: int = 1, step_ms: float = 9.8
) -> StepRecord:
    return StepRecord(
        step=number,
        strategy=strategy,
        reason="",
        batch=batch,
        seq_lens=(1024,) * batch,
        num_splits=4,
        predicted_us={},
        step_ms=step_ms,
        tokens_per_s=1000 * batch / step_ms,
        pages_used=65,
        pages_total=512,
    )


def test_rates_count_every_row_and_leave_idle_time_out() -> None:
    meter = Meter()
    for second in (0, 1, 2, 3):
        records = [record(i, batch=2, step_ms=100.0) for i in range(10)]
        meter.add(records, now=100.0 + second)
    assert meter.now(at=103.0) == pytest.approx(20.0)
    assert meter.average == pytest.approx(20.0)
    meter.add([record(0, batch=2, step_ms=100.0)], now=500.0)
    assert meter.average == pytest.approx(20.0)
    assert meter.now(at=502.0) == 0.0


def test_shares_count_steps() -> None:
    meter = Meter()
    meter.add([record(0, "split"), record(1, "sdpa"), record(2, "split")], now=1.0)
    assert meter.shares == {"split": 2, "sdpa": 1}
    assert meter.last is not None
    assert meter.last.step == 2


def test_steps_are_compared_with_steps_of_as_many_rows() -> None:
    meter = Meter()
    alone = [record(i, "sdpa", step_ms=22.0) for i in range(20)]
    both = [record(20, "sdpa", 2, 31.0), record(21, "split", 2, 27.0)]
    meter.add([*alone, *both], now=1.0)
    assert [meter.step_ms("sdpa", 2), meter.step_ms("split", 2)] == [31.0, 27.0]
    assert [meter.step_ms("sdpa", 1), meter.step_ms("split", 1)] == [22.0, 0.0]


@pytest.mark.parametrize(("count", "expected"), [(0, (0, 0)), (1, (1, 1)), (100, (50, 95))])
def test_latencies_are_nearest_ranks(count: int, expected: tuple[float, float]) -> None:
    meter = Meter()
    meter.add([record(i, step_ms=float(count - i)) for i in range(count)], now=1.0)
    meter.ttfts.extend(float(i + 1) for i in range(count))
    assert meter.itl_ms() == expected
    assert meter.ttft_s() == expected
