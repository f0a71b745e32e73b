"""Plain mode's chats, and its engine where a start of it fails or is interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

import pkvchat.conversation
from pkvchat.chats import Chat
from pkvchat.commands.command import CommandError
from pkvchat.conversation import Conversation
from pkvchat.errors import ChatError
from pkvchat.options import EngineOptions
from pkvchat.plain import COMMANDS
from pkvchat.sampling import SamplingParams
from pkvchat.service import ChatService
from pkvchat.settings import Settings
from pkvchat.store import ChatStore, store_path

FullDisk = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def shared() -> Iterator[Conversation]:
    made = Conversation(Settings(engine=EngineOptions(context=64)), COMMANDS)
    yield made
    made.close()


@pytest.fixture
def conversation(shared: Conversation) -> Conversation:
    """With an engine, whatever the test before did to it."""
    shared.revive()
    return shared


def run(conversation: Conversation, line: str) -> None:
    command, argument = COMMANDS.find(line)
    command.run(conversation, argument)


@pytest.mark.parametrize("at_a_terminal", [True, False])
@pytest.mark.parametrize("line", ["/context 32", "/bench"])
def test_ctrl_c_ends_a_command_and_without_a_terminal_all(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch, line: str, at_a_terminal: bool
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pkvchat.conversation, "with_person", lambda: at_a_terminal)
        patch.setattr(pkvchat.conversation, "ChatService", interrupted)
        patch.setattr(ChatService, "poll", interrupted)
        with pytest.raises(CommandError if at_a_terminal else KeyboardInterrupt) as ended:
            run(conversation, line)
    assert ("interrupted; no engine runs: /regen" in str(ended.value)) is at_a_terminal
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
    for line in ("/policy adaptive", "/bench"):
        with pytest.raises((ChatError, CommandError), match="engine"):
            run(conversation, line)
    with pytest.raises(ChatError, match="no engine runs: /regen starts it again"):
        conversation.answer("hello")
    assert conversation.current.chat.messages == [], "a prompt that was refused is not there"
    run(conversation, "/clear")
    run(conversation, "/regen")
    assert conversation.ready is not None
    assert conversation.ready.context == 64


@pytest.fixture
def said(
    conversation: Conversation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[str], str]:
    """said(line): run a command, and return what came of it; ``tmp_path`` has the saved chats."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def run_and_read(line: str) -> str:
        run(conversation, line)
        return capsys.readouterr().err

    run_and_read("/clear")
    return run_and_read


def test_saved_chats_are_listed_opened_renamed_and_deleted(
    conversation: Conversation, said: Callable[[str], str]
) -> None:
    for title in ("rivers", "birds"):
        conversation.current.chat.add("user", f"about {title}")
        conversation.current.chat.add("assistant", f"{title} are many").version.reason = "stop"
        assert said(f"/rename [{title}]") == f"this is now '[{title}]'\n"
        said("/save")
        said("/clear")
    listed = said("/chats").splitlines()
    assert [line.split("  ")[:3] for line in listed[:2]] == [
        ["", "1", "[birds]"],
        ["", "2", "[rivers]"],
    ]
    assert said("/chats about RIVERS").startswith("  1  [rivers]  just now  … about rivers")
    assert said("/open 1") == "this is now '[rivers]'\nrivers are many\n"
    assert conversation.current.chat.messages[0].text == "about rivers"
    with pytest.raises(CommandError, match="that is the chat you are in"):
        said("/open 1")
    assert said("/delete") == "deleted '[rivers]'\n"
    assert conversation.current.chat.messages == []
    assert "rivers" not in said("/chats")
    with pytest.raises(CommandError, match="no saved chat holds that"):
        said("/chats about rivers")


def test_a_chat_that_the_app_shows_is_not_written_over(
    conversation: Conversation, said: Callable[[str], str]
) -> None:
    app, chat = ChatStore(store_path()), Chat()
    chat.add("user", "hello one")
    app.save(chat, tab=0)
    said("/chats")
    assert "note: another pkvchat shows it" in said("/open 1")
    with pytest.raises(CommandError, match="another pkvchat shows 'hello one': delete it there"):
        said("/delete")
    said("/save")
    assert [again.id for again in app.open_chats()] == [chat.id], "its tab is the app's"
    chat.add("user", "from the app")
    app.save(chat, tab=0)
    conversation.current.chat.add("user", "from here")
    assert "yours is now saved as a chat of its own" in said("/save")
    app.close()
    assert len(said("/chats hello one").splitlines()) == 3
    said("/delete")
    reader = ChatStore(store_path())
    assert [m.text for m in reader.load(chat.id).messages] == ["hello one", "from the app"]
    assert len(reader.find("")) == 1
    with pytest.raises(CommandError, match="no saved chat holds that"):
        said("/chats from here")


def test_a_prompt_that_waited_in_a_saved_chat_is_answered_before_what_is_typed(
    conversation: Conversation, said: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "params", SamplingParams(temperature=0.0, max_tokens=2))
    conversation.current.chat.add("user", "waiting").queued = True
    said("/save")
    said("/clear")
    said("/chats")
    said("/open 1")
    conversation.answer("typed")
    turns = [(m.role, m.text) for m in conversation.current.chat.messages]
    assert [role for role, _ in turns] == ["user", "assistant"] * 2
    assert [text for _, text in turns[::2]] == ["waiting", "typed"]


def test_a_damaged_file_that_was_set_aside_is_told(said: Callable[[str], str]) -> None:
    store_path().parent.mkdir()
    store_path().write_bytes(b"not a database at all" * 100)
    with pytest.raises(CommandError, match="no chat is saved yet"):
        said("/chats")
    assert "note: chats.db was damaged" in said("/system")


def test_a_full_disk_stops_what_writes_alone(
    conversation: Conversation, said: Callable[[str], str], full_disk: FullDisk
) -> None:
    conversation.current.chat.add("user", "rivers")
    said("/save")
    said("/clear")
    conversation.current.chat.add("user", "birds")
    with full_disk():
        assert "rivers" in said("/chats")
        with pytest.raises(ChatError, match="/export FILE keeps this chat, /clear drops it"):
            said("/open 1")
        assert "what was said goes on in the new chat alone" in said("/fork")
        assert conversation.current.chat.name == "fork: birds"
        assert conversation.current.chat.messages[0].text == "birds"
        assert said("/delete") == "deleted 'fork: birds'\n"
        assert said("/open 1") == "this is now 'rivers'\n"
        with pytest.raises(CommandError, match="no saved chat holds that"):
            said("/chats birds")


def test_a_title_can_be_seen_and_has_an_end(
    conversation: Conversation, said: Callable[[str], str]
) -> None:
    said("/rename mine")
    with pytest.raises(CommandError, match="needs a title that can be seen"):
        said("/rename \u200b\u3164")
    assert conversation.current.chat.title == "mine"
    said("/rename " + "long" * 250_000)
    assert len(conversation.current.chat.title) == 200
    said("/clear")


def test_only_what_the_help_says_is_needed_is(said: Callable[[str], str]) -> None:
    with pytest.raises(CommandError):  # nobody is there to be asked for it
        said("/rename")
    for command in COMMANDS.by_slash.values():
        if command.argument[:1] not in ("", "["):
            with pytest.raises(CommandError, match=f"/{command.slash} "):
                said(f"/{command.slash}")
    said("/policy")
    said("/system")
    assert "/policy [NAME]" in said("/help")


@pytest.mark.parametrize("line", ["/rename", "/open", "/open 1", "/open birds", "/chats", "/save"])
def test_what_cannot_be_done_with_no_chats_is_told(said: Callable[[str], str], line: str) -> None:
    said("/delete")  # of a chat that was never saved
    with pytest.raises(CommandError):
        said(line)


def test_what_joins_letters_and_emoji_outlasts_the_parts_of_a_stream(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal; what joins nothing is left out there."""
    monkeypatch.setattr(conversation, "_raw", False)
    for part in ("👩", "\u200d", "👧 \u0645\u06cc\u200c", "\u062ex\u200d", "\n"):
        conversation._write(part)
    assert capsys.readouterr().out == "👩\u200d👧 \u0645\u06cc\u200c\u062ex\n"


def test_a_note_does_not_break_into_the_answer(
    conversation: Conversation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(conversation, "/clear")
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    for words in range(64, 0, -1):  # the most that are taken leave room for a token or two
        with suppress(ChatError):
            assert conversation.answer("one " * words) == "context"
            break
    _, *ends = capsys.readouterr().out.rpartition("\nnote: context full")
    assert ends == ["\nnote: context full", ", 64 tokens\n"]
