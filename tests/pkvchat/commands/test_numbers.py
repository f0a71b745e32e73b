"""Numbers after a slash, as people type them and as nobody would."""

from __future__ import annotations

from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.commands import answers, context
from pkvchat.commands.command import CommandError, whole
from pkvchat.open_chat import OpenChat

ABSURD = ["-1", "1.5", "nan", "1e400", "x", "9" * 5000, "\N{SUPERSCRIPT TWO}"]


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("12", 12), ("", -1), ("9" * 20, -1)])
def test_whole(text: str, number: int) -> None:
    assert whole(text) == number


class Turns:
    """As much of a Host as these commands need: a chat of four turns, the last with code."""

    def __init__(self) -> None:
        chat = Chat()
        for number in range(4):
            chat.add("user", f"question {number}")
            chat.add("assistant", "```\ncode\n```").version.reason = "stop"
        self.current = OpenChat(chat)

    def chosen(self) -> Any:
        return self.current.chat.messages[-1]


@pytest.mark.parametrize("number", ABSURD)
@pytest.mark.parametrize("command", [context.drop, context.context, answers.copy_code])
def test_what_is_no_number_is_refused_and_changes_nothing(command: Any, number: str) -> None:
    host = Turns()
    with pytest.raises(CommandError):
        command(host, number)
    assert len(host.current.chat.messages) == 8
