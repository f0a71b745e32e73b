"""How prompts share steps with answers, on simulated devices whose times are known exactly."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.engine.pace import MIN_CHUNK, SLOWER, PrefillPace, longest_pause


@dataclass
class Device:
    """A step takes ``decode_s``; with a prompt, ``fixed_s`` and ``token_s`` a token more.

    first_s: of the first step of each number of rows, more: the pace is told that it says nothing.
    """

    decode_s: float
    fixed_s: float
    token_s: float
    first_s: float = 0.0
    seen: set[int] = field(default_factory=set)

    def step(self, pace: PrefillPace, num_decodes: int, prompt: int) -> tuple[int, float]:
        """One step with ``prompt`` tokens to read: how many it reads, and its time."""
        size = pace.size(num_decodes) if prompt else 0
        count = min(size - num_decodes, prompt) if size else 0
        taken = self.decode_s if num_decodes else 0.0
        if count:
            taken += self.fixed_s + count * self.token_s
        known = num_decodes + count in self.seen
        self.seen.add(num_decodes + count)
        taken += 0.0 if known else self.first_s
        pace.learn(num_decodes, count, taken, taken if known else None)
        return count, taken

    def read(self, pace: PrefillPace, num_decodes: int, prompt: int) -> list[float]:
        """Read a prompt to its end; the times of the steps."""
        times = []
        while prompt > 0:
            count, taken = self.step(pace, num_decodes, prompt)
            prompt -= count
            times.append(taken)
            assert len(times) < 200_000, "the prompt never ends"
        return times


H200 = Device(0.0022, 0.008, 1 / 35000, first_s=0.05)
CPU = Device(0.025, 0.0, 1 / 700)


@pytest.mark.parametrize("device", [H200, CPU])
def test_a_lone_prompt_is_read_in_the_largest_chunks(device: Device) -> None:
    pace = PrefillPace(2048)
    device.read(pace, 0, 10_000)  # what halves take is known after that
    assert len(device.read(pace, 0, 10_000)) == 5


def test_short_prompts_tell_nothing_of_a_long_ones_chunks() -> None:
    pace = PrefillPace(2048)
    for _ in range(3):
        H200.step(pace, 0, 100)
    assert pace.size(0) == 2048


def test_the_largest_chunk_is_not_taken_where_half_of_it_is_read_faster() -> None:
    """Memory may have room for more than is fast."""

    def read(pace: PrefillPace) -> list[int]:
        sizes = []
        for _ in range(30):
            sizes.append(pace.size(0))
            token_s = 1 / 30_000 if sizes[-1] <= 2048 else 1 / 20_000
            taken = 0.004 + token_s * sizes[-1]
            pace.learn(0, sizes[-1], taken, taken)
        return sizes

    sizes = read(PrefillPace(4096))
    assert sizes[0] == 4096
    assert sizes[-1] == 2048


device_times = st.builds(
    Device,
    decode_s=st.floats(0.002, 0.2),
    fixed_s=st.floats(0.0, 0.03),
    token_s=st.floats(1e-5, 1e-3),
    first_s=st.floats(0.0, 0.5),
)


@given(
    device=device_times,
    num_decodes=st.integers(1, 20),
    max_chunk=st.sampled_from([256, 512, 4096]),
)
@settings(max_examples=80, deadline=None)
def test_answers_beside_a_prompt_take_twice_as_long_at_most(
    device: Device, num_decodes: int, max_chunk: int
) -> None:
    pace = PrefillPace(max_chunk)
    for _ in range(5):
        device.step(pace, num_decodes, 0)
    device.read(pace, num_decodes, 20_000)  # learn what sizes take
    *times, _ = device.read(pace, num_decodes, 20_000)  # the last chunk is of any size
    rows = num_decodes + 2 * MIN_CHUNK  # the smallest size may be nearly twice the rows it needs
    least = device.decode_s + device.fixed_s + 2 * rows * device.token_s
    # A size of twice the rows has room for somewhat more than twice the prompt's.
    most = max(SLOWER * device.decode_s, longest_pause(device.decode_s))
    assert max(times) <= max(1.25 * most, 1.01 * least)
    assert sum(times) <= 2 * device.decode_s * len(times)


def test_a_step_within_twice_the_time_is_followed_by_another() -> None:
    device, pace = Device(0.004, 0.0, 1e-5), PrefillPace(4096)
    device.step(pace, 1, 0)
    device.read(pace, 1, 20_000)
    times = device.read(pace, 1, 20_000)
    assert max(times) <= 2 * device.decode_s
    assert len(times) <= 20_000 / 255 * 9 / 8 + 2  # some show how long an undisturbed one takes


def test_a_prompt_beside_answers_is_read_nearly_as_fast_as_it_may_be() -> None:
    """With a fixed cost, small chunks would take several times as long."""
    pace = PrefillPace(4096)
    H200.step(pace, 1, 0)
    H200.read(pace, 1, 20_000)
    *times, _ = H200.read(pace, 1, 20_000)
    assert max(times) <= longest_pause(H200.decode_s)
    rates = [s / (H200.fixed_s + s * H200.token_s) / 2 for s in (128, 256, 512, 1024)]
    assert 20_000 / sum(times) >= 0.7 * max(rates)


def test_a_prompt_that_cannot_run_does_not_keep_others_waiting_for_ever() -> None:
    """Nothing runs while a debt is left, and yet it is paid."""
    pace = PrefillPace(512)
    assert pace.size(1) == 0  # shows how long an undisturbed step takes
    pace.learn(1, 0, 0.002, 0.002)
    assert pace.size(1) > 0
    pace.learn(1, 100, 0.1, 0.1)
    assert pace.size(1) == 0
    assert any(pace.size(1) for _ in range(100))


@pytest.mark.parametrize("seconds", [5.0, 60.0])
def test_a_stall_is_not_the_prompts_to_pay_for(seconds: float) -> None:
    """Of a machine that slept, say."""
    pace = PrefillPace(512)
    H200.step(pace, 1, 0)
    H200.read(pace, 1, 10_000)
    while not (size := pace.size(1)):
        pace.learn(1, 0, H200.decode_s, H200.decode_s)
    pace.learn(1, size - 1, seconds, seconds)
    waiting = 0
    while not pace.size(1):
        waiting += 1
        pace.learn(1, 0, H200.decode_s, H200.decode_s)
    assert waiting < 150


def test_many_that_decode_leave_room_for_a_prompt() -> None:
    pace = PrefillPace(512)
    pace.size(100)
    assert pace.size(100) >= 100 + MIN_CHUNK
    assert pace.size(1000) == 512
