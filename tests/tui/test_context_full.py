"""What a person is asked when a chat has filled its context, and what each choice does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.messages import Delta, Event, Failed, Finished, Ready, Started, Submit
from pkvchat.tui.context_full import ContextFull

OpenApp = Callable[..., Any]


def cut_short(submit: Submit) -> list[Event]:
    """The answer to "three" meets the end of the context; nothing else is answered."""
    chat = submit.chat_id
    if submit.messages[-1].content != "three":
        return []
    return [
        Started(chat, 8000, 0),
        Delta(chat, "cut sh", 192),
        Finished(chat, "context", 8000, 192, 0.1, 1.0),
    ]


@pytest.fixture
def roomy(ready: Ready) -> Ready:
    return replace(ready, model_context=32768, memory_context=20000)


async def fill(window: Any, ready: Ready, talk: Chat) -> None:
    """Ask "three" after ``talk``, up to the question what to do."""
    window.say(ready)
    await window.settle(lambda: window.app.session.state.ready)
    window.chat.messages += talk.messages
    await window.ask("three")
    await window.settle(lambda: isinstance(window.app.screen, ContextFull))


async def test_a_copy_goes_on_from_a_summary(open_app: OpenApp, roomy: Ready, talk: Chat) -> None:
    async with open_app(on_submit=cut_short, loaded=False) as window:
        await fill(window, roomy, talk)
        await window.shows("The context of 8,192 tokens is full.")
        source = window.chat
        await window.press("enter")
        await window.settle(lambda: len(window.prompts()) == 2)
        copy = window.engine.submits()[1].chat_id
        assert copy == window.chat.id != source.id
        assert all(word in window.prompts()[1][0] for word in ("User: one", "cut sh"))
        await window.shows("the model sums up what is above")
        window.say(
            Started(copy, 300, 0),
            Delta(copy, "They counted.", 5),
            Finished(copy, "stop", 300, 5, 0.1, 9.0),
        )
        await window.shows("reads on from this summary")
        await window.ask("and now?")
        assert window.prompts()[2] == [
            "Sum up our conversation so far.",
            "They counted.",
            "and now?",
        ]
        assert [m.text for m in source.messages if m.role == "user"] == ["one", "two", "three"]


async def test_the_oldest_turns_are_dropped_and_that_is_said(
    open_app: OpenApp, roomy: Ready, talk: Chat
) -> None:
    async with open_app(on_submit=cut_short, loaded=False) as window:
        await fill(window, roomy, talk)
        await window.press("down", "enter")
        await window.shows("the model no longer reads the turn above")
        read = [message.content for message in window.chat.conversation()]
        assert read == ["two", "2", "three", "cut sh"]
        assert window.chat.messages[0].text == "one"


async def test_the_limit_is_raised_as_far_as_model_and_memory_allow(
    open_app: OpenApp, roomy: Ready, talk: Chat
) -> None:
    async with open_app(on_submit=cut_short, loaded=False) as window:
        await fill(window, roomy, talk)
        await window.shows("Raise the limit to 16,384 tokens")
        await window.press("down", "down", "enter")
        await window.settle(lambda: window.engine.starts == 2)
        assert window.engine.options.context == 16384


@pytest.mark.parametrize(
    ("model", "memory", "why"),
    [
        (8192, 20000, "the model takes no more than 8,192 tokens"),
        (32768, 8200, "Raise the limit to 8,200 tokens"),
        (32768, 8192, "there is memory for no more than 8,192 tokens"),
    ],
)
async def test_where_the_limit_cannot_be_raised_the_reason_is_said(
    open_app: OpenApp, ready: Ready, talk: Chat, model: int, memory: int, why: str
) -> None:
    async with open_app(on_submit=cut_short, loaded=False) as window:
        await fill(window, replace(ready, model_context=model, memory_context=memory), talk)
        await window.shows(why)


async def test_not_now_changes_nothing(open_app: OpenApp, roomy: Ready, talk: Chat) -> None:
    async with open_app(on_submit=cut_short, loaded=False) as window:
        await fill(window, roomy, talk)
        before = window.chat.conversation()
        await window.press("escape")
        assert len(window.app.screen_stack) == 1
        assert window.chat.conversation() == before
        await window.shows("the context is full")


async def test_a_refused_prompt_goes_along_to_the_copy(
    open_app: OpenApp, roomy: Ready, talk: Chat
) -> None:
    def refuse(submit: Submit) -> list[Event]:
        full = submit.messages[-1].content == "three"
        line = "808 tokens too many"
        return [Failed(submit.chat_id, line, context_full=True)] if full else []

    async with open_app(on_submit=refuse, loaded=False) as window:
        await fill(window, roomy, talk)
        assert window.app.composer.text == "three"
        await window.press("enter")
        await window.settle(lambda: len(window.prompts()) == 2)
        assert window.app.composer.text == "three"
        await window.press("ctrl+pageup")
        assert window.app.composer.text == ""


@pytest.mark.parametrize("turns", [0, 4])
async def test_a_prompt_that_is_too_long_by_itself_is_only_said_to_be(
    open_app: OpenApp, talk: Chat, turns: int
) -> None:
    line = "the prompt has 26732 tokens, 18541 too many for a context of 8192: shorten it"

    def refuse(submit: Submit) -> list[Event]:
        return [Failed(submit.chat_id, line, context_full=True)]

    async with open_app(on_submit=refuse) as window:
        window.chat.messages += talk.messages[:turns]
        window.app.composer.take("word " * 19_600)
        await window.press("enter")
        await window.shows("18541 too many")
        await window.settle(lambda: not window.app.tab.busy)
        assert len(window.app.screen_stack) == 1
        assert window.app.composer.full_text == "word " * 19_600


async def test_who_types_is_not_interrupted(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.ask("three")
        await window.press(*"and")
        window.say(*cut_short(window.engine.submits()[0]))
        await window.shows("the context is full")
        await window.press(*" so")
        assert window.app.composer.text == "and so"


async def test_at_four_fifths_a_line_says_so_once(open_app: OpenApp) -> None:
    def nearly(submit: Submit) -> list[Event]:
        return [
            Started(submit.chat_id, 6600, 0),
            Delta(submit.chat_id, "long", 100),
            Finished(submit.chat_id, "stop", 6600, 100, 0.1, 1.0),
        ]

    async with open_app(on_submit=nearly) as window:
        for _ in range(2):
            await window.ask("go")
            await window.settle(lambda: not window.app.tab.busy)
        (note,) = (m.text for m in window.chat.messages if m.role == "note")
        assert note.startswith("6,600 of 8,192 tokens of context used. /summarise")
