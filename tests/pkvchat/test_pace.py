"""How prompts share steps with answers, on simulated devices whose times are known exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.pace import FRAME_S, MIN_CHUNK, PrefillPace


class Device:
    """A step takes ``decode_s``, and with a chunk ``launch_s`` and ``token_s`` a token more."""

    def __init__(self, decode_s: float, launch_s: float, token_s: float) -> None:
        self.decode_s, self.launch_s, self.token_s = decode_s, launch_s, token_s

    def step(self, pace: PrefillPace, num_decodes: int, prompt: int) -> tuple[int, float]:
        """One step with ``prompt`` tokens to read: how many it reads, and its time."""
        count = min(pace.budget(num_decodes), prompt)
        pace.spend(num_decodes, count)
        taken = (self.decode_s if num_decodes else 0.0) + count * self.token_s
        taken += self.launch_s if count else 0.0
        pace.learn(num_decodes, count, taken)
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


H200 = Device(0.0022, 0.025, 1 / 12000)
CPU = Device(0.025, 0.0, 1 / 700)


@pytest.mark.parametrize("device", [H200, CPU])
def test_a_lone_prompt_is_read_in_the_largest_chunks(device: Device) -> None:
    pace = PrefillPace(2048)
    assert len(device.read(pace, 0, 10_000)) == 5


@given(
    decode_s=st.floats(0.002, 0.2),
    launch_s=st.floats(0.0, 0.03),
    token_s=st.floats(1e-5, 1e-3),
    num_decodes=st.integers(1, 20),
    max_chunk=st.sampled_from([256, 512, 4096]),
)
@settings(max_examples=80, deadline=None)
def test_answers_beside_a_prompt_take_twice_as_long_at_most(
    decode_s: float, launch_s: float, token_s: float, num_decodes: int, max_chunk: int
) -> None:
    device, pace = Device(decode_s, launch_s, token_s), PrefillPace(max_chunk)
    device.step(pace, 0, 500)  # another prompt, alone
    for _ in range(5):
        device.step(pace, num_decodes, 0)
    device.read(pace, num_decodes, 4 * max_chunk)  # learn what a chunk beside answers costs
    times = device.read(pace, num_decodes, 6 * max_chunk)
    least = decode_s + launch_s + MIN_CHUNK * token_s
    assert max(times) <= max(decode_s + max(decode_s, FRAME_S) * 1.5 + launch_s, least * 1.01)
    # What the last chunk owes would be made up for after the prompt.
    assert sum(times) - max(times) <= 2 * decode_s * len(times) * 1.05


def test_a_prompt_that_cannot_run_does_not_keep_others_waiting_for_ever() -> None:
    """Nothing runs while a debt is left, and yet it is paid."""
    pace = PrefillPace(512)
    H200.step(pace, 0, 512)
    H200.step(pace, 1, 0)
    H200.step(pace, 1, 512)
    assert pace.budget(1) == 0
    for _ in range(100):
        pace.spend(0, 0)
    assert pace.budget(1) > 0
