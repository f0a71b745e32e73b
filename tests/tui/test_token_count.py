"""The live count of what is typed, by the engine's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual import events

from pkvchat.messages import ChatMessage, Counted, CountTokens, Delta, Finished, Ready, Started

Make = Callable[..., Any]


def asked(engine: Any) -> list[CountTokens]:
    return [command for command in engine.sent if isinstance(command, CountTokens)]


async def test_an_estimate_stands_in_until_the_engine_has_counted(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, screen_text: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(120, 30)) as pilot:
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        await pilot.press(*"colours")
        await settle(pilot, lambda: "about 2 tokens with this, 8,190 left" in screen_text(app))
        await settle(pilot, lambda: asked(engine))
        (request,) = asked(engine)
        assert request.messages == (ChatMessage("user", "colours"),)
        engine.say(Counted(app.tab.chat.id, request.number, 33))
        await settle(pilot, lambda: "33 tokens with this, 8,159 left" in screen_text(app))
        await pilot.press("!")
        engine.say(Counted(app.tab.chat.id, request.number, 44))  # of what is there no more
        await settle(pilot, lambda: "about 2 tokens" in screen_text(app))
        await settle(pilot, lambda: len(asked(engine)) == 2)
        engine.say(Counted(app.tab.chat.id, asked(engine)[1].number, 9000))
        await settle(pilot, lambda: "9,000 tokens with this, 808 too many" in screen_text(app))


async def test_the_count_goes_on_while_an_answer_runs(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, screen_text: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(120, 30)) as pilot:
        engine.say(ready)
        await send(pilot, "go")
        await settle(pilot, lambda: engine.submits())
        chat = app.tab.chat.id
        engine.say(Started(chat, 20, 0), Delta(chat, "one", 1))
        await pilot.press(*"next")
        await settle(pilot, lambda: asked(engine))
        engine.say(Counted(chat, asked(engine)[-1].number, 40))
        await settle(pilot, lambda: "40 tokens with this, 8,152 left" in screen_text(app))
        engine.say(Delta(chat, " two", 1), Finished(chat, "stop", 20, 2, 0.1, 1.0))
        await settle(pilot, lambda: len(asked(engine)) > 1)
        assert [m.content for m in asked(engine)[-1].messages] == ["go", "one two", "next"]


async def test_a_huge_paste_is_asked_about_once_typing_rests(
    scripted: Make, make_app: Make, ready: Ready, settle: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test() as pilot:
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        app.composer.post_message(events.Paste("word " * 200_000))
        await pilot.press(*" and more")
        assert not asked(engine)
        await settle(pilot, lambda: asked(engine))
        assert len(asked(engine)[0].messages[0].content) == 1_000_000 + len(" and more")
