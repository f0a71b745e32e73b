"""How much of a prompt a step reads, so that the answers that decode beside it keep streaming.

Beside answers, a chunk may add one undisturbed decode step to a step, or FRAME_S where that is
longer: a chunk takes the host some time however small it is, and a person sees no shorter pause.
What it adds beyond one decode step is made up for by decode steps without a chunk. So the mean time
between two tokens of an answer stays within twice that of an answer with nothing beside it.
"""

from __future__ import annotations

MIN_CHUNK = 16  # tokens
FRAME_S = 0.1  # new text reaches the interface ten times a second


class PrefillPace:
    """Learns from the time of each step, and remembers what the answers have waited too long."""

    def __init__(self, max_chunk: int) -> None:
        """max_chunk: prompt tokens that a step has memory for."""
        self.max_chunk = max_chunk
        self._decode_s = 0.0  # a step without a chunk
        self._token_s = 0.0  # what one prompt token adds to a step
        self._owed_s = 0.0  # how much longer than twice as long answers have waited

    def budget(self, num_decodes: int) -> int:
        """Prompt tokens that the next step may read beside ``num_decodes`` decode rows."""
        if not num_decodes or not self._token_s:
            return self.max_chunk
        if self._owed_s > 0:
            return 0
        allowed = max(self._decode_s, FRAME_S) / self._token_s
        return max(MIN_CHUNK, min(self.max_chunk, int(allowed)))

    def spend(self, num_decodes: int, num_prefill: int) -> None:
        """A step of so many rows and prompt tokens is enqueued."""
        if not num_prefill or not num_decodes:
            self._owed_s = max(0.0, self._owed_s - self._decode_s)
        else:
            self._owed_s += max(0.0, num_prefill * self._token_s - self._decode_s)

    def learn(self, num_decodes: int, num_prefill: int, step_s: float) -> None:
        """That step took ``step_s``."""
        if not num_prefill:
            self._decode_s = step_s
        elif num_prefill >= MIN_CHUNK:
            beside = self._decode_s if num_decodes else 0.0
            self._token_s = max(step_s - beside, step_s / 4) / num_prefill
