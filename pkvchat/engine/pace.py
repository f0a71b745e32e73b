"""How many rows a step with a prompt has, so that the answers that decode beside it keep streaming.

Beside answers, a step may take SLOWER times as long as an undisturbed one, or as long as a pause
that nobody minds; what it takes beyond the former is saved by steps without a prompt before it. So
the mean time between two tokens of an answer stays within twice that of an answer with nothing
beside it, also where a prompt is read in few steps. Among the sizes that keep to this, a small one
is taken where it reads prompts nearly as fast as the best.
"""

from __future__ import annotations

import math

MIN_CHUNK = 16  # tokens
SLOWER = 1.8  # the aim is 2
PAUSES_S = (0.05, 0.15)  # from and to; between them, PAUSE_TOKENS undisturbed steps
PAUSE_TOKENS = 5
_FIRST = 64  # rows beside answers, before anything is known
_NEARLY = 0.75  # of the best speed, beside answers
_SAME = 0.97
_VALID = 500  # steps with a prompt, for which a size's time holds: then it is tried again
_STALL = 4.0
_REFRESH = 8  # steps beside answers, after which one without a prompt tells how long those take


class SizeTimes:
    """Seconds that a step of each size took the last time."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._learned: dict[int, int] = {}  # at which step
        self._steps = 0

    def learn(self, size: int, seconds: float) -> None:
        """More than _STALL times as long as the last one is not believed."""
        self._steps += 1
        self._seconds[size] = min(seconds, _STALL * self._seconds.get(size, math.inf))
        self._learned[size] = self._steps

    def of(self, sizes: list[int]) -> dict[int, float]:
        """Those of ``sizes`` that are known."""
        known = [size for size in sizes if self._steps - self._learned.get(size, -_VALID) < _VALID]
        return {size: self._seconds[size] for size in known}


class PrefillPace:
    """Learns from the time of each step, and keeps account of how long the answers have waited."""

    def __init__(self, max_chunk: int) -> None:
        """max_chunk: prompt tokens that a step has memory for."""
        self.max_chunk = max_chunk
        self._decode_s = 0.0  # a step without a prompt
        self._beside, self._alone = SizeTimes(), SizeTimes()
        self._saved_s = 0.0  # by steps without a prompt; less than 0 where one took too long
        self._granted = _REFRESH  # steps beside answers since one without a prompt

    def size(self, num_decodes: int) -> int:
        """Rows of the next step, which reads a prompt, those that decode among them; 0: it may not.

        To be asked once for each step that could read one: where it may not, it saves.
        """
        if not num_decodes:
            self._saved_s = 0.0
            return self._size_alone()
        size = self._size_beside(num_decodes)
        price_s = self._price_s(size)
        if self._saved_s < price_s:
            self._saved_s += (SLOWER - 1) * self._decode_s
        elif self._granted < _REFRESH:
            self._saved_s -= price_s
            self._granted += 1
            return size
        self._granted = 0
        return 0

    def learn(
        self, num_decodes: int, num_prefill: int, step_s: float, usual_s: float | None
    ) -> None:
        """A step of so many decode rows and prompt tokens took ``step_s``.

        usual_s: that such steps will take; None where this one does not tell.
        """
        if not num_prefill:
            self._decode_s = usual_s or self._decode_s or step_s
            return
        rows = num_decodes + num_prefill
        size = min((size for size in self._sizes() if size >= rows), default=0)
        if num_decodes and self._decode_s:
            too_long_s = step_s - SLOWER * self._decode_s - self._price_s(size)
            most_s = longest_pause(self._decode_s)  # more is a stall, that no prompt need pay for
            self._saved_s -= min(max(0.0, too_long_s), most_s)
        if usual_s is not None and 4 * rows >= 3 * size > 0:  # others say little of their size
            (self._beside if num_decodes else self._alone).learn(size, usual_s)

    def _price_s(self, size: int) -> float:
        """What a step of the size takes beyond what it may; 0 where that is not known."""
        step_s = self._beside.of([size]).get(size, 0.0)
        return max(0.0, step_s - SLOWER * self._decode_s)

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
        if self.max_chunk not in times:  # smaller ones may be known from short prompts
            return self.max_chunk
        best = max(_near_best({size: size / times[size] for size in times}, _SAME))
        half = best // 2
        return half if half in sizes and half not in times else best

    def _size_beside(self, num_decodes: int) -> int:
        """From _FIRST on, twice the largest that is known is tried where it will do, and half the
        smallest where that will not."""
        sizes = [size for size in self._sizes() if size >= num_decodes + MIN_CHUNK]
        times = self._beside.of(sizes)
        if not sizes or not times:
            return min(sizes, key=lambda size: abs(size - _FIRST), default=self.max_chunk)
        allowed, paid = SLOWER * self._decode_s, (SLOWER - 1) * self._decode_s
        limit = max(allowed, longest_pause(self._decode_s))
        largest, smallest = max(times), min(times)
        twice_as_large = 2 * times[largest] - self._decode_s  # or less
        if 2 * largest in sizes and twice_as_large <= limit:
            return 2 * largest
        if times[smallest] > limit:
            return smallest // 2 if smallest // 2 in sizes else smallest
        rates = {}
        for size, step_s in times.items():
            if step_s <= limit:
                undisturbed = max(0.0, step_s - allowed) / paid if paid else 0.0
                rates[size] = size / (step_s + undisturbed * self._decode_s)
        return min(_near_best(rates, _NEARLY))


def longest_pause(decode_s: float) -> float:
    """Seconds; decode_s: of an undisturbed step."""
    shortest, longest = PAUSES_S
    return min(max(shortest, PAUSE_TOKENS * decode_s), longest)


def _near_best(rates: dict[int, float], share: float) -> list[int]:
    """The sizes with at least ``share`` of the best rate."""
    best = max(rates.values())
    return [size for size in rates if rates[size] >= share * best]
