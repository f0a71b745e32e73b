"""Chats as a person sees them: messages, with every answer that was ever generated kept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from uuid import uuid4

from .clean import one_line
from .messages import ChatMessage

NEW_CHAT = "New chat"
# Roles, see Message: those the model reads as they are, those it writes, those of our own lines.
SENT_ROLES = ("system", "user", "assistant")
ANSWERS = ("assistant", "summary")
OWN_LINES = ("note", "said")
_TITLE_LENGTH, _GIVEN_LENGTH = 40, 200  # of a title made of a prompt, and of a person's own
_KINDS = ("fork: ", "copy: ", "edit: ", "summary: ")
_COMPLETE = ("stop", "length", "context")
_SUM_UP = "Sum up our conversation so far."


def new_id() -> str:
    """An id for a chat or a message, unique across runs."""
    return uuid4().hex


@dataclass(eq=False)
class Version:
    """One text of a message; an assistant's message gains one each time it is regenerated.

    reason: why the answer ended ("stop", "length", "context", "cancelled", "error", "died" or
    "quit"), "" while it runs. The counts and times are Finished's; they stay 0 for text nobody
    generated.
    model: who wrote it, "" where that isn't known.
    """

    text: str = ""
    reason: str = ""
    new_tokens: int = 0
    ttft_s: float = 0.0
    tokens_per_s: float = 0.0
    model: str = ""


@dataclass(eq=False)
class Message:
    """role: "system", "user", "assistant"; "note" for what the app says of trouble and "said" for
    its replies to commands, neither ever sent; "cut" for the line from which on the model reads;
    "summary" for what the model wrote of all before it, which it reads in place of that.

    queued: a prompt that waits for the running answer to end.
    """

    role: str
    versions: list[Version]
    chosen: int = 0
    queued: bool = False
    id: str = field(default_factory=new_id)

    @classmethod
    def of(cls, role: str, text: str) -> Message:
        return cls(role, [Version(text)])

    @property
    def version(self) -> Version:
        return self.versions[self.chosen]

    @property
    def text(self) -> str:
        return self.version.text

    @property
    def sums_up(self) -> bool:
        """A summary that is complete."""
        return self.role == "summary" and self.version.reason in _COMPLETE

    def sent(self) -> list[ChatMessage]:
        """What the model reads of it."""
        if self.queued or not self.text:
            return []
        if self.sums_up:
            return [ChatMessage("user", _SUM_UP), ChatMessage("assistant", self.text)]
        return [ChatMessage(self.role, self.text)] if self.role in SENT_ROLES else []

    def copy(self) -> Message:
        """The same message under an id of its own, for another chat."""
        versions = [Version(**vars(version)) for version in self.versions]
        return Message(self.role, versions, self.chosen, self.queued)


@dataclass(frozen=True)
class Saved:
    """What a chat's file holds of it, as far as this process knows.

    prefix: begins its ids there, "" unless it had to part from a chat that others wrote to.
    updated: as in the file, where every write changes it. head, messages: what was written, each
    message by its id.
    """

    prefix: str = ""
    updated: object = None
    head: tuple[str, ...] = ()
    messages: dict[str, tuple[object, ...]] = field(default_factory=dict)


@dataclass(eq=False)
class Chat:
    """One conversation and what its composer held.

    title: "" until the first prompt names it or a person does. saved: None until it is.
    """

    title: str = ""
    messages: list[Message] = field(default_factory=list)
    system: str = ""
    draft: str = ""
    id: str = field(default_factory=new_id)
    saved: Saved | None = None

    @property
    def key(self) -> str:
        """Its id in the file."""
        return f"{self.saved.prefix}{self.id}" if self.saved else self.id

    @property
    def name(self) -> str:
        return self.title or NEW_CHAT

    def add(self, role: str, text: str) -> Message:
        """Append a message; the first prompt gives an untitled chat its title."""
        message = Message.of(role, text)
        self.messages.append(message)
        if role == "user" and not self.title:
            self.title = title_of(text)
        return message

    def last(self, *roles: str) -> Message | None:
        """The last message of one of ``roles``."""
        return next((m for m in reversed(self.messages) if m.role in roles), None)

    def first_read(self) -> int:
        """The index from which on the model reads: the last summary, or after the last cut."""
        starts = [i for i, m in enumerate(self.messages) if m.role == "cut" or m.sums_up]
        return starts[-1] if starts else 0

    def conversation(self, end: int | None = None) -> tuple[ChatMessage, ...]:
        """What the model reads: the system prompt and the messages before index ``end``."""
        system = (ChatMessage("system", self.system),) if self.system else ()
        read = self.messages[self.first_read() : end]
        return system + tuple(sent for message in read for sent in message.sent())

    def fork(self, end: int, kind: str) -> Chat:
        """A new chat with copies of the messages before index ``end``; ``kind`` opens its title,
        where a narrow tab still shows it, in place of the kind that this chat itself is."""
        of = next((self.name[len(k) :] for k in _KINDS if self.name.startswith(k)), self.name)
        before = [m for m in self.messages[:end] if not m.queued and m.role not in OWN_LINES]
        return Chat(
            title=f"{kind}: {of}",
            messages=[message.copy() for message in before],
            system=self.system,
        )


def title_of(text: str) -> str:
    """A tab's title from a prompt: its first line's first words."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    words = " ".join(line.split())
    return _cut(words, _TITLE_LENGTH)


def parted_title(title: str) -> str:
    """Of a copy beside its original: "sky (2)", "sky (3)" of that; "" where there is none."""
    numbered = re.search(r" \(([2-9])\)$", title)
    if numbered is None:
        return f"{title} (2)" if title else ""
    return f"{title[: numbered.start()]} ({int(numbered[1]) + 1})"


def given_title(text: str) -> str:
    """A title as a person gives it, on one line; "" where it shows nothing."""
    return _cut(one_line(text), _GIVEN_LENGTH)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
