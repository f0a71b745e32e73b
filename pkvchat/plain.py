"""The chat without an app: prompts in, the model's text out, all else on standard error."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from types import FrameType

from .errors import INTERRUPTED, ChatError, startup_errors
from .messages import ChatMessage, Delta, Event, Failed, Finished, Notice, Stop, Submit
from .options import MAX_PROMPT, EngineOptions
from .progress import ProgressLine
from .sampling import SamplingParams
from .service import ChatService
from .settings import Settings

_CHAT = "plain"
# A model may write escape codes. They reach files and pipes as they are, a terminal as pictures.
_PICTURES = {c: 0x2400 + c for c in range(32) if chr(c) not in "\n\t"} | {0x7F: 0x2421}


def run(settings: Settings, prompt: str | None) -> int:
    """Answer ``prompt``, or each line of standard input; returns the exit code."""
    service = _start(settings.engine)
    try:
        conversation = Conversation(service, settings.sampling, settings.system_prompt)
        if prompt is not None:
            return INTERRUPTED if conversation.answer(prompt) == "cancelled" else 0
        return _answer_lines(conversation)
    finally:
        service.close()


def _start(options: EngineOptions) -> ChatService:
    progress = ProgressLine(sys.stderr)
    try:
        with startup_errors():
            service = ChatService(options, progress)
    finally:
        progress.close()
    ready = service.ready
    _say(f"{ready.model} on {ready.device}, {ready.dtype}, context {ready.context}")
    for note in ready.notes:
        _say(f"note: {note}")
    return service


def _answer_lines(conversation: Conversation) -> int:
    """Returns 1 if any line could not be answered."""
    code = 0
    for prompt in _prompts():
        try:
            conversation.answer(prompt)
        except ChatError as error:
            _say(f"pkvchat: {error}")
            code = 1
    return code


def _prompts() -> Iterator[str]:
    """The lines of standard input that say something."""
    asking = sys.stdin.isatty() and sys.stderr.isatty()
    number = 0
    while True:
        if asking:
            sys.stderr.write("> ")
            sys.stderr.flush()
        raw = sys.stdin.buffer.readline(MAX_PROMPT + 1)
        if not raw:
            return
        number += 1
        if len(raw) > MAX_PROMPT:
            raise ChatError(f"line {number} has more than {MAX_PROMPT} bytes: shorten it")
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            _say(
                f"note: line {number} is not UTF-8 (byte {raw[error.start]:#04x} at "
                f"{error.start}); what can't be read is replaced by U+FFFD"
            )
            line = raw.decode("utf-8", errors="replace")
        if line.strip():
            yield line.rstrip("\r\n")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Conversation:
    """One chat on an in-process engine; its answers go to standard output as they come."""

    def __init__(self, service: ChatService, params: SamplingParams, system_prompt: str) -> None:
        self._service = service
        self._params = params
        self._messages = [ChatMessage("system", system_prompt)] if system_prompt else []
        self._pictures = _PICTURES if sys.stdout.isatty() else {}

    def answer(self, prompt: str) -> str:
        """Stream the answer to ``prompt`` and end its last line; returns why it ended.

        Ctrl+C ends it with what is there, as "cancelled". Raises ChatError where the engine
        refuses or fails; the prompt is then no part of the conversation.
        """
        messages = [*self._messages, ChatMessage("user", prompt)]
        text = reason = ""
        try:
            for event in self._events(Submit(_CHAT, tuple(messages), self._params)):
                match event:
                    case Delta(_, piece):
                        text += piece
                        self._write(piece)
                    case Notice(_, line):
                        _say(f"note: {line}")
                    case Failed(_, line):
                        raise ChatError(line)
                    case Finished(_, reason, prompt_tokens, new_tokens):
                        if reason == "context":
                            _say(f"note: context full, {prompt_tokens + new_tokens} tokens")
        finally:
            if text and not text.endswith("\n"):
                self._write("\n")
        self._messages = [*messages, ChatMessage("assistant", text)]
        return reason

    def _events(self, submit: Submit) -> Iterator[Event]:
        """All there is to say about one answer, as it comes."""
        with _Interrupt() as interrupt:
            yield from self._service.handle(submit)
            while not self._service.idle:
                if interrupt.requested:
                    yield from self._service.handle(Stop(_CHAT))
                else:
                    yield from self._service.poll()

    def _write(self, text: str) -> None:
        sys.stdout.write(text.translate(self._pictures))
        sys.stdout.flush()


class _Interrupt:
    """While entered, a first Ctrl+C is noted, so that a step is never torn; a second one raises
    KeyboardInterrupt as usual."""

    requested = False

    def __enter__(self) -> _Interrupt:
        self._former = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._former)

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
