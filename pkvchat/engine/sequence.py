"""One chat's tokens and the pages that hold their KV."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sampling import SamplingParams


@dataclass(eq=False)
class Answer:
    """What is being generated in a sequence; gone when it ends.

    num_prompt: tokens before the answer. arrival: order of submission, smaller is older.
    seed: of this answer's random numbers, drawn where the parameters gave none.
    max_tokens: that the sequence may have, the prompt's among them. told: that it waits for pages.
    """

    params: SamplingParams
    stop_ids: frozenset[int]
    num_prompt: int
    arrival: int
    seed: int
    max_tokens: int
    told: bool = False


@dataclass(eq=False)
class Sequence:
    """tokens: all that are known; ``num_pending`` more are sampled, but still on the device.

    The first ``num_cached`` of them all have KV in ``pages``, or will when the device has done what
    is enqueued. The last one never has, so an active sequence with one uncached token decodes and
    one with more prefills. A sequence between answers keeps its pages until somebody needs them.
    """

    chat_id: str
    tokens: list[int] = field(default_factory=list)
    num_pending: int = 0
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    answer: Answer | None = None
    last_used: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + self.num_pending

    @property
    def num_uncached(self) -> int:
        return self.num_tokens - self.num_cached

    @property
    def num_answered(self) -> int:
        return self.num_tokens - self.answer.num_prompt if self.answer else 0

    @property
    def full(self) -> bool:
        """The answer has all the tokens it may have, the last of them perhaps pending."""
        return self.answer is not None and self.num_tokens >= self.answer.max_tokens

    def slot(self, position: int, page_size: int) -> int:
        """Where the KV of the token at ``position`` lies in the cache."""
        page, offset = divmod(position, page_size)
        return self.pages[page] * page_size + offset


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])
