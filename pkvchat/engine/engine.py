"""The engine: token ids in, token ids out, one step at a time. It knows nothing about text.

On CUDA it works one step ahead: while the device is at a step, the host enqueues the next one,
which takes the tokens it begins with from where the device has put them, and only then waits for
those of the first. An answer that turns out to have ended has a row too many in the step behind:
its token is dropped, and what it writes to the KV lies beyond the tokens that count.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import torch

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.policy.policy import Policy
from pkvchat.models.causal_lm import CausalLM

from ..sampling import SamplingParams
from ..steps import StepRecord
from .attention_kernels import AttentionKernels
from .in_flight import InFlight
from .mark import Mark
from .pace import MIN_CHUNK, PrefillPace
from .pages import PagePool
from .runner import ModelRunner
from .sampler import Sampler
from .scheduler import Scheduler
from .sequence import Answer, Sequence

PREFILL_CHUNK = 512  # prompt tokens a step at most, where nothing else is said
_OUT_OF_MEMORY = (
    "the device is out of memory: end what else uses it, or start again with a smaller --kv-memory"
)


class RequestRefused(Exception):
    """An answer that cannot be begun; ``str(e)`` is the one line to show."""


class ContextFull(RequestRefused):
    """The prompt leaves no room for an answer in the context."""


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
    go on, with the line to show. notices: (chat or None, line) that a person should know. record:
    of the decode rows, None in a step that only prefilled.
    """

    tokens: list[Token] = field(default_factory=list)
    prefilled: list[tuple[str, int, int]] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)
    notices: list[tuple[str | None, str]] = field(default_factory=list)
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
        *,
        max_chunk: int = PREFILL_CHUNK,
        limited_by: str = "-c",
        kernels: AttentionKernels | None = None,
        ahead: bool | None = None,
    ) -> None:
        """num_pages: of the KV cache, the scratch page among them. context: tokens of a chat.

        limited_by: the flag that would raise the context; "" where it is the model's own limit.
        max_chunk: prompt tokens that a step has memory for. kernels: None makes what is asked for.
        ahead: enqueue a step before the tokens of the one before are known; None does so on CUDA.
        Raises torch.OutOfMemoryError where the cache cannot be allocated.
        """
        self.context, self._limited_by = context, limited_by
        self.device = shape.device
        self.pool = PagePool(num_pages)
        self.scheduler = Scheduler(self.pool, shape.page_size)
        self._notices: list[str] = []
        self.runner = ModelRunner(model, shape, num_pages, policy, self._notices.append, kernels)
        self.sampler = Sampler(shape.device)
        self.pace = PrefillPace(max_chunk)
        self._ahead = shape.device.type == "cuda" if ahead is None else ahead
        self._in_flight: InFlight | None = None
        self._arrivals = 0
        self._steps = 0

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
        new = max(1, params.max_tokens) if params.max_tokens >= 0 else self.context
        limit = min(self.context, len(tokens) + new)
        answer = Answer(params, stop_ids, len(tokens), self._arrivals, seed, limit)
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
        self.stop(chat_id)
        self.scheduler.remove(chat_id)

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
            more = f"raise {self._limited_by}" if self._limited_by else "take another model"
            raise ContextFull(
                f"the prompt has {num_tokens} tokens, {num_tokens - self.context + 1} too many for "
                f"a context of {self.context}: shorten it, or {more}"
            )
        need = self.scheduler.pages_for(num_tokens + 1)
        if need > self.pool.capacity:
            raise RequestRefused(
                f"the prompt needs {need} KV pages and the pool has {self.pool.capacity}: "
                "shorten it, or raise --kv-memory"
            )

    # --- one step -----------------------------------------------------------------------------

    def step(self) -> StepOutput:
        """Run one step, or enqueue it and return what the one before has brought.

        An empty output when there is nothing to do, or nothing there yet.
        """
        output = StepOutput()
        former, enqueued = self._in_flight, None
        short = False
        try:
            enqueued = self._enqueue(former, output)
        except torch.OutOfMemoryError:
            short = True
        if short:  # no longer inside of "except", which keeps alive what the step had allocated
            self._make_do(output)
        ready, self._in_flight = (former, enqueued) if self._ahead else (enqueued, None)
        if ready is not None:
            self._collect(ready, output)
        output.notices += [(None, line) for line in self._notices]
        self._notices.clear()
        return output

    def _enqueue(self, former: InFlight | None, output: StepOutput) -> InFlight | None:
        """Start the next step's work on the device; None if there is none."""
        began = former.done if former is not None else Mark(self.device)
        uncached = [s.num_uncached for s in self.scheduler.active() if not s.full]
        decoding = uncached.count(1)
        size = self.pace.size(decoding) if any(n > 1 for n in uncached) else 0
        schedule = self.scheduler.schedule(*self.runner.room(size, decoding))
        for seq in schedule.starved:
            output.ended.append((seq.chat_id, self._starved_line(seq)))
            self._finish(seq)
        if schedule.waiting is not None:
            output.notices += self._waiting_line(schedule.waiting)
        if not schedule:
            return None
        pending = former.sampled if former is not None else None
        result = self.runner.run(schedule, pending)
        sampled = self.sampler.sample(result.logits, result.sequences, pending)
        arriving = sampled.token_ids.to("cpu", non_blocking=True)
        lengths = tuple(seq.num_tokens for seq in schedule.decodes)  # before they have one more
        work = [(seq, 1) for seq in schedule.decodes] + schedule.prefills
        for seq, count in work:
            seq.num_cached += count
        for seq in result.sequences:
            seq.num_pending += 1
        return InFlight(
            sampled=sampled,
            answers={seq: seq.answer for seq, _ in work if seq.answer is not None},
            arriving=arriving,
            prefills=[(seq, seq.num_cached) for seq, _ in schedule.prefills],
            lengths=lengths,
            num_prefill=sum(count for _, count in schedule.prefills),
            decision=result.decision,
            began=began,
            launched=result.launched,
            done=Mark(self.device),
            usual=result.usual,
        )

    def _make_do(self, output: StepOutput) -> None:
        """The device had no memory for a step: need less of it, and have the step tried again."""
        graphs = self.runner.graphs
        if graphs is not None and len(graphs):
            graphs.clear()
            self._notices.append(
                "the device is out of memory: decoding goes on without CUDA graphs, more slowly "
                "(a smaller --kv-memory leaves more room)"
            )
        elif self.pace.max_chunk > MIN_CHUNK:
            self.pace.max_chunk //= 2
            self._notices.append(
                "the device is out of memory: prompts are read more slowly, in chunks of "
                f"{self.pace.max_chunk} tokens"
            )
        else:
            for seq in self.scheduler.active():
                output.ended.append((seq.chat_id, _OUT_OF_MEMORY))
                self._finish(seq)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _collect(self, step: InFlight, output: StepOutput) -> None:
        """Wait for a step, and hand out what came of it for answers that are still under way."""
        step.done.wait()
        # While the device waited for the host, a graph may have been captured.
        usual_s = step.step_s - step.idle_s if step.usual else None
        self.pace.learn(len(step.lengths), step.num_prefill, step.step_s, usual_s)
        if step.decision is not None:
            if step.usual and not step.num_prefill:
                self.runner.policy.observe(step.lengths, step.decision, step.step_s * 1e6)
            output.record = self._record(step)
        for seq, num_cached in step.prefills:
            if step.still_wants(seq):
                total = step.answers[seq].num_prompt
                output.prefilled.append((seq.chat_id, min(num_cached, total), total))
        tokens = step.arriving.tolist()
        for seq, row in step.sampled.rows.items():
            if step.still_wants(seq):
                output.tokens.append(self._append(seq, step.answers[seq], tokens[row]))

    def _append(self, seq: Sequence, answer: Answer, token: int) -> Token:
        """The next of the sequence's pending tokens is ``token``."""
        seq.tokens.append(token)
        seq.num_pending -= 1
        finish = None
        if token in answer.stop_ids:
            finish = "stop"
        elif len(seq.tokens) >= answer.max_tokens:
            finish = "length" if 0 <= answer.params.max_tokens <= seq.num_answered else "context"
        if finish is not None:
            self._finish(seq)
        return Token(seq.chat_id, token, finish)

    def _finish(self, seq: Sequence) -> None:
        self.scheduler.finish(seq)
        self.sampler.forget(seq.chat_id)
        if self.idle:
            self._in_flight = None  # nobody waits for what the device may still be doing

    def _record(self, step: InFlight) -> StepRecord:
        assert step.decision is not None
        self._steps += 1
        batch = len(step.lengths)
        return StepRecord(
            step=self._steps,
            strategy=step.decision.strategy,
            reason=step.decision.reason,
            batch=batch,
            seq_lens=step.lengths,
            num_splits=step.decision.num_splits,
            predicted_us=step.decision.predicted_us,
            step_ms=step.step_s * 1e3,
            tokens_per_s=batch / step.step_s,
            pages_used=self.pool.num_used,
            pages_total=self.pool.capacity,
            pages_shared=self.pool.num_shared,
            idle_ms=step.idle_s * 1e3,
        )

    def _waiting_line(self, seq: Sequence) -> list[tuple[str | None, str]]:
        """Said once of an answer."""
        if seq.answer is None or seq.answer.told:
            return []
        seq.answer.told = True
        need = self.scheduler.pages_for(seq.num_tokens + 1) - len(seq.pages)
        holders = ", ".join(
            f"{other.chat_id} ({len(other.pages)})"
            for other in self.scheduler.active()
            if other is not seq and other.pages
        )
        line = (
            f"waiting for {need} KV pages, and {self.pool.num_free} are free: {holders} answering; "
            "it goes on when they are done or stopped (a larger --kv-memory has room for more)"
        )
        return [(seq.chat_id, line)]

    def _starved_line(self, seq: Sequence) -> str:
        return (
            f"out of KV pages: this chat's {len(seq.tokens)} tokens need more than the "
            f"{self.pool.capacity} pages there are; start with a larger --kv-memory"
        )
