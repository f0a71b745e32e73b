"""Plain mode's engine, where a start of it fails or is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pkvchat.conversation
from pkvchat.commands import COMMANDS
from pkvchat.commands.command import CommandError
from pkvchat.commands.table import CommandTable
from pkvchat.conversation import Conversation
from pkvchat.errors import ChatError
from pkvchat.options import EngineOptions
from pkvchat.settings import Settings


@pytest.fixture(scope="module")
def shared() -> Iterator[Conversation]:
    made = Conversation(Settings(engine=EngineOptions(context=64)), CommandTable(COMMANDS))
    yield made
    made.close()


@pytest.fixture
def conversation(shared: Conversation) -> Conversation:
    """With an engine, whatever the test before did to it."""
    shared.revive()
    return shared


def run(conversation: Conversation, line: str) -> None:
    command, argument = conversation._commands.find(line)
    command.run(conversation, argument)


def test_a_restart_that_is_interrupted(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pkvchat.conversation, "ChatService", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(conversation, "/context 32")
    assert conversation.ready is None
    conversation.close()  # as the program's end does


def test_a_model_that_does_not_start_leaves_the_one_before(
    conversation: Conversation, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=r"nowhere\.gguf"):
        run(conversation, f"/model {tmp_path}/nowhere.gguf")
    assert conversation.ready is not None
    assert conversation.ready.context == 64


def test_no_engine_refuses_in_one_line_and_starts_again(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the new one nor the one before it starts, say for want of memory."""

    def refuse(options: EngineOptions, _: object) -> None:
        raise ValueError(f"no room for {options.context} tokens")

    with monkeypatch.context() as patch:
        patch.setattr(pkvchat.conversation, "ChatService", refuse)
        both = "no room for 32 tokens; nor does the engine from before: no room for 64 tokens"
        with pytest.raises(CommandError, match=both):
            run(conversation, "/context 32")
        with pytest.raises(ChatError, match="no room for 64 tokens"):
            run(conversation, "/regen")
    for line in ("/policy adaptive", "/bench 8 2"):
        with pytest.raises((ChatError, CommandError), match="engine"):
            run(conversation, line)
    with pytest.raises(ChatError, match="no engine runs: /regen starts it again"):
        conversation.answer("hello")
    assert conversation.current.chat.messages == [], "a prompt that was refused is not there"
    run(conversation, "/clear")
    run(conversation, "/regen")
    assert conversation.ready is not None
    assert conversation.ready.context == 64
