"""What a person is asked when a chat has filled its context, and what each choice does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.messages import Delta, Failed, Finished, Ready, Started, Submit
from pkvchat.tui.context_full import ContextFull

Make = Callable[..., Any]
Case = tuple[Any, Any]


def talk() -> Chat:
    chat = Chat()
    for number in range(3):
        chat.add("user", f"question {number}")
        chat.add("assistant", f"answer {number}").version.reason = "stop"
    return chat


def cut_short(submit: Submit) -> list[Any]:
    chat = submit.chat_id
    return [
        Started(chat, 8000, 0),
        Delta(chat, "cut sh", 192),
        Finished(chat, "context", 8000, 192, 0.1, 1.0),
    ]


@pytest.fixture
def roomy(ready: Ready) -> Ready:
    return replace(ready, model_context=32768, memory_context=20000)


async def filled(app: Any, engine: Any, pilot: Any, ready: Ready, settle: Make, send: Make) -> None:
    """A chat of four turns whose last answer met the end of the context."""
    app.tab.chat.messages += talk().messages
    engine.say(ready)
    await settle(pilot, lambda: app.session.state.ready)
    await send(pilot, "question 3")
    await settle(pilot, lambda: isinstance(app.screen, ContextFull))


async def test_a_copy_goes_on_from_a_summary(
    scripted: Make, make_app: Make, roomy: Ready, settle: Make, send: Make, screen_text: Make
) -> None:
    answers = [cut_short]
    engine = scripted(lambda submit: answers.pop()(submit) if answers else [])
    app = make_app(engine)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(app, engine, pilot, roomy, settle, send)
        assert "The context of 8,192 tokens is full." in screen_text(app)
        source = app.tab.chat
        await pilot.press("enter")
        await settle(pilot, lambda: len(engine.submits()) == 2)
        request = engine.submits()[1]
        assert request.chat_id == app.tab.chat.id != source.id
        assert "question 0" in request.messages[0].content
        assert "cut sh" in request.messages[0].content
        await settle(pilot, lambda: "the model sums up what is above" in screen_text(app))
        engine.say(
            Started(request.chat_id, 300, 0),
            Delta(request.chat_id, "They counted.", 5),
            Finished(request.chat_id, "stop", 300, 5, 0.1, 9.0),
        )
        await settle(pilot, lambda: "reads on from this summary" in screen_text(app))
        await send(pilot, "and now?")
        await settle(pilot, lambda: len(engine.submits()) == 3)
        sent = [message.content for message in engine.submits()[2].messages]
        assert sent == ["Sum up our conversation so far.", "They counted.", "and now?"]
        assert [m.text for m in source.messages if m.role == "user"][-1] == "question 3"


async def test_the_oldest_turns_are_dropped_and_that_is_said(
    scripted: Make, make_app: Make, roomy: Ready, settle: Make, send: Make, screen_text: Make
) -> None:
    engine = scripted(cut_short)
    app = make_app(engine)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(app, engine, pilot, roomy, settle, send)
        await pilot.press("down", "enter")
        await settle(pilot, lambda: "no longer reads the 2 turns above" in screen_text(app))
        read = [message.content for message in app.tab.chat.conversation()]
        assert read == ["question 2", "answer 2", "question 3", "cut sh"]
        assert "question 0" in [m.text for m in app.tab.chat.messages]


async def test_the_limit_is_raised_as_far_as_model_and_memory_allow(
    scripted: Make, make_app: Make, roomy: Ready, settle: Make, send: Make, screen_text: Make
) -> None:
    engine = scripted(cut_short)
    app = make_app(engine)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(app, engine, pilot, roomy, settle, send)
        assert "Raise the limit to 16,384 tokens" in screen_text(app)
        await pilot.press("down", "down", "enter")
        await settle(pilot, lambda: engine.starts == 2)
        assert engine.options.context == 16384


@pytest.mark.parametrize(
    ("model", "memory", "why"),
    [
        (8192, 20000, "the model takes no more than 8,192 tokens"),
        (32768, 8200, "Raise the limit to 8,200 tokens"),
        (32768, 8192, "there is memory for no more than 8,192 tokens"),
    ],
)
async def test_where_the_limit_cannot_be_raised_the_reason_is_said(
    scripted: Make,
    make_app: Make,
    ready: Ready,
    settle: Make,
    send: Make,
    screen_text: Make,
    model: int,
    memory: int,
    why: str,
) -> None:
    engine = scripted(cut_short)
    app = make_app(engine)
    async with app.run_test(size=(100, 40)) as pilot:
        limits = replace(ready, model_context=model, memory_context=memory)
        await filled(app, engine, pilot, limits, settle, send)
        assert why in screen_text(app)


async def test_not_now_changes_nothing(
    scripted: Make, make_app: Make, roomy: Ready, settle: Make, send: Make, screen_text: Make
) -> None:
    engine = scripted(cut_short)
    app = make_app(engine)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(app, engine, pilot, roomy, settle, send)
        before = app.tab.chat.conversation()
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
        assert app.tab.chat.conversation() == before
        await settle(pilot, lambda: "the context is full" in screen_text(app))


async def test_a_refused_prompt_goes_along_to_the_copy(
    scripted: Make, make_app: Make, roomy: Ready, settle: Make, send: Make
) -> None:
    engine = scripted(lambda s: [Failed(s.chat_id, "808 tokens too many", context_full=True)])
    app = make_app(engine)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(app, engine, pilot, roomy, settle, send)
        assert app.composer.text == "question 3"
        engine._on_submit = None
        await pilot.press("enter")
        await settle(pilot, lambda: len(engine.submits()) == 2)
        assert app.composer.text == "question 3"
        await pilot.press("ctrl+pageup")
        assert app.composer.text == ""


async def test_who_types_is_not_interrupted(
    scripted: Make, make_app: Make, roomy: Ready, settle: Make, send: Make, screen_text: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(100, 40)) as pilot:
        engine.say(roomy)
        await settle(pilot, lambda: app.session.state.ready)
        await send(pilot, "go")
        await settle(pilot, lambda: engine.submits())
        await pilot.press(*"and")
        engine.say(*cut_short(engine.submits()[0]))
        await settle(pilot, lambda: "the context is full" in screen_text(app))
        await pilot.press(*" so")
        assert app.composer.text == "and so"


async def test_at_four_fifths_a_line_says_so_once(
    scripted: Make, make_app: Make, roomy: Ready, settle: Make, send: Make
) -> None:
    def nearly(submit: Submit) -> list[Any]:
        return [
            Started(submit.chat_id, 6600, 0),
            Delta(submit.chat_id, "long", 100),
            Finished(submit.chat_id, "stop", 6600, 100, 0.1, 1.0),
        ]

    engine = scripted(nearly)
    app = make_app(engine)
    async with app.run_test(size=(100, 40)) as pilot:
        engine.say(roomy)
        await settle(pilot, lambda: app.session.state.ready)
        for _ in range(2):
            await send(pilot, "go")
            await settle(pilot, lambda: not app.tab.busy)
        notes = [m.text for m in app.tab.chat.messages if m.role == "note"]
        assert len(notes) == 1
        assert notes[0].startswith("6,600 of 8,192 tokens of context used. /summarise")
