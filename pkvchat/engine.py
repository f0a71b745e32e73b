"""The engine: token ids in, token ids out, one step at a time. It knows nothing about text."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from pkvchat.kernels.batch import AttentionShape
from pkvchat.kernels.policy import Decision, Policy
from pkvchat.models.causal_lm import CausalLM

from .pages import PagePool
from .runner import ModelRunner
from .sampler import Sampler
from .sampling import SamplingParams
from .scheduler import Schedule, Scheduler
from .sequence import Answer, Sequence
from .steps import StepRecord

PREFILL_CHUNK = 512  # prompt tokens a step at most
MIN_CHUNK = 16
SHARED_STEP_S = 0.1  # how long a prompt may hold up the answers that decode beside it


class RequestRefused(Exception):
    """An answer that cannot be begun; ``str(e)`` is the one line to show."""


@dataclass(frozen=True)
class Token:
    """One new token; ``finish`` is why the answer ends with it, or None.

    A stop token is not part of the answer's text.
    """

    chat_id: str
    token_id: int
    finish: str | None


@dataclass
class StepOutput:
    """prefilled: (chat, prompt tokens read, prompt tokens in all). ended: answers that could not
    go on, with the line to show. record: of the decode rows, None in a step that only prefilled.
    """

    tokens: list[Token] = field(default_factory=list)
    prefilled: list[tuple[str, int, int]] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)
    record: StepRecord | None = None


class Engine:
    """Chats by id: submit, stop, fork and close them, and call ``step`` while not ``idle``."""

    def __init__(
        self,
        model: CausalLM,
        shape: AttentionShape,
        policy: Policy,
        num_pages: int,
        context: int,
    ) -> None:
        """num_pages: of the KV cache, the scratch page among them. context: tokens of a chat."""
        self.context = context
        self.pool = PagePool(num_pages)
        self.scheduler = Scheduler(self.pool, shape.page_size)
        self.runner = ModelRunner(model, shape, num_pages, policy)
        self.sampler = Sampler(shape.device)
        self._arrivals = 0
        self._steps = 0
        self._decode_s = 0.0  # the last pure decode step
        self._prefill_token_s = 0.0  # one prompt token, of the last chunk

    # --- requests -----------------------------------------------------------------------------

    def submit(
        self,
        chat_id: str,
        tokens: list[int],
        params: SamplingParams,
        stop_ids: frozenset[int] = frozenset(),
    ) -> int:
        """Begin an answer; returns how many of the prompt's tokens have their KV already.

        Raises RequestRefused for a prompt that is empty or fits neither the context nor the pool.
        """
        self._check_fits(len(tokens))
        current = self.scheduler.sequences.get(chat_id)
        if current is not None and current.answer is not None:
            raise RequestRefused("this chat is still answering: stop that answer first")
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        self._arrivals += 1
        answer = Answer(params, stop_ids, len(tokens), self._arrivals, seed)
        seq = self.scheduler.begin(chat_id, tokens, answer)
        self.sampler.begin(chat_id, seed)
        return seq.num_cached

    def stop(self, chat_id: str) -> bool:
        """End the chat's answer; False if there was none."""
        seq = self.scheduler.sequences.get(chat_id)
        if seq is None or seq.answer is None:
            return False
        self._finish(seq)
        return True

    def close(self, chat_id: str) -> None:
        """Forget the chat and free its pages."""
        self.scheduler.remove(chat_id)
        self.sampler.forget(chat_id)

    def fork(self, source: str, target: str) -> None:
        """``target`` starts as a copy of ``source`` that shares its full pages."""
        copy = self.scheduler.fork(source, target)
        if copy is not None:
            self.runner.copy_page(*copy)

    def set_policy(self, policy: Policy) -> None:
        self.runner.policy = policy

    @property
    def idle(self) -> bool:
        return not self.scheduler.active()

    def _check_fits(self, num_tokens: int) -> None:
        if num_tokens == 0:
            raise RequestRefused("the prompt is empty")
        if num_tokens >= self.context:
            raise RequestRefused(
                f"the prompt has {num_tokens} tokens, {num_tokens - self.context + 1} too many for "
                f"a context of {self.context}: shorten it, or raise -c (and --kv-memory, if that "
                "is what limits it)"
            )
        need = self.scheduler.pages_for(num_tokens + 1)
        if need > self.pool.capacity:
            raise RequestRefused(
                f"the prompt needs {need} KV pages and the pool has {self.pool.capacity}: "
                "shorten it, or raise --kv-memory"
            )

    # --- one step -----------------------------------------------------------------------------

    def step(self) -> StepOutput:
        """Run one step; an empty output when there is nothing to do."""
        output = StepOutput()
        start = time.perf_counter()
        schedule = self.scheduler.schedule(self._prefill_budget())
        for seq in schedule.starved:
            output.ended.append((seq.chat_id, self._starved_line(seq)))
            self._finish(seq)
        if not schedule:
            return output
        result = self.runner.run(schedule)
        sampled = self.sampler.sample(result.logits, result.sampled)
        for seq, count in [(s, 1) for s in schedule.decodes] + schedule.prefills:
            seq.num_cached += count
        for seq, _ in schedule.prefills:
            total = seq.answer.num_prompt if seq.answer else 0
            output.prefilled.append((seq.chat_id, min(seq.num_cached, total), total))
        elapsed = time.perf_counter() - start
        self._learn(schedule, elapsed)
        if result.decision is not None:
            output.record = self._record(schedule, result.decision, elapsed)
        output.tokens = [
            self._append(seq, token) for seq, token in zip(result.sampled, sampled, strict=True)
        ]
        return output

    def _append(self, seq: Sequence, token: int) -> Token:
        answer = seq.answer
        assert answer is not None
        seq.tokens.append(token)
        finish = None
        if token in answer.stop_ids:
            finish = "stop"
        elif 0 <= answer.params.max_tokens <= seq.num_answered:
            finish = "length"
        elif len(seq.tokens) >= self.context:
            finish = "context"
        if finish is not None:
            self._finish(seq)
        return Token(seq.chat_id, token, finish)

    def _finish(self, seq: Sequence) -> None:
        self.scheduler.finish(seq)
        self.sampler.forget(seq.chat_id)

    def _prefill_budget(self) -> int:
        """Prompt tokens for this step: few enough that answers beside it keep streaming."""
        decoding = any(s.num_uncached == 1 for s in self.scheduler.active())
        if not decoding or not self._prefill_token_s:
            return PREFILL_CHUNK
        allowed = max(SHARED_STEP_S, self._decode_s) / self._prefill_token_s
        return max(MIN_CHUNK, min(PREFILL_CHUNK, int(allowed)))

    def _learn(self, schedule: Schedule, elapsed: float) -> None:
        num_prefill = sum(count for _, count in schedule.prefills)
        if not num_prefill:
            self._decode_s = elapsed
        elif num_prefill >= MIN_CHUNK:
            beside = self._decode_s if schedule.decodes else 0.0
            self._prefill_token_s = max(elapsed - beside, elapsed / 4) / num_prefill

    def _record(self, schedule: Schedule, decision: Decision, elapsed: float) -> StepRecord:
        self._steps += 1
        batch = len(schedule.decodes)
        return StepRecord(
            step=self._steps,
            strategy=decision.strategy,
            reason=decision.reason,
            batch=batch,
            seq_lens=tuple(len(s.tokens) for s in schedule.decodes),
            num_splits=decision.num_splits,
            predicted_us=decision.predicted_us,
            step_ms=elapsed * 1e3,
            tokens_per_s=batch / elapsed,
            pages_used=self.pool.num_used,
            pages_total=self.pool.capacity,
            pages_shared=self.pool.num_shared,
        )

    def _starved_line(self, seq: Sequence) -> str:
        return (
            f"out of KV pages: this chat's {len(seq.tokens)} tokens need more than the "
            f"{self.pool.capacity} pages there are; start with a larger --kv-memory"
        )
