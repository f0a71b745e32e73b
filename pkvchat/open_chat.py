"""One open chat: what it is doing, and how the engine's events change it. No widgets here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import Enum

from .chat_summary import Summary
from .chats import ANSWERS, Chat, Message, Version, title_of
from .messages import (
    ChatMessage,
    Delta,
    Event,
    Failed,
    Finished,
    Notice,
    Prefilled,
    Ready,
    Started,
    Submit,
)
from .sampling import SamplingParams

_NEARLY_FULL = 0.8
_CHOICES = (
    "/summarise goes on in a copy, from a summary of this chat; /drop lets the model forget the "
    "oldest turns; /context N restarts the engine with more, if memory allows."
)


class Phase(Enum):
    IDLE = "idle"
    WAITING = "waiting"  # for the engine to take the prompt
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(eq=False)
class OpenChat:
    """prefill_done, prefill_total: tokens of the prompt, those kept from last time counted done.

    context_tokens: of this chat in the context, as last known; 0 where the engine never said.
    warned: that it fills up.
    chars_per_token: of the last prompt read, to estimate what is typed from.
    carried: tokens that the running answer had when it was carried on.
    first_token: when the running answer's first token came, in monotonic seconds.
    full: the context has no room for the next answer. summary: that is being written.
    edit_of: the chat whose prompt is being changed here, until that is sent.
    """

    chat: Chat = field(default_factory=Chat)
    phase: Phase = Phase.IDLE
    unread: bool = False
    prefill_done: int = 0
    prefill_total: int = 0
    prefill_from: int = 0
    prefill_started: float = 0.0
    context_tokens: int = 0
    warned: bool = False
    chars_per_token: float = 4.0
    carried: int = 0
    first_token: float = 0.0
    full: bool = False
    summary: Summary | None = None
    edit_of: OpenChat | None = None

    @property
    def busy(self) -> bool:
        return self.phase is not Phase.IDLE

    @property
    def answer(self) -> Version | None:
        """The answer that runs, if one does."""
        message = self.chat.last(*ANSWERS) if self.busy else None
        return message.version if message else None

    @property
    def queued(self) -> list[Message]:
        return [message for message in self.chat.messages if message.queued]

    @property
    def tokens_per_s(self) -> float:
        """Of the running answer so far; 0 where none decodes yet."""
        answer = self.answer
        if answer is None or self.phase is not Phase.DECODE:
            return 0.0
        seconds = time.monotonic() - self.first_token
        return max(answer.new_tokens - self.carried - 1, 0) / seconds if seconds else 0.0

    def prefill_pace(self) -> tuple[float, float]:
        """Prompt tokens read per second, and the seconds left; zeros before the first are read."""
        seconds = time.monotonic() - self.prefill_started
        read = self.prefill_done - self.prefill_from
        if read <= 0 or seconds <= 0:
            return 0.0, 0.0
        rate = read / seconds
        return rate, (self.prefill_total - self.prefill_done) / rate

    # --- what a person does -------------------------------------------------------------------

    def ask(self, prompt: str) -> bool:
        """Add a prompt behind those that wait. False: an answer runs, so it waits its turn."""
        self.chat.add("user", prompt).queued = True
        return self.ask_next()

    def ask_next(self) -> bool:
        """Start on a summary's next part, else on the oldest queued prompt; False without one."""
        queued, last = self.queued, self.chat.last(*ANSWERS)
        if self.summary and last and not self.busy:
            last.versions[last.chosen] = Version()
            self.phase = Phase.WAITING
            return True
        if not queued or self.busy:
            return False
        message = queued[0]
        message.queued = False
        # What was said meanwhile stands before it, the prompts still waiting behind it.
        rest = self.chat.messages
        rest[:] = [m for m in rest if not m.queued and m is not message]
        rest += [message, *queued[1:]]
        self._begin()
        return True

    def regenerate(self) -> bool:
        """Answer the last prompt again beside the answers it has. False: there is nothing to."""
        if self.busy:
            return False
        for message in reversed([m for m in self.chat.messages if not m.queued]):
            if message.role in ANSWERS:
                message.versions.append(Version())
                message.chosen = len(message.versions) - 1
                self.carried = 0
                self.phase = Phase.WAITING
                return True
            if message.role == "user":
                self._begin()
                return True
        return False

    def carry_on(self) -> bool:
        """Go on with the last answer where it was cut short. False: there is none such."""
        roles = ("user", *ANSWERS)
        said = [m for m in self.chat.messages if m.role in roles and not m.queued]
        if self.busy or not said or said[-1].role != "assistant":
            return False
        answer = said[-1].version
        answer.text = answer.text.rstrip("\N{REPLACEMENT CHARACTER}")  # half a character was lost
        if not answer.text or answer.reason == "stop":
            return False
        answer.reason = ""
        self.carried = answer.new_tokens
        self.phase = Phase.WAITING
        return True

    def summarise(self) -> bool:
        """Have the model sum up all that it reads, and from then on read that instead. False: an
        answer runs, or there is nothing to sum up."""
        if self.busy or not any(m.role == "user" for m in self.chat.conversation()):
            return False
        self._insert(Message.of("summary", ""))
        self.phase = Phase.WAITING
        return True

    def take_back_queue(self) -> str:
        """Remove the queued prompts and return their text for the composer."""
        queued = self.queued
        self.chat.messages[:] = [m for m in self.chat.messages if not m.queued]
        return "\n\n".join(message.text for message in queued)

    def withdraw(self) -> str:
        """Give up an answer that no engine has seen; returns its prompt for the composer."""
        answer = self.answer
        self.phase, self.summary = Phase.IDLE, None
        if answer and answer.text:  # it was to be carried on
            answer.reason = "cancelled"
            return ""
        return self._remove(answer) if answer else ""

    def submission(self, params: SamplingParams, ready: Ready) -> Submit:
        """For the engine: all up to the prompt whose answer is awaited, and what there is of the
        answer if it is carried on."""
        message = self.chat.last(*ANSWERS)
        assert message is not None, "no answer is awaited"
        message.version.model = ready.model
        if message.role == "summary":
            if self.summary is None:
                before = self.chat.conversation(self.chat.messages.index(message))
                self.summary = Summary(before, ready.context, self.chars_per_token)
            params = replace(params, max_tokens=self.summary.max_tokens)
        return Submit(self.chat.id, self.conversation(), params)

    def conversation(self) -> tuple[ChatMessage, ...]:
        """What the awaited answer follows."""
        if self.summary:
            return (self.summary.request(),)
        running = self.answer
        ends = (i for i, m in enumerate(self.chat.messages, 1) if m.version is running)
        return self.chat.conversation(next(ends, None))

    def _begin(self) -> None:
        queued = self.queued
        messages = self.chat.messages
        messages[:] = [m for m in messages if not m.queued]
        messages += [Message.of("assistant", ""), *queued]
        self.carried = 0
        self.phase = Phase.WAITING

    # --- what the engine says -----------------------------------------------------------------

    def apply(self, event: Event) -> str:
        """Take in one of this chat's events; returns text to put back in the composer, or ""."""
        answer = self.answer
        match event:
            case Started(prompt_tokens=total, cached_tokens=cached) if answer:
                self.phase, self.full = Phase.PREFILL, False
                self.prefill_done = self.prefill_from = cached
                self.prefill_total = self.context_tokens = total
                self.prefill_started = time.monotonic()
                chars = sum(len(message.content) for message in self.conversation())
                self.chars_per_token = max(chars / max(total, 1), 1.0)
            case Prefilled(done=done, total=total) if answer:
                self.prefill_done, self.prefill_total = done, total
            case Delta(text=text, num_tokens=count) if answer:
                if self.phase is not Phase.DECODE:
                    self.first_token = time.monotonic()
                self.phase = Phase.DECODE
                answer.text += text
                answer.new_tokens += count
                self.context_tokens += count
            case Finished() if answer:
                answer.reason = event.reason
                answer.new_tokens = self.carried + event.new_tokens
                answer.ttft_s, answer.tokens_per_s = event.ttft_s, event.tokens_per_s
                self.context_tokens = event.prompt_tokens + event.new_tokens
                self.phase = Phase.IDLE
                self.full = event.reason == "context"
                self._sum_up(event)
            case Notice(message=line):
                self.note(line)
            case Failed(message=line):
                self.summary = None
                self.full = event.context_full
                return self._failed(line, answer)
        return ""

    def _sum_up(self, event: Finished) -> None:
        """Take in the summary of one part, if that is what ended; one that was stopped is none."""
        message = self.chat.last(*ANSWERS)
        if self.summary is None or message is None:
            return
        self.full = False
        self.context_tokens = event.new_tokens
        if not message.sums_up or not self.summary.advance(message.text):
            self.summary = None

    def warn_of_context(self, limit: int) -> None:
        """Say in the chat, once, that the context fills up, and each time that it is full."""
        if self.full:
            self.note(f"the context is full ({limit:,} tokens), so the answer ended. {_CHOICES}")
        elif self.context_tokens < _NEARLY_FULL * limit:
            self.warned = False
        elif not self.warned:
            self.warned = True
            self.note(f"{self.context_tokens:,} of {limit:,} tokens of context used. {_CHOICES}")

    def interrupted(self, reason: str) -> None:
        """The engine is gone; an answer that was running ends here, a waiting one waits on."""
        answer = self.answer
        if answer and self.phase is not Phase.WAITING:
            answer.reason = reason
            self.phase = Phase.IDLE
            self.summary = None

    def _failed(self, line: str, answer: Version | None) -> str:
        """Say what went wrong; a prompt that was refused goes back to be changed."""
        put_back = ""
        if answer is not None:
            answer.reason = "error"
            self.phase = Phase.IDLE
            if not answer.text:
                put_back = self._remove(answer)
        self.note(line)
        return put_back

    def _remove(self, answer: Version) -> str:
        """Drop an answer that never began, with its prompt if it was its only answer."""
        messages = self.chat.messages
        index = next(i for i, m in enumerate(messages) if m.version is answer)
        message = messages[index]
        if len(message.versions) > 1:
            message.versions.remove(answer)
            message.chosen = len(message.versions) - 1
            return ""
        del messages[index]
        if message.role == "summary":
            return ""
        before = [m for m in messages[:index] if m.role == "user"]
        if not before:
            return ""
        messages.remove(before[-1])
        prompt = before[-1].text
        if len(before) == 1 and self.chat.title == title_of(prompt):
            self.chat.title = ""
        return prompt

    def note(self, line: str) -> None:
        """A line of the app's own in the transcript, on what is wrong or may soon be."""
        self._insert(Message.of("note", line))

    def say(self, text: str) -> None:
        """The reply to a command, in the transcript."""
        self._insert(Message.of("said", text))

    def _insert(self, message: Message) -> None:
        """Behind what was said, before the prompts that wait."""
        self.chat.messages.insert(len(self.chat.messages) - len(self.queued), message)
