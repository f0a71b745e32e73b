import pytest

from pkvchat.tui.frame_pace import FASTEST_S, SHARE, SLOWEST_S, SOON_S, FramePace


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
    used, now = 7.0, 100.0
    pace = FramePace(cores, processor=lambda: used, clock=lambda: now)
    used += frame_s
    assert pace.delay() == pytest.approx(delay)
    now += delay
    assert pace.delay() == pytest.approx(FASTEST_S)  # nothing was used since
    now += 2 * SLOWEST_S
    used += 1
    assert pace.delay() == pytest.approx(SOON_S)  # the last frame is long ago
