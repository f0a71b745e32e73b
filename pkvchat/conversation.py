"""One chat on an engine in this process: plain mode, as the commands see it."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from types import FrameType

from . import clipboard
from .chats import Chat, Message, given_title
from .clean import JOINERS, one_line, visible
from .commands.command import CommandError
from .commands.table import CommandTable
from .errors import ChatError, startup_errors
from .line_input import asked, confirmed, with_person
from .messages import (
    Benched,
    Close,
    Delta,
    Event,
    Failed,
    Finished,
    Notice,
    PolicyChanged,
    Ready,
    Request,
    Steps,
    Stop,
    Submit,
)
from .meter import Meter
from .open_chat import OpenChat
from .options import EngineOptions
from .progress_line import ProgressLine
from .service import ChatService
from .settings import Settings
from .store import PARTED, ChatStore, Found, store_path

_LISTED = 20  # saved chats at most
_NO_ENGINE = "no engine runs: /regen starts it again, /model NAME another model"


def say(text: str) -> None:
    """Lines of the program's own."""
    print(visible(text), file=sys.stderr, flush=True)


class Conversation:
    """Implements Host. Answers go to standard output as they come, all else to standard error.

    left: the person asked to end the program.
    """

    def __init__(self, settings: Settings, commands: CommandTable[Conversation]) -> None:
        self.params = settings.sampling
        self.meter = Meter()
        self.left = False
        self._system = settings.system_prompt
        self._commands = commands
        self._options = settings.engine
        self._service: ChatService | None = _start(settings.engine)  # None: none would start
        self._current = self._fresh()
        self._before_prompt = ""
        self._found: list[Found] = []  # that /chats has listed last
        self._joiner = ""  # that the text so far ended with
        self._raw = not sys.stdout.isatty()  # a file gets what the model wrote, a terminal is safe

    def _fresh(self) -> OpenChat:
        return OpenChat(Chat(system=self._system))

    def close(self) -> None:
        service, self._service = self._service, None
        if service:
            service.close()

    # --- answers ------------------------------------------------------------------------------

    def answer(self, prompt: str) -> str:
        """Stream the answer to ``prompt`` and end its last line; returns why it ended.

        Ctrl+C ends it with what is there, as "cancelled". Raises ChatError where the engine
        refuses or fails; a prompt without any answer is then no part of the conversation.
        """
        _ = self._engine  # a prompt that nobody answers is not taken
        text, self._before_prompt = self._before_prompt + prompt, ""
        self._current.ask(text)
        return self._stream_all()

    def _stream_all(self) -> str:
        """Also what waited in a chat that was opened; returns why the last answer ended."""
        reason = self._stream()
        while self._current.ask_next():
            reason = self._stream()
        return reason

    def _stream(self) -> str:
        chat, end, reason = self._current, "", ""
        notes: list[str] = []  # for when the answer's last line has ended
        try:
            for event in self._events(chat.submission(self.params, self._engine.ready)):
                match event:
                    case Delta(_, text):
                        self._write(text)
                        end = text or end
                    case Notice(_, line):
                        notes.append(line)
                    case Steps(records):
                        self.meter.add(records)
                    case Finished(_, reason, prompt_tokens, new_tokens, ttft_s):
                        self.meter.ttfts.append(ttft_s)
                        if reason == "context":
                            notes.append(f"context full, {prompt_tokens + new_tokens} tokens")
                if not isinstance(event, Notice):
                    chat.apply(event)
                if isinstance(event, Failed):
                    raise ChatError(event.message)
        finally:
            if end and not end.endswith("\n"):
                self._write("\n")
            for line in notes:
                say(f"note: {line}")
        return reason

    def _events(self, submit: Submit) -> Iterator[Event]:
        """All there is to say about one answer, as it comes."""
        engine = self._engine
        with _Interrupt() as interrupt:
            yield from engine.handle(submit)
            while not engine.idle:
                if interrupt.requested:
                    yield from engine.handle(Stop(submit.chat_id))
                else:
                    yield from engine.poll()

    @property
    def _engine(self) -> ChatService:
        if self._service is None:
            raise ChatError(_NO_ENGINE)
        return self._service

    def _write(self, text: str) -> None:
        sys.stdout.write(text if self._raw else self._shown(text))
        sys.stdout.flush()

    def _shown(self, text: str) -> str:
        """A joiner waits for what it joins, which the next part may begin with."""
        text = self._joiner + text
        whole = text.rstrip(JOINERS)
        self._joiner = text[len(whole) :][-1:]
        return visible(whole)

    # --- as Host ------------------------------------------------------------------------------

    @property
    def current(self) -> OpenChat:
        return self._current

    @property
    def ready(self) -> Ready | None:
        return self._service.ready if self._service else None

    @property
    def policy(self) -> str:
        return self._options.policy

    @property
    def answered(self) -> None:
        """Commands are read between answers."""

    def say(self, text: str) -> None:
        say(text)

    def send(self, request: Request) -> None:
        engine = self._engine
        with self._interruptible():
            events = engine.handle(request)
            while not engine.idle:  # a bench; no answer runs while commands are read
                events += engine.poll()
        for event in events:
            match event:
                case PolicyChanged(name):
                    self._options = replace(self._options, policy=name)
                    say(f"policy {name}")
                case Benched(table):
                    say(table)
                case Failed(_, line):
                    raise CommandError(line)
                case _:
                    pass

    def submit(self) -> None:
        self._stream_all()

    def restart(self, **changes: object) -> None:
        """Should the new engine not start, the one before it does again."""
        options = replace(self._options, **changes)  # type: ignore[arg-type]
        with self._interruptible():
            self.close()
            gc.collect()  # its memory, before the next one's
            try:
                self._service = _start(options)
                self._options = options
            except ChatError as error:
                try:
                    self._service = _start(self._options)
                except ChatError as again:
                    both = f"{error}; nor does the engine from before: {again}"
                    raise CommandError(both) from again
                raise CommandError(str(error)) from error

    def revive(self) -> bool:
        if self._service:
            return False
        with self._interruptible():
            self._service = _start(self._options)
        return True

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl+C ends what a command does, and the engine, which may be in the midst of a step;
        where nobody is at a terminal, all of the program."""
        try:
            yield
        except KeyboardInterrupt:
            self.close()
            if not with_person():
                raise
            raise CommandError(f"interrupted; {_NO_ENGINE}") from None

    def changed(self) -> None:
        pass

    def open(self, chat: Chat) -> None:
        current = self._current.chat
        try:
            if current.messages:
                say(f"the chat so far is saved in {self.save()}")
        except ChatError as error:
            if chat.conversation() != current.conversation():
                raise ChatError(
                    f"{error}; /export FILE keeps this chat, /clear drops it"
                ) from error
            say(f"note: {error}; what was said goes on in the new chat alone")
        self._turn_to(OpenChat(chat))
        say(f"this is now {one_line(chat.name)!r}")

    def clear(self) -> None:
        self._turn_to(self._fresh())

    def _turn_to(self, chat: OpenChat) -> None:
        if self._service:
            self._service.handle(Close(self._current.chat.id))
        self._current = chat

    def save(self) -> str:
        """Where the app finds it."""
        if not self._current.chat.messages:
            raise CommandError("nothing was said yet")
        with _store() as store:
            if store.save(self._current.chat):
                say(f"note: {PARTED}")
        return str(store.path)

    def rename(self, title: str) -> None:
        self._current.chat.title = title
        say(f"this is now {title!r}")

    def ask_title(self) -> bool:
        answer = asked("Title:")
        if title := given_title(answer or ""):
            self.rename(title)
        return answer is not None

    def find(self, words: str) -> None:
        with _store() as store:
            self._found = store.find(words, limit=_LISTED)
        if not self._found:
            raise CommandError("no saved chat holds that" if words else "no chat is saved yet")
        for number, found in enumerate(self._found, 1):
            say(f"{number:>3}  {found.line}")
        say("/open NUMBER opens one of them.")

    def open_found(self, number: int) -> None:
        """A chat of those that were listed last, counted from 1, and the last it answered."""
        if not 0 < number <= len(self._found):
            raise CommandError("/open needs a number that /chats has listed")
        with _store() as store:
            chat = store.load(self._found[number - 1].id)
            elsewhere = store.is_shown_elsewhere(chat)
        if chat.key == self._current.chat.key:
            raise CommandError("that is the chat you are in")
        self.open(chat)
        if elsewhere:
            say("note: another pkvchat shows it; if both go on, yours becomes a chat of its own")
        if answer := chat.last("assistant"):
            say(answer.text)

    def delete(self) -> None:
        chat = self._current.chat
        name = one_line(chat.name)
        if not confirmed(f"Delete {name!r} for good?"):
            return say(f"{name!r} stays")
        if chat.saved:
            with _store() as store:
                if store.is_shown_elsewhere(chat):
                    raise CommandError(f"another pkvchat shows {name!r}: delete it there")
                store.delete(chat)
        self.clear()
        return say(f"deleted {name!r}")

    def put_in_prompt(self, text: str) -> None:
        self._before_prompt += f"{text}\n"
        say(f"{len(text):,} characters go before your next line")

    def chosen(self) -> Message:
        if answer := self._current.chat.last("assistant"):
            return answer
        raise CommandError("there is no answer yet")

    def place(self) -> int:
        return len(self._current.chat.messages)

    def copy(self, text: str, what: str) -> None:
        if not clipboard.copy(text):
            raise CommandError(f"no clipboard program works here; those known: {clipboard.NAMES}")
        say(f"copied the {what}, {len(text):,} characters")

    def help(self) -> None:
        for command in self._commands.by_slash.values():
            say(f"{command.usage:<24}{command.what}")
        say("Begin with // to send a line that starts with a slash.")
        say("Ctrl+C ends what runs or clears the line; twice on an empty one, or Ctrl+D, quits.")

    def leave(self) -> None:
        self.left = True


@contextmanager
def _store() -> Iterator[ChatStore]:
    """The saved chats, for as long as a command needs them. Raises ChatError."""
    with closing(ChatStore(store_path(), tabs=False)) as store:  # the app may start meanwhile
        if store.note:
            say(f"note: {store.note}")
        yield store


def _start(options: EngineOptions) -> ChatService:
    with closing(ProgressLine(sys.stderr)) as progress, startup_errors():
        service = ChatService(options, progress)
    ready = service.ready
    say(f"{ready.model} on {ready.device}, {ready.dtype}, context {ready.context}")
    for note in ready.notes:
        say(f"note: {note}")
    return service


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
