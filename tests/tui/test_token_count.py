"""The live count of what is typed, by the engine's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual import events

from pkvchat.messages import ChatMessage, Counted, CountTokens, Delta, Finished, Started

OpenApp = Callable[..., Any]


def asked(window: Any) -> list[CountTokens]:
    return [command for command in window.engine.sent if isinstance(command, CountTokens)]


async def test_an_estimate_stands_in_until_the_engine_has_counted(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press(*"colours")
        await window.shows("about 2 tokens with this, 8,190 left")
        await window.settle(lambda: asked(window))
        (request,) = asked(window)
        assert request.messages == (ChatMessage("user", "colours"),)
        window.say(Counted(window.chat.id, request.number, 33))
        await window.shows(" 33 tokens with this, 8,159 left")
        await window.press("!")
        window.say(Counted(window.chat.id, request.number, 44))  # of what is there no more
        await window.shows("about 2 tokens")
        await window.settle(lambda: len(asked(window)) == 2)
        window.say(Counted(window.chat.id, asked(window)[1].number, 9000))
        await window.shows("9,000 tokens with this, 809 too many")


async def test_the_count_goes_on_while_an_answer_runs(open_app: OpenApp) -> None:
    async with open_app() as window:
        chat = await window.ask("go")
        window.say(Started(chat, 20, 0), Delta(chat, "one", 1))
        await window.press(*"next")
        await window.settle(lambda: "next" in [r.messages[-1].content for r in asked(window)])
        window.say(Counted(chat, asked(window)[-1].number, 40))
        await window.shows("40 tokens with this, 8,152 left")
        before = len(asked(window))
        window.say(Delta(chat, " two", 1), Finished(chat, "stop", 20, 2, 0.1, 1.0))
        await window.settle(lambda: len(asked(window)) > before)
        assert [m.content for m in asked(window)[-1].messages] == ["go", "one two", "next"]


async def test_a_huge_paste_is_asked_about_once_typing_rests(open_app: OpenApp) -> None:
    async with open_app() as window:
        window.app.composer.post_message(events.Paste("word " * 200_000))
        await window.press(*" and more")
        assert not asked(window)
        await window.settle(lambda: asked(window))
        assert len(asked(window)[0].messages[0].content) == 1_000_000 + len(" and more")


async def test_a_command_is_not_counted(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press(*"/show ")
        await window.pilot.pause(0.4)
        assert "with this" not in window.text
        assert not asked(window)
