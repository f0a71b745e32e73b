"""How many rows a step with a prompt has, so that the answers that decode beside it keep streaming.

Beside answers, a step may take twice as long as an undisturbed one, or PAUSE_S where that is
longer, which nobody sees; what it takes beyond twice as long is made up for by steps without a
prompt. So the mean time between two tokens of an answer stays within twice that of an answer with
nothing beside it. Among the sizes that keep to this, a small one is taken where it reads prompts
nearly as fast as the best.
"""

from __future__ import annotations

MIN_CHUNK = 16  # tokens
PAUSE_S = 0.05
_FIRST = 64  # rows beside answers, before anything is known
_NEARLY = 0.75  # of the best speed, beside answers
_SAME = 0.97
_VALID = 500  # steps with a prompt, for which a size's time holds: then it is tried again
_REFRESH = 8  # steps beside answers, after which one without a prompt tells how long those take


class StepTimes:
    """Seconds that a step of each size took the last time."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._learned: dict[int, int] = {}  # at which step
        self._steps = 0

    def learn(self, size: int, seconds: float) -> None:
        self._steps += 1
        self._seconds[size], self._learned[size] = seconds, self._steps

    def of(self, sizes: list[int]) -> dict[int, float]:
        """Those of ``sizes`` that are known."""
        known = [size for size in sizes if self._steps - self._learned.get(size, -_VALID) < _VALID]
        return {size: self._seconds[size] for size in known}


class PrefillPace:
    """Learns from the time of each step, and remembers what the answers have waited too long."""

    def __init__(self, max_chunk: int) -> None:
        """max_chunk: prompt tokens that a step has memory for."""
        self.max_chunk = max_chunk
        self._decode_s = 0.0  # a step without a prompt
        self._beside, self._alone = StepTimes(), StepTimes()
        self._owed_s = 0.0  # how much longer than twice as long answers have waited
        self._granted = _REFRESH  # steps beside answers since one without a prompt

    def size(self, num_decodes: int) -> int:
        """Rows of the next step if it reads a prompt, those that decode among them; 0: it may not.

        To be asked once a step: what is owed is then paid by one undisturbed step.
        """
        if not num_decodes:
            self._owed_s = 0.0
            return self._size_alone()
        if self._owed_s > 0 or self._granted == _REFRESH:
            self._owed_s = max(0.0, self._owed_s - self._decode_s)
            self._granted = 0
            return 0
        self._granted += 1
        return self._size_beside(num_decodes)

    def learn(
        self, num_decodes: int, num_prefill: int, step_s: float, usual_s: float | None
    ) -> None:
        """A step of so many decode rows and prompt tokens took ``step_s``.

        usual_s: that such steps will take; None where this one does not tell.
        """
        if num_prefill and num_decodes and self._decode_s:
            self._owed_s += max(0.0, step_s - 2 * self._decode_s)
        if not num_prefill:
            self._decode_s = usual_s or self._decode_s or step_s
            return
        if usual_s is None:
            return
        rows = num_decodes + num_prefill
        size = min((size for size in self._sizes() if size >= rows), default=0)
        if 4 * rows >= 3 * size > 0:  # others say little of their size
            (self._beside if num_decodes else self._alone).learn(size, usual_s)

    def _sizes(self) -> list[int]:
        """From the largest on, each half of the one before."""
        sizes = [self.max_chunk]
        while sizes[-1] >= 2 * MIN_CHUNK:
            sizes.append(sizes[-1] // 2)
        return sizes

    def _size_alone(self) -> int:
        """The largest is tried first, and half of the best after it."""
        sizes = self._sizes()
        times = self._alone.of(sizes)
        if not times:
            return self.max_chunk
        best = max(_near_best({size: size / times[size] for size in times}, _SAME))
        half = best // 2
        return half if half in sizes and half not in times else best

    def _size_beside(self, num_decodes: int) -> int:
        """From _FIRST on, the double of the largest that is known is tried, where it may pass."""
        sizes = [size for size in self._sizes() if size >= num_decodes + MIN_CHUNK]
        times = self._beside.of(sizes)
        if not sizes or not times:
            return min(sizes, key=lambda size: abs(size - _FIRST), default=self.max_chunk)
        decode_s, limit = self._decode_s, max(2 * self._decode_s, PAUSE_S)
        added = {size: max(times[size] - decode_s, times[size] / 100) for size in times}
        largest = max(times)
        if 2 * largest in sizes and decode_s + 2 * added[largest] <= limit:
            return 2 * largest
        smallest = min(times)
        if times[smallest] > limit:
            return smallest // 2 if smallest // 2 in sizes else smallest
        rates = {
            size: size / max(times[size], 2 * added[size]) for size in times if times[size] <= limit
        }
        return min(_near_best(rates, _NEARLY))


def _near_best(rates: dict[int, float], share: float) -> list[int]:
    """The sizes with at least ``share`` of the best rate."""
    best = max(rates.values())
    return [size for size in rates if rates[size] >= share * best]
