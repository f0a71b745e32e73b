"""Figures as block characters."""

from __future__ import annotations

import pytest

from pkvchat.sparkline import sparkline


@pytest.mark.parametrize("count", [0, 1, 7, 40, 601])
def test_a_sparkline_never_outgrows_its_width(count: int) -> None:
    line = sparkline([float(i % 9) for i in range(count)], 10)
    assert len(line) == min(count, 10) if count <= 10 else len(line) <= 10


def test_bars_stand_for_values_between_the_bounds() -> None:
    assert sparkline([0, 7, 14], 10) == "▁▅█"
    assert sparkline([0, 7, 14, 99], 10, (0, 14)) == "▁▅██"
    assert sparkline([3, 3], 10) == "▁▁"
