"""The messages of a chat on the screen: scrolled, long, hidden, hostile."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from textual import events

from pkvchat.messages import Delta, Finished, Started, Steps

OpenApp = Callable[..., Any]

HOSTILE = (
    "[red]x[/] [/nope] \x1b[2J\x1b]52;c;aGk=\x07 a\u202eb\u200bc \x00 \ud800"
    "\n\n[@click=app.quit]q[/]"
)


CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
INVISIBLE = re.compile("[\u202e\u200b]")


async def test_hostile_text_is_drawn_not_obeyed(open_app: OpenApp) -> None:
    async with open_app(HOSTILE) as window:
        window.app.composer.post_message(events.Paste(HOSTILE))
        await window.pilot.pause()
        await window.press("enter")
        await window.settle(lambda: window.text.count("[red]x[/] [/nope]") >= 2)
        assert "[@click=app.quit]q[/]" in window.text
        assert not CONTROLS.findall(window.text)
        assert not INVISIBLE.findall(window.text)


@pytest.mark.parametrize(
    "keys",
    [["f5"], ["ctrl+o"], ["f2"], ["alt+s"], ["f1"], ["ctrl+p"], ["f4"], ["shift+tab"], ["f6"]],
)
async def test_hostile_text_is_drawn_not_obeyed_in_every_screen(
    open_app: OpenApp, store: Any, keys: list[str]
) -> None:
    """In titles, system prompts, models' names, notes."""
    async with open_app(HOSTILE, store=store, system_prompt=HOSTILE) as window:
        window.chat.title = HOSTILE
        await window.send("/system")
        await window.ask("hello")
        window.chat.messages[-1].version.model = HOSTILE
        await window.settle(lambda: not window.app.tab.busy)
        await window.press(*keys)
        await window.pilot.pause(0.2)
        assert window.app.is_running
        assert not CONTROLS.findall(window.text)
        if keys != ["alt+s"]:  # there it is the person's own, to be changed
            assert not INVISIBLE.findall(window.text)


async def test_scrolling_up_reads_in_peace_and_the_end_follows_again(open_app: OpenApp) -> None:
    async with open_app(size=(80, 24)) as window:
        transcript, chat = window.app.transcript, await window.ask("count")
        window.say(Delta(chat, "\n\n".join(f"line {i}" for i in range(100)), 100))
        await window.shows("line 99")
        transcript.focus()
        await window.press("pageup", "pageup")
        place = transcript.scroll_y
        window.say(Delta(chat, "\n\nlast words", 2))
        await window.pilot.pause(0.3)
        assert transcript.scroll_y == place
        assert "last words" not in window.text
        await window.press("end")
        await window.shows("last words")
        window.say(Delta(chat, "\n\nand more", 2))
        await window.shows("and more")


async def test_a_long_chat_opens_at_its_end_and_reads_back_to_its_start(open_app: OpenApp) -> None:
    async with open_app(size=(80, 24)) as window:
        transcript = window.app.transcript

        def lines() -> str:
            return "\n".join(strip.text for strip in transcript._lines)

        for number in range(300):
            window.chat.add("user", f"question {number}")
            window.chat.add("assistant", f"answer {number}").version.reason = "stop"
        await window.press("ctrl+t", "ctrl+pageup")
        await window.shows("answer 299")
        transcript.focus()
        await window.press("home")
        await window.shows("question 0")
        for _ in range(4):  # each reaches the window's end, which then grows
            transcript.scroll_end(animate=False, immediate=True)
            await window.pilot.pause()
        assert "question 30" in lines()
        await window.press("end")
        await window.shows("answer 299")
        for _ in range(4):
            transcript.scroll_to(y=1, animate=False, immediate=True)
            await window.pilot.pause()
        assert "question 270" in lines()
        assert "question 100" not in lines()


async def test_hidden_chats_and_steps_draw_no_transcript(
    open_app: OpenApp, record: Callable[..., Any]
) -> None:
    async with open_app() as window:
        app, chat = window.app, await window.ask("in the back")
        await window.press("ctrl+t")
        await window.settle(lambda: not app._frame_due)
        drawn: list[int] = []
        update = app.transcript.update
        app.transcript.update = lambda: (drawn.append(1), update())
        for number in range(20):
            window.say(Delta(chat, "word ", 1), Steps((record(number),)))
        await window.settle(lambda: app.tabs[0].chat.messages[-1].text.count("word") == 20)
        await window.pilot.pause(0.2)
        assert drawn == []


async def test_notes_of_several_lines_keep_them(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.send("/show parameters")
        await window.shows("· temperature     0.8", "  top_k           40")


async def test_how_an_answer_went_is_wrapped_not_cut(open_app: OpenApp) -> None:
    async with open_app(size=(44, 24)) as window:
        chat = await window.ask("go")
        window.say(Started(chat, 9, 0), Delta(chat, "an answer", 1200))
        window.say(Finished(chat, "length", 9, 1200, 0.25, 31.5))
        await window.shows("1,200 tokens · 31.5 tokens/s", "token limit reached")
