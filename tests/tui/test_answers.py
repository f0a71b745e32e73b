"""Prompts and answers: streamed, stopped, queued, carried on, asked for again, copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.messages import Delta, Finished, Prefilled, Started, Stop
from pkvchat.store import ChatStore

OpenApp = Callable[..., Any]


async def test_a_prompt_is_answered(open_app: OpenApp) -> None:
    brief = "Be brief."
    async with open_app("The **rainbow** is wide.", size=(120, 40), system_prompt=brief) as window:
        await window.send("Colours?")
        await window.shows("The rainbow is wide.", "96.3 tokens/s")
        assert window.prompts() == [[brief, "Colours?"]]
        await window.shows("SmolLM2", "split ×4", "one long row", "65 used", "workqueue", "41 µs")


async def test_prefill_shows_how_far_it_is(open_app: OpenApp) -> None:
    async with open_app(size=(100, 24)) as window:
        chat = await window.ask("long")
        window.say(Started(chat, 4000, 0), Prefilled(chat, 1024, 4000))
        await window.shows("1,024 of 4,000 tokens")


async def test_escape_stops_only_this_tab_and_returns_what_was_queued(open_app: OpenApp) -> None:
    async with open_app() as window:
        chat = await window.ask("go")
        window.say(Started(chat, 5, 0), Delta(chat, "partial", 1))
        await window.send("and then this")
        await window.shows("You (queued)")
        await window.press("escape")
        assert Stop(chat) in window.engine.sent
        assert window.app.composer.text == "and then this"
        window.say(Finished(chat, "cancelled", 5, 1, 0.1, 1.0))
        await window.shows("stopped", "partial")
        assert len(window.prompts()) == 1


async def test_a_queued_prompt_follows_the_answer_before_it(open_app: OpenApp) -> None:
    async with open_app() as window:
        chat = await window.ask("one")
        await window.send("two")
        window.say(Delta(chat, "1", 1), Finished(chat, "stop", 5, 1, 0.1, 1.0))
        await window.settle(lambda: len(window.prompts()) == 2)
        assert window.prompts()[1] == ["one", "1", "two"]


@pytest.mark.parametrize("reason", ["length", "cancelled"])
async def test_an_answer_that_was_cut_short_goes_on(open_app: OpenApp, reason: str) -> None:
    async with open_app() as window:
        chat = await window.ask("count")
        window.say(Delta(chat, "1, 2,", 4), Finished(chat, reason, 9, 4, 0.1, 1.0))
        await window.settle(lambda: not window.app.tab.busy)
        await window.press("f9")
        await window.settle(lambda: len(window.prompts()) == 2)
        assert window.prompts()[1] == ["count", "1, 2,"]
        window.say(Started(chat, 13, 12), Delta(chat, " 3", 2))
        await window.shows("1, 2, 3")
        window.say(Finished(chat, "stop", 13, 2, 0.1, 1.0))
        await window.shows("6 tokens")
        await window.send("/continue")  # it ended by itself
        await window.settle(lambda: "no answer was cut short here" in " ".join(window.notes))
        assert len(window.prompts()) == 2


async def test_answers_are_kept_and_switched(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    store.save(talk, 0)
    async with open_app("another", store=store) as window:
        await window.press("ctrl+r")
        await window.shows("‹ 2/2 ›")
        await window.settle(lambda: not window.app.tab.busy)
        await window.press("alt+left")
        await window.shows("‹ 1/2 ›")
        assert window.chat.conversation()[-1].content == "2"


async def test_each_answer_names_the_model_that_wrote_it(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    """Also after a restart, and beside answers from before models were written down."""
    talk.messages[1].version.model = "OldModel-1B [x]"
    store.save(talk, 0)
    async with open_app("three", store=store) as window:
        await window.ask("three?")
        await window.settle(lambda: not window.app.tab.busy)
        await window.shows("● OldModel-1B [x]", "● SmolLM2-135M-Instruct")
        assert window.chat.messages[-1].version.model == "SmolLM2-135M-Instruct"


async def test_reasoning_is_folded_until_asked_for(open_app: OpenApp, store: ChatStore) -> None:
    chat = Chat()
    chat.add("assistant", "<think>let me see now</think>It is blue.").version.reason = "stop"
    store.save(chat, 0)
    async with open_app(store=store) as window:
        await window.shows("thought, 4 words", "It is blue.")
        assert "let me see" not in window.text
        await window.press("f7")
        await window.shows("let me see now")
        await window.press("f6")
        await window.shows("<think>let")


@pytest.fixture
def clipboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a stand-in for the desktop's clipboard program writes."""
    program = tmp_path / "xclip"
    program.write_text(f"#!/bin/sh\n/bin/cat > {tmp_path}/copied\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return tmp_path / "copied"


async def test_copying_takes_exact_text(
    open_app: OpenApp, store: ChatStore, talk: Chat, clipboard: Path
) -> None:
    """By the terminal (OSC 52) and by the desktop's program."""
    text = "see\n```python\nx = [1]\n```\nor\n```\ny\n```\ndone"
    talk.add("assistant", text).version.reason = "stop"
    store.save(talk, 0)
    async with open_app(store=store) as window:
        for command, copied in (
            ("/copy", text),
            ("/code", "y\n"),
            ("/code 1", "x = [1]\n"),
            (
                "/copychat",
                f"user: one\n\nassistant: 1\n\nuser: two\n\nassistant: 2\n\nassistant: {text}",
            ),
        ):
            await window.send(command)
            assert window.app.clipboard == copied
            await window.settle(lambda: clipboard.exists() and clipboard.read_text() == copied)  # noqa: B023
        await window.press("shift+tab", "up", "c")
        assert window.app.clipboard == "2"
