"""What the shared commands work on."""

from __future__ import annotations

from typing import Protocol

from pkvchat.chats import Chat, Message
from pkvchat.messages import Ready, Request
from pkvchat.meter import Meter
from pkvchat.open_chat import OpenChat
from pkvchat.sampling import SamplingParams


class Host(Protocol):
    """The app, with its active chat, or plain mode, with its only one.

    params: for the answers from now on. ready: what the engine is; None while it loads or is dead.
    """

    params: SamplingParams

    @property
    def current(self) -> OpenChat: ...

    @property
    def ready(self) -> Ready | None: ...

    @property
    def policy(self) -> str: ...

    @property
    def meter(self) -> Meter: ...

    @property
    def answered(self) -> OpenChat | None:
        """A chat that is being answered, the current one before others."""

    def say(self, text: str) -> None:
        """Lines of the program's own."""

    def send(self, request: Request) -> None:
        """To the engine."""

    def submit(self) -> None:
        """Have the engine answer what the current chat awaits."""

    def restart(self, **changes: object) -> None:
        """Start the engine anew with ``changes`` to its options. Raises CommandError."""

    def revive(self) -> bool:
        """Start a dead engine again; False where it is not dead."""

    def changed(self) -> None:
        """The current chat is to be drawn and saved."""

    def open(self, chat: Chat) -> None:
        """Turn to another chat."""

    def clear(self) -> None:
        """Turn to a fresh chat in place of the current one."""

    def save(self) -> str:
        """Write the current chat down; returns where. Raises ChatError."""

    def rename(self, title: str) -> None:
        """Give the current chat this title, which can be seen."""

    def ask_title(self) -> bool:
        """Have the person asked for the current chat's title; False where that can't be."""

    def find(self, words: str) -> None:
        """List the saved chats that hold ``words``, for a person to open one.

        Raises CommandError.
        """

    def delete(self) -> None:
        """Delete the current chat, from disk too, and turn to another. Raises ChatError."""

    def put_in_prompt(self, text: str) -> None:
        """Set ``text`` before what is being typed."""

    def chosen(self) -> Message:
        """The message that is meant when none is named. Raises CommandError."""

    def place(self) -> int:
        """The index after the message that is meant, the end if none is."""

    def copy(self, text: str, what: str) -> None:
        """To the clipboard. Raises CommandError."""

    def help(self) -> None: ...

    def leave(self) -> None: ...
