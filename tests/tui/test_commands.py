"""Commands by key, slash and palette, and chats that last, under Textual's Pilot."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual import events

from pkvchat.chats import Chat
from pkvchat.messages import Benched, Close, Delta, Finished, Fork, Ready, RunBench, SetPolicy
from pkvchat.store import ChatStore
from pkvchat.tui import registry
from pkvchat.tui.inspector import Inspector

Make = Callable[..., Any]


def talk() -> Chat:
    """Two prompts, the last of which was answered twice."""
    chat = Chat()
    for role, text in [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2")]:
        chat.add(role, text).version.reason = "stop"
    return chat


@pytest.fixture
def store(tmp_path: Path) -> ChatStore:
    return ChatStore(tmp_path / "chats.db")


async def test_chats_come_back_as_they_were_left(
    scripted: Make,
    make_app: Make,
    answering: Make,
    ready: Ready,
    send: Make,
    settle: Make,
    tmp_path: Path,
) -> None:
    engine = scripted(answering("blue"))
    app = make_app(engine, ChatStore(tmp_path / "chats.db"))
    async with app.run_test() as pilot:
        engine.say(ready)
        await send(pilot, "sky?")
        await settle(pilot, lambda: app.tab.chat.messages and not app.tab.busy)
        await pilot.press("ctrl+t", *"draft", "ctrl+t", "ctrl+pageup")
    again = make_app(scripted(), ChatStore(tmp_path / "chats.db"))
    async with again.run_test() as pilot:
        assert [tab.chat.name for tab in again.tabs] == ["sky?", "New chat", "New chat"]
        assert [m.text for m in again.tabs[0].chat.messages] == ["sky?", "blue"]
        await pilot.press("ctrl+pagedown")
        assert again.composer.text == "draft"
        await pilot.press("up")
        assert again.composer.text == "sky?"


async def test_a_streaming_answer_is_on_disk_within_a_second(
    scripted: Make, make_app: Make, ready: Ready, send: Make, settle: Make, tmp_path: Path
) -> None:
    engine = scripted()
    app = make_app(engine, ChatStore(tmp_path / "chats.db"))
    async with app.run_test() as pilot:
        engine.say(ready)
        await send(pilot, "go")
        await settle(pilot, lambda: engine.submits())
        engine.say(Delta(app.tab.chat.id, "half an answer", 3))
        reader = ChatStore(tmp_path / "chats.db")
        await settle(pilot, lambda: reader.find("half an answer"))
        (chat,) = reader.open_chats()
        assert chat.messages[-1].version.reason == "quit"


async def test_a_second_app_leaves_the_first_ones_tabs_alone(
    scripted: Make, make_app: Make, tmp_path: Path
) -> None:
    first = ChatStore(tmp_path / "chats.db")
    first.save(talk(), 0)
    app = make_app(scripted(), ChatStore(tmp_path / "chats.db"))
    async with app.run_test():
        assert [tab.chat.messages for tab in app.tabs] == [[]]


async def test_a_closed_chat_opens_again_and_can_be_found(
    scripted: Make, make_app: Make, store: ChatStore, settle: Make, screen_text: Make
) -> None:
    store.save(talk(), 0)
    engine = scripted()
    app = make_app(engine, store)
    async with app.run_test(size=(100, 30)) as pilot:
        chat_id = app.tab.chat.id
        await pilot.press("ctrl+w")
        assert Close(chat_id) in engine.sent
        assert app.tab.chat.messages == []
        await pilot.press("alt+t")
        assert app.tab.chat.id == chat_id
        await pilot.press("ctrl+w", "ctrl+o")
        await settle(pilot, lambda: "one  just now" in screen_text(app))
        await pilot.press(*"tw")
        await settle(pilot, lambda: "… two" in screen_text(app))
        await pilot.press("down", "enter")
        await settle(pilot, lambda: app.tab.chat.id == chat_id)


async def test_fork_and_edit_at_a_message_leave_the_chat_whole(
    scripted: Make, make_app: Make, store: ChatStore
) -> None:
    store.save(talk(), 0)
    engine = scripted()
    app = make_app(engine, store)
    async with app.run_test(size=(100, 30)) as pilot:
        source = app.tab.chat
        await pilot.press("shift+tab", "up", "up")
        assert app.transcript.cursor == 1
        await pilot.press("f")
        assert [m.text for m in app.tab.chat.messages] == ["one", "1"]
        assert Fork(source.id, app.tab.chat.id) in engine.sent
        await pilot.press("ctrl+pageup", "shift+tab", "up", "e")
        assert [m.text for m in app.tab.chat.messages] == ["one", "1"]
        assert app.composer.text == "two"
        assert len(source.messages) == 4
        assert len(app.tabs) == 3


async def test_answers_are_kept_and_switched(
    scripted: Make, make_app: Make, ready: Ready, store: ChatStore, settle: Make, screen_text: Make
) -> None:
    store.save(talk(), 0)
    engine = scripted(
        lambda s: [Delta(s.chat_id, "another", 1), Finished(s.chat_id, "stop", 9, 1, 0.1, 1.0)]
    )
    app = make_app(engine, store)
    async with app.run_test(size=(100, 30)) as pilot:
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        await pilot.press("ctrl+r")
        await settle(pilot, lambda: "‹ 2/2 ›" in screen_text(app))
        await pilot.press("alt+left")
        await settle(pilot, lambda: "‹ 1/2 ›" in screen_text(app))
        assert app.tab.chat.messages[-1].text == "2"
        assert app.tab.chat.conversation()[-1].content == "2"


async def test_copying_takes_exact_text(scripted: Make, make_app: Make, store: ChatStore) -> None:
    chat = talk()
    chat.add("assistant", "see\n```python\nx = [1]\n```\ndone").version.reason = "stop"
    store.save(chat, 0)
    app = make_app(scripted(), store)
    async with app.run_test() as pilot:
        await pilot.press("alt+c")
        assert app.clipboard == "see\n```python\nx = [1]\n```\ndone"
        await pilot.press("alt+b")
        assert app.clipboard == "x = [1]\n"


async def test_tabs_move_and_take_names(
    scripted: Make, make_app: Make, store: ChatStore, send: Make
) -> None:
    store.save(talk(), 0)
    app = make_app(scripted(), store)
    async with app.run_test() as pilot:
        await pilot.press("ctrl+t", "alt+pageup")
        assert [tab.chat.name for tab in app.tabs] == ["New chat", "one"]
        await pilot.press("f2", *"mine", "enter")
        assert app.tabs[0].chat.name == "mine"
        await send(pilot, "/rename yours")
        assert app.tab.chat.name == "yours"
        await send(pilot, "/duplicate")  # of an empty chat: said, not done
        assert len(app.tabs) == 2
        await pilot.press("alt+2")
        await send(pilot, "/duplicate")
        assert app.tab.chat.name == "copy: one"


async def test_slash_commands_are_run_and_never_sent(
    scripted: Make, make_app: Make, ready: Ready, send: Make, settle: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(100, 30)) as pilot:
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        await send(pilot, "/set parameter temp 0.1")
        assert app.session.params.temperature == 0.1
        await send(pilot, "/set top_k 7")
        assert app.session.params.top_k == 7
        await send(pilot, "/policy forced-sdpa")
        assert engine.sent[-1] == SetPolicy("forced-sdpa")
        await send(pilot, "/system Be brief.")
        assert app.tab.chat.system == "Be brief."
        await send(pilot, "/nosuch thing")
        assert app.composer.text == "/nosuch thing"
        app.composer.take("")
        await send(pilot, "//etc is a folder?")
        assert [m.content for m in engine.submits()[0].messages] == [
            "Be brief.",
            "/etc is a folder?",
        ]
        assert len(engine.submits()) == 1


@pytest.mark.parametrize(
    "line",
    [
        "/set",
        "/set warmth 9",
        "/set temp hot",
        "/read no-such-file",
        "/read /dev/zero",
        "/export",
        "/load x",
        "/model",
        "/context many",
        "/drop",
        "/theme beige",
        "/show all",
        "/stats",
        "/glob /etc/*",
        "/code",
    ],
)
async def test_a_command_that_cannot_be_done_says_so_in_one_line(
    scripted: Make, make_app: Make, send: Make, settle: Make, line: str
) -> None:
    app = make_app(scripted())
    async with app.run_test(size=(100, 30)) as pilot:
        before = len(app._notifications)
        await send(pilot, line)
        await settle(pilot, lambda: len(app._notifications) > before)
        (notification,) = list(app._notifications)[before:]
        assert "\n" not in notification.message


async def test_every_command_with_a_key_can_be_run_in_an_empty_chat(
    scripted: Make, make_app: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "false")
    app = make_app(scripted())
    async with app.run_test(size=(100, 30)) as pilot:
        for command in registry.COMMANDS.by_name.values():
            if command.keys and command.name not in ("quit", "interrupt", "editor"):
                await pilot.press(command.keys.split(",")[0])
                await pilot.pause()
        assert app.is_running


async def test_files_go_into_the_prompt_and_names_complete(
    scripted: Make, make_app: Make, send: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("remember\x1b[2J", encoding="utf-8")
    (tmp_path / "more.md").write_text("and this", encoding="utf-8")
    app = make_app(scripted())
    async with app.run_test() as pilot:
        await pilot.press(*"/rea", "tab")
        assert app.composer.text == "/read "
        await pilot.press("n", "tab")
        assert app.composer.text == "/read notes.txt "
        await pilot.press("enter")
        assert app.composer.text == "notes.txt:\n```\nremember[2J\n```\n"
        app.composer.take("")
        await send(pilot, "/glob *.md")
        assert "and this" in app.composer.text


async def test_a_chat_goes_to_a_file_and_back(
    scripted: Make, make_app: Make, send: Make, store: ChatStore, tmp_path: Path
) -> None:
    store.save(talk(), 0)
    app = make_app(scripted(), store)
    async with app.run_test() as pilot:
        await send(pilot, f"/export {tmp_path}/chat.json")
        assert json.loads((tmp_path / "chat.json").read_text())["messages"][3]["content"] == "2"
        await send(pilot, f"/load {tmp_path}/chat.json")
        assert [m.text for m in app.tab.chat.messages] == ["one", "1", "two", "2"]
        assert len(app.tabs) == 2


async def test_history_walks_back_and_returns_what_was_typed(
    scripted: Make, make_app: Make, answering: Make, ready: Ready, send: Make, settle: Make
) -> None:
    engine = scripted(answering("ok"))
    app = make_app(engine)
    async with app.run_test() as pilot:
        engine.say(ready)
        for text in ("first", "second"):
            await send(pilot, text)
            await settle(pilot, lambda: not app.tab.busy)
        await pilot.press(*"third", "up", "up")
        assert app.composer.text == "first"
        await pilot.press("up", "down", "down")
        assert app.composer.text == "third"


async def test_a_huge_paste_is_folded_on_screen_and_sent_whole(
    scripted: Make, make_app: Make, ready: Ready, settle: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    huge = "x" * 1_000_000
    async with app.run_test() as pilot:
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        await pilot.press(*"see ")
        app.composer.post_message(events.Paste(huge))
        await pilot.pause()
        assert app.composer.text == "see [paste 1: 1,000,000 characters]"
        await pilot.press("ctrl+t", "ctrl+pageup")
        assert app.composer.full_text == "see " + huge
        await pilot.press("enter")
        await settle(pilot, lambda: engine.submits())
        assert engine.submits()[0].messages[0].content == "see " + huge


async def test_the_prompt_can_be_written_in_an_editor(
    scripted: Make, make_app: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "ed"
    script.write_text('#!/bin/sh\nprintf " and more" >> "$1"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", os.fspath(script))
    app = make_app(scripted())
    async with app.run_test() as pilot:
        monkeypatch.setattr(app, "suspend", _no_terminal)
        await pilot.press(*"text", "ctrl+g")
        assert app.composer.text == "text and more"


class _no_terminal:
    """In place of App.suspend, which the headless driver cannot do."""

    def __enter__(self) -> None: ...
    def __exit__(self, *exc: object) -> None: ...


async def test_the_palette_runs_commands(
    scripted: Make, make_app: Make, settle: Make, screen_text: Make
) -> None:
    app = make_app(scripted())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("ctrl+p", *"new chat")
        await settle(pilot, lambda: "new chat  ^T" in screen_text(app))
        await pilot.press("down", "enter")
        await settle(pilot, lambda: len(app.tabs) == 2)
        await pilot.press("ctrl+p", "escape")
        assert len(app.screen_stack) == 1


async def test_help_lists_the_keys_in_force(
    scripted: Make, make_app: Make, settle: Make, screen_text: Make
) -> None:
    app = make_app(scripted(), keys={"new_chat": "ctrl+n"})
    async with app.run_test(size=(100, 60)) as pilot:
        await pilot.press("f1")
        await settle(pilot, lambda: "/policy NAME" in screen_text(app))
        assert "^N" in screen_text(app)
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


async def test_the_inspector_shows_filters_and_saves_steps(
    scripted: Make,
    make_app: Make,
    record: Make,
    settle: Make,
    screen_text: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app(scripted())
    async with app.run_test(size=(120, 40)) as pilot:
        app.session.meter.add([record(1, "split"), record(2, "sdpa", reason="few [rows]")])
        await pilot.press("f4")
        await settle(pilot, lambda: "few [rows]" in screen_text(app))
        assert isinstance(app.screen, Inspector)
        for fact in ("1,024", "no task list: 64 pages gathered", "130.0 µs", "65 of 512 used"):
            assert fact in screen_text(app)
        await pilot.press("f")
        await settle(pilot, lambda: "1 steps, sdpa" in screen_text(app))
        await pilot.press("s", "space")
        saved = Path("steps.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["step"] for line in saved] == [2]
        app.session.meter.add([record(3, "sdpa")])
        await pilot.pause(0.6)
        assert "1 steps, sdpa, paused" in screen_text(app)
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


async def test_a_bench_prints_its_table_into_the_chat(
    scripted: Make, make_app: Make, ready: Ready, send: Make, settle: Make, screen_text: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(100, 30)) as pilot:
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        await send(pilot, "/bench")
        assert engine.sent[-1] == RunBench()
        engine.say(Benched("test     tokens/s\npp128       712.0"))
        await settle(pilot, lambda: "pp128       712.0" in screen_text(app))


async def test_reasoning_is_folded_until_asked_for(
    scripted: Make, make_app: Make, store: ChatStore, settle: Make, screen_text: Make
) -> None:
    chat = Chat()
    chat.add("assistant", "<think>let me see now</think>It is blue.").version.reason = "stop"
    store.save(chat, 0)
    app = make_app(scripted(), store)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: "thought, 4 words" in screen_text(app))
        assert "It is blue." in screen_text(app)
        assert "let me see" not in screen_text(app)
        await pilot.press("f7")
        await settle(pilot, lambda: "let me see now" in screen_text(app))
        await pilot.press("f6")
        await settle(pilot, lambda: "<think>let" in screen_text(app))
