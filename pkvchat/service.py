"""Chats over the engine: messages in, text out. Runs in whatever process calls ``poll``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pkvchat.kernels.attention.strategy import StrategyUnavailable
from pkvchat.kernels.progress import Progress
from pkvchat.models.errors import ModelError
from pkvchat.models.tokenizer import Detokenizer

from .engine.engine import ContextFull, RequestRefused, StepOutput, Token
from .messages import (
    Benched,
    ChatMessage,
    Close,
    Counted,
    CountTokens,
    Delta,
    Event,
    Failed,
    Finished,
    Fork,
    Notice,
    Pages,
    PolicyChanged,
    Prefilled,
    Request,
    RunBench,
    SetPolicy,
    Shutdown,
    Started,
    Steps,
    Stop,
    Submit,
)
from .options import EngineOptions
from .short_bench import ShortBench
from .startup import start_engine
from .steps import StepRecord, StepWriter


@dataclass
class _Stream:
    """An answer on its way out."""

    detokenizer: Detokenizer
    submitted: float
    prompt_tokens: int
    new_tokens: int = 0
    first_token: float = 0.0


def _open_log(path: str) -> StepWriter:
    try:
        return StepWriter(path)
    except OSError as error:
        raise ValueError(
            f"--steps: cannot write {path}: {error.strerror}; name a file that can be written"
        ) from error


def _is_open(messages: Sequence[ChatMessage]) -> bool:
    """An answer that was cut short is to be carried on."""
    return bool(messages) and messages[-1].role == "assistant"


class ChatService:
    """Loads a model and answers chats, one step per ``poll``.

    Raises ModelError, StrategyUnavailable, ValueError or OSError, each with one line for a person,
    where ``options`` cannot be honoured.
    """

    def __init__(self, options: EngineOptions, progress: Progress) -> None:
        self._steps = _open_log(options.steps_path) if options.steps_path else None
        self._started = start_engine(options, progress)
        self.ready = self._started.ready
        self._engine = self._started.engine
        self._streams: dict[str, _Stream] = {}
        self._bench: ShortBench | None = None
        self._pages = Pages(0, 0, self._engine.pool.capacity)  # both as last told
        self._template_note = self._started.loaded.template.fallback_note

    @property
    def idle(self) -> bool:
        """No answer is under way, and no bench."""
        return self._engine.idle and self._bench is None

    def handle(self, request: Request) -> list[Event]:
        """Carry out one request; what it has to say comes back at once."""
        try:
            match request:
                case Submit():
                    return self._submit(request)
                case Stop(chat_id):
                    return self._end(chat_id, "cancelled") if self._engine.stop(chat_id) else []
                case Close(chat_id):
                    self._engine.close(chat_id)
                    self._streams.pop(chat_id, None)
                    return self._new_pages()
                case Fork(source, target):
                    with suppress(KeyError):  # a chat that has no KV yet: nothing to share
                        self._engine.fork(source, target)
                    return self._new_pages()
                case CountTokens(chat_id, number):
                    return [Counted(chat_id, number, len(self._prompt(request.messages)))]
                case SetPolicy(name):
                    return self._set_policy(name)
                case RunBench():
                    self._bench = self._bench or ShortBench(self._engine)
                case Shutdown():
                    self.close()
        except (RequestRefused, ModelError, StrategyUnavailable, ValueError) as error:
            full = isinstance(error, ContextFull)
            return [Failed(getattr(request, "chat_id", None), str(error), context_full=full)]
        return []

    def poll(self) -> list[Event]:
        """Run one step, if there is work, and return what came of it."""
        if not self._engine.idle:
            return [*self._events(self._engine.step()), *self._new_pages()]
        return self._run_bench() if self._bench else []

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()

    def _new_pages(self) -> list[Event]:
        pool = self._engine.pool
        pages = Pages(pool.num_used, pool.num_shared, pool.capacity)
        if pages == self._pages:
            return []
        self._pages = pages
        return [pages]

    def _run_bench(self) -> list[Event]:
        assert self._bench is not None
        try:
            table = self._bench.step()
        except RequestRefused as error:  # answers took the pages meanwhile
            self._bench = None
            return [Failed(None, str(error))]
        if not table:
            return []
        self._bench = None
        return [Benched(table)]

    # --- requests -----------------------------------------------------------------------------

    def _submit(self, request: Submit) -> list[Event]:
        submitted = time.perf_counter()
        loaded = self._started.loaded
        tokens = self._prompt(request.messages)
        cached = self._engine.submit(request.chat_id, tokens, request.params, loaded.stop_ids)
        detokenizer = loaded.tokenizer.detokenizer(open=_is_open(request.messages))
        self._streams[request.chat_id] = _Stream(detokenizer, submitted, len(tokens))
        events: list[Event] = [Started(request.chat_id, len(tokens), cached)]
        note = loaded.template.fallback_note  # a template may fail on this conversation only,
        if note and note != self._template_note:  # and did so first when its tokens were counted
            self._template_note = note
            events.insert(0, Notice(request.chat_id, note))
        return events

    def _prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        loaded = self._started.loaded
        encode = loaded.template.encode_open if _is_open(messages) else loaded.template.encode
        return encode([vars(message) for message in messages], loaded.tokenizer)

    def _set_policy(self, name: str) -> list[Event]:
        self._engine.set_policy(self._started.make_policy(name))
        return [PolicyChanged(name)]

    # --- a step's output ----------------------------------------------------------------------

    def _events(self, output: StepOutput) -> list[Event]:
        events: list[Event] = [Notice(*notice) for notice in output.notices]
        events += [Prefilled(*progress) for progress in output.prefilled]
        for token in output.tokens:
            events += self._token(token)
        for chat_id, line in output.ended:
            events += [*self._end(chat_id, "error"), Failed(chat_id, line)]
        if output.record is not None:
            events += [Steps((output.record,)), *self._log(output.record)]
        return events

    def _log(self, record: StepRecord) -> list[Event]:
        """A full disk ends the log, not the answer."""
        try:
            if self._steps is not None:
                self._steps.write(record)
        except OSError as error:
            self._steps = None
            return [Notice(None, f"--steps: {error.strerror}; no further steps are written")]
        return []

    def _token(self, token: Token) -> list[Event]:
        stream = self._streams[token.chat_id]
        stream.first_token = stream.first_token or time.perf_counter()
        events: list[Event] = []
        if token.finish != "stop":
            stream.new_tokens += 1
            text = stream.detokenizer.push(token.token_id)
            events.append(Delta(token.chat_id, text, 1))
        if token.finish is not None:
            events += self._end(token.chat_id, token.finish)
        return events

    def _end(self, chat_id: str, reason: str) -> list[Event]:
        stream = self._streams.pop(chat_id)
        now = time.perf_counter()
        ttft = (stream.first_token or now) - stream.submitted
        decode_s = now - stream.first_token if stream.first_token else 0.0
        rate = (stream.new_tokens - 1) / decode_s if stream.new_tokens > 1 and decode_s else 0.0
        tail = stream.detokenizer.finish()
        events: list[Event] = [Delta(chat_id, tail, 0)] if tail else []
        events.append(
            Finished(chat_id, reason, stream.prompt_tokens, stream.new_tokens, ttft, rate)
        )
        return events
