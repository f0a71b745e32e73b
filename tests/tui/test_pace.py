import pytest

from pkvchat.tui.pace import FASTEST_S, SHARE, SLOWEST_S, Pace


@pytest.mark.parametrize(
    ("cores", "frame_s", "delay"),
    [
        (2, 0.0, FASTEST_S),
        (2, 0.006, 0.006 / (2 * SHARE)),
        (2, 0.1, SLOWEST_S),
        (16, 0.006, FASTEST_S),
        (1, 0.006, 0.006 / SHARE),
    ],
)
def test_a_frame_waits_until_drawing_keeps_to_its_share(
    cores: int, frame_s: float, delay: float
) -> None:
    now = 7.0
    pace = Pace(cores, clock=lambda: now)
    now += frame_s
    assert pace.delay() == pytest.approx(delay)
    assert pace.delay() == FASTEST_S  # nothing was used since
