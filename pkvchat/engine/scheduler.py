"""Which sequences run in a step, and whose pages give way when there are too few.

Continuous batching: every active sequence with one uncached token decodes; prompts are read in
chunks beside them, within a token budget, so that a long paste in one chat never stops the
others. Older answers go first. Pages are taken back from idle chats (least recently used first),
then from younger answers, which are computed again later from their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .pages import PagePool
from .sequence import Answer, Sequence, common_prefix


@dataclass
class Schedule:
    """decodes: one token each. prefills: (sequence, number of tokens). starved: cannot go on,
    because the pool is too small even for it alone. waiting: the first whose pages others hold.
    """

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, int]] = field(default_factory=list)
    starved: list[Sequence] = field(default_factory=list)
    waiting: Sequence | None = None

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prefills)


class Scheduler:
    """All chats' sequences, with an answer under way or not, over one pool of pages."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool = pool
        self.page_size = page_size
        self.sequences: dict[str, Sequence] = {}
        self._clock = 0

    # --- sequences come and go ----------------------------------------------------------------

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def active(self) -> list[Sequence]:
        """Sequences with an answer under way, oldest first."""
        running = [(s.answer.arrival, s) for s in self.sequences.values() if s.answer]
        return [s for _, s in sorted(running, key=lambda pair: pair[0])]

    def begin(self, chat_id: str, tokens: list[int], answer: Answer) -> Sequence:
        """Start an answer to ``tokens``, keeping the KV that a former turn or another chat has."""
        seq = self.sequences.setdefault(chat_id, Sequence(chat_id))
        if seq.answer is not None:
            raise ValueError(f"chat {chat_id!r} is already answering")
        reusable = min(common_prefix(seq.tokens[: seq.num_cached], tokens), len(tokens) - 1)
        self._truncate(seq, reusable)
        seq.tokens = list(tokens)
        seq.answer = answer
        self._adopt_prefix(seq)
        self._touch(seq)
        return seq

    def finish(self, seq: Sequence) -> None:
        """The answer ends; its tokens and pages stay for the next turn.

        A token that is still pending is dropped: it has no KV yet.
        """
        seq.answer = None
        seq.num_pending = 0
        self._touch(seq)

    def remove(self, chat_id: str) -> None:
        seq = self.sequences.pop(chat_id, None)
        if seq is not None:
            self.finish(seq)
            self._release(seq)

    def fork(self, source_id: str, target_id: str) -> tuple[int, int] | None:
        """``target`` shares the full pages of ``source``.

        Returns (source page, target page) where a partial last page is to be copied. None where
        there is none, or no page is free: then the target computes those few tokens again.
        Raises KeyError for an unknown source, ValueError for a target that exists.
        """
        source = self.sequences[source_id]
        if target_id in self.sequences:
            raise ValueError(f"chat {target_id!r} already exists")
        num_full, partial = divmod(source.num_cached, self.page_size)
        copied = self.pool.allocate(1) if partial and self.pool.num_free else []
        num_cached = source.num_cached if copied else num_full * self.page_size
        shared = source.pages[:num_full]
        self.pool.share(shared)
        target = Sequence(
            target_id, source.tokens[:num_cached], num_cached=num_cached, pages=shared + copied
        )
        self.sequences[target_id] = target
        self._touch(target)
        return (source.pages[num_full], copied[0]) if copied else None

    # --- one step -----------------------------------------------------------------------------

    def schedule(self, prefill_budget: int, max_prompts: int | None = None) -> Schedule:
        """The next step's work, with its pages reserved.

        prefill_budget: prompt tokens at most. max_prompts: that they are of; None is any number.
        """
        plan = Schedule()
        running = [seq for seq in self.active() if not seq.full]
        for seq in running:
            if seq.num_uncached == 1 and self._reserve(seq, seq.num_tokens, plan):
                plan.decodes.append(seq)
        for seq in running:
            if seq.num_uncached <= 1 or seq in plan.starved:
                continue
            count = min(seq.num_uncached, prefill_budget)
            if count == 0 or seq.num_pending:  # one that was preempted must know its tokens
                break  # in order of arrival: nobody overtakes
            if len(plan.prefills) == max_prompts:
                break
            # Room for the whole prompt and one token more, or none: two prompts that each hold half
            # of the pool would wait for each other.
            if not self._reserve(seq, seq.num_tokens + 1, plan):
                plan.waiting = None if seq in plan.starved else seq
                break
            plan.prefills.append((seq, count))
            prefill_budget -= count
        return plan

    def _reserve(self, seq: Sequence, num_tokens: int, plan: Schedule) -> bool:
        """Pages for ``num_tokens`` of ``seq``, taken from others if need be."""
        need = self.pages_for(num_tokens) - len(seq.pages)
        while need > self.pool.num_free:
            victim = self._victim(seq, plan)
            if victim is None:
                self._give_way(seq, plan)
                return False
            self._release(victim)
        if need > 0:
            seq.pages += self.pool.allocate(need)
        return True

    def _victim(self, seq: Sequence, plan: Schedule) -> Sequence | None:
        idle = [s for s in self.sequences.values() if s.answer is None and s.pages]
        if idle:
            return min(idle, key=lambda s: s.last_used)
        taken = {seq, *plan.decodes, *(s for s, _ in plan.prefills)}
        order = self.active()
        younger = order[order.index(seq) + 1 :]
        return next((s for s in reversed(younger) if s.pages and s not in taken), None)

    def _give_way(self, seq: Sequence, plan: Schedule) -> None:
        """``seq`` cannot have its pages now: wait for the others, or end if there are none."""
        if seq.num_pending:
            return  # its next token may end it
        others = any(s.pages for s in self.active() if s is not seq)
        if not others:
            plan.starved.append(seq)
        elif seq.num_uncached == 1:
            self._release(seq)

    # --- pages --------------------------------------------------------------------------------

    def _touch(self, seq: Sequence) -> None:
        self._clock += 1
        seq.last_used = self._clock

    def _release(self, seq: Sequence) -> None:
        self.pool.release(seq.pages)
        seq.pages, seq.num_cached = [], 0

    def _truncate(self, seq: Sequence, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` of the KV, or a little less: a page that another chat
        shares is never written, so a cut inside one moves back to its start."""
        if num_tokens % self.page_size and self.pool.is_shared(
            seq.pages[num_tokens // self.page_size]
        ):
            num_tokens -= num_tokens % self.page_size
        keep = self.pages_for(num_tokens)
        self.pool.release(seq.pages[keep:])
        del seq.pages[keep:]
        seq.num_cached = num_tokens

    def _adopt_prefix(self, seq: Sequence) -> None:
        """Share another chat's full pages where they hold more of this prompt than our own."""
        best, source = self.pages_for(seq.num_cached), None
        for other in self.sequences.values():
            limit = min(other.num_cached, len(seq.tokens) - 1)
            pages = common_prefix(other.tokens[:limit], seq.tokens) // self.page_size
            if other is not seq and pages > best:
                best, source = pages, other
        if source is not None:
            self.pool.share(source.pages[:best])
            self._release(seq)
            seq.pages = source.pages[:best]
            seq.num_cached = best * self.page_size

    def check_integrity(self) -> None:
        """Raises AssertionError if pages leaked or a sequence's pages do not cover its KV."""
        self.pool.check_integrity(s.pages for s in self.sequences.values())
        for seq in self.sequences.values():
            if not self.pages_for(seq.num_cached) <= len(seq.pages):
                raise AssertionError(f"chat {seq.chat_id!r}: {seq.num_cached} tokens, {seq.pages}")
            partial = seq.num_cached % self.page_size
            if partial and self.pool.is_shared(seq.pages[seq.num_cached // self.page_size]):
                raise AssertionError(f"chat {seq.chat_id!r} would write a shared page")
