"""The panel's sparklines."""

from __future__ import annotations

import pytest

from pkvchat.tui.panel import sparkline


@pytest.mark.parametrize("count", [0, 1, 7, 40, 601])
def test_a_sparkline_never_outgrows_its_width(count: int) -> None:
    line = sparkline([float(i % 9) for i in range(count)], 10)
    assert len(line) == min(count, 10) if count <= 10 else len(line) <= 10
