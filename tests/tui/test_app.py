"""The app under Textual's Pilot, on a scripted engine: event sequences a real one seldom gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual import events

from pkvchat.errors import UsageError
from pkvchat.messages import (
    Close,
    Delta,
    Failed,
    Finished,
    Loading,
    Prefilled,
    Ready,
    Started,
    Steps,
    Stop,
)
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.tui.app import run

Make = Callable[..., Any]


async def test_a_prompt_is_answered(
    scripted: Make,
    make_app: Make,
    answering: Make,
    ready: Ready,
    settle: Make,
    screen_text: Make,
    send: Make,
) -> None:
    engine = scripted(answering("The **rainbow** is wide."))
    app = make_app(engine, system_prompt="Be brief.")
    async with app.run_test(size=(120, 40)) as pilot:
        engine.say(ready)
        await send(pilot, "Colours?")
        await settle(pilot, lambda: "The rainbow is wide." in screen_text(app))
        (submit,) = engine.submits()
        assert [(m.role, m.content) for m in submit.messages] == [
            ("system", "Be brief."),
            ("user", "Colours?"),
        ]
        await settle(pilot, lambda: "96.3 tokens/s" in screen_text(app))
        for fact in ("SmolLM2", "split ×4", "one long row", "65 used", "workqueue", "41 µs"):
            assert fact in screen_text(app)


async def test_typing_works_while_the_model_loads_and_the_prompt_waits(
    scripted: Make, make_app: Make, answering: Make, ready: Ready, settle: Make, screen_text: Make
) -> None:
    engine = scripted(answering("done"))
    app = make_app(engine)
    async with app.run_test(size=(80, 24)) as pilot:
        engine.say(Loading("reading weights", 30, 120))
        await settle(pilot, lambda: "reading weights" in screen_text(app))
        assert "25%" in screen_text(app)
        await pilot.press(*"early")
        await pilot.press("enter")
        await settle(pilot, lambda: "your prompt waits" in screen_text(app))
        assert engine.submits() == []
        engine.say(ready)
        await settle(pilot, lambda: "done" in screen_text(app))


async def test_two_tabs_stream_side_by_side(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, screen_text: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(100, 30)) as pilot:
        engine.say(ready)
        await send(pilot, "first")
        await pilot.press("ctrl+t")
        await send(pilot, "second")
        one, two = (submit.chat_id for submit in engine.submits())
        engine.say(
            Started(one, 5, 0), Started(two, 5, 0), Delta(one, "ONE", 1), Delta(two, "TWO", 1)
        )
        await settle(pilot, lambda: "TWO" in screen_text(app))
        assert "ONE" not in screen_text(app)
        assert app.tabs[0].unread
        engine.say(Finished(one, "stop", 5, 1, 0.1, 1.0), Finished(two, "stop", 5, 1, 0.1, 1.0))
        await pilot.press("ctrl+pageup")
        await settle(pilot, lambda: "ONE" in screen_text(app))
        assert not app.tabs[0].unread
        assert "TWO" not in screen_text(app)


async def test_each_tab_keeps_its_draft(scripted: Make, make_app: Make) -> None:
    app = make_app(scripted())
    async with app.run_test() as pilot:
        await pilot.press(*"one")
        await pilot.press("ctrl+t", *"two", "ctrl+j", *"lines")
        await pilot.press("ctrl+pageup")
        assert app.composer.text == "one"
        await pilot.press("ctrl+pagedown")
        assert app.composer.text == "two\nlines"
        await pilot.press("alt+1")
        assert app.composer.text == "one"


async def test_escape_stops_only_this_tab_and_returns_what_was_queued(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, screen_text: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(80, 24)) as pilot:
        engine.say(ready)
        await send(pilot, "go")
        await settle(pilot, lambda: engine.submits())
        chat = engine.submits()[0].chat_id
        engine.say(Started(chat, 5, 0), Delta(chat, "partial", 1))
        await send(pilot, "and then this")
        await settle(pilot, lambda: "You (queued)" in screen_text(app))
        await pilot.press("escape")
        assert engine.sent[-1] == Stop(chat)
        assert app.composer.text == "and then this"
        engine.say(Finished(chat, "cancelled", 5, 1, 0.1, 1.0))
        await settle(pilot, lambda: "stopped" in screen_text(app))
        assert "partial" in screen_text(app)
        assert len(engine.submits()) == 1


async def test_a_queued_prompt_follows_the_answer_before_it(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test() as pilot:
        engine.say(ready)
        await send(pilot, "one")
        await settle(pilot, lambda: engine.submits())
        await send(pilot, "two")
        chat = engine.submits()[0].chat_id
        engine.say(Delta(chat, "1", 1), Finished(chat, "stop", 5, 1, 0.1, 1.0))
        await settle(pilot, lambda: len(engine.submits()) == 2)
        assert [m.content for m in engine.submits()[1].messages] == ["one", "1", "two"]


async def test_closing_tabs_frees_them_and_never_leaves_none(
    scripted: Make, make_app: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test() as pilot:
        await pilot.press("ctrl+t", "ctrl+w", "ctrl+w")
        assert len(app.tabs) == 1
        assert len([c for c in engine.sent if isinstance(c, Close)]) == 2


async def test_a_refused_prompt_returns_to_the_composer(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, screen_text: Make, send: Make
) -> None:
    line = "the prompt has 9,000 tokens, 808 more than the context holds"
    engine = scripted(lambda submit: [Failed(submit.chat_id, line)])
    app = make_app(engine)
    async with app.run_test(size=(80, 24)) as pilot:
        engine.say(ready)
        await pilot.pause(0.1)
        await send(pilot, "a long prompt")
        await settle(pilot, lambda: line in screen_text(app))
        assert app.composer.text == "a long prompt"


async def test_a_dead_engine_is_said_and_a_key_restarts_it(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, screen_text: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(100, 24)) as pilot:
        engine.say(ready)
        await send(pilot, "go")
        await settle(pilot, lambda: engine.submits())
        chat = engine.submits()[0].chat_id
        engine.say(Started(chat, 5, 0), Delta(chat, "half an answer", 3))
        await settle(pilot, lambda: "half an answer" in screen_text(app))
        await pilot.press(*"draft")
        engine.die()
        await settle(pilot, lambda: "killed by signal 9" in screen_text(app))
        assert "half an answer" in screen_text(app)
        await pilot.press("ctrl+r")
        await settle(pilot, lambda: engine.starts == 2)
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        assert app.composer.text == "draft"
        await pilot.press("ctrl+r")
        await settle(pilot, lambda: len(engine.submits()) == 2)
        assert [m.content for m in engine.submits()[1].messages] == ["go"]


async def test_a_model_that_cannot_load_is_said_in_its_own_words(
    scripted: Make, make_app: Make, settle: Make, screen_text: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(100, 24)) as pilot:
        engine.say(Failed(None, "no such model: nowhere.gguf", fatal=True))
        engine.die()
        await settle(pilot, lambda: "no such model: nowhere.gguf" in screen_text(app))
        await pilot.pause(0.1)
        assert "killed" not in screen_text(app)


async def test_hostile_text_is_drawn_not_obeyed(
    scripted: Make, make_app: Make, answering: Make, ready: Ready, settle: Make, screen_text: Make
) -> None:
    codes = "\x1b[2J\x1b]52;c;aGk=\x07 a\u202eb\u200bc \x00 \ud800"
    hostile = f"[red]x[/] [/nope] {codes}\n\n[@click=app.quit]q[/]"
    engine = scripted(answering(hostile))
    app = make_app(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        engine.say(ready)
        app.composer.post_message(events.Paste(hostile))
        await pilot.pause()
        await pilot.press("enter")
        await settle(pilot, lambda: screen_text(app).count("[red]x[/] [/nope]") >= 2)
        text = screen_text(app)
        assert "[@click=app.quit]q[/]" in text
        assert not [c for c in text if c != "\n" and (c < " " or "\x7f" <= c <= "\x9f")]
        assert not set(text) & set("\u202e\u200b\ud800")


async def test_ctrl_c_stops_then_clears_then_quits(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test() as pilot:
        engine.say(ready)
        await send(pilot, "go")
        await settle(pilot, lambda: engine.submits())
        chat = engine.submits()[0].chat_id
        await pilot.press(*"draft")
        await pilot.press("ctrl+c")
        assert engine.sent[-1] == Stop(chat)
        assert app.composer.text == "draft"
        engine.say(Finished(chat, "cancelled", 5, 0, 0.1, 0.0))
        await settle(pilot, lambda: not app.tab.busy)
        await pilot.press("ctrl+c")
        assert app.composer.text == ""
        await pilot.press("ctrl+z")
        assert app.composer.text == "draft"
        await pilot.press("ctrl+c", "ctrl+c")
        assert app.is_running
        await pilot.press("ctrl+c")
    assert app.return_code == 0


@pytest.mark.parametrize("size", [(40, 10), (60, 20), (80, 24), (120, 40), (250, 80), (12, 4)])
async def test_every_window_size_works(
    scripted: Make,
    make_app: Make,
    answering: Make,
    ready: Ready,
    size: tuple[int, int],
    settle: Make,
    screen_text: Make,
    send: Make,
) -> None:
    engine = scripted(answering("An answer with a fair number of words in it, to wrap. END"))
    app = make_app(engine)
    async with app.run_test(size=size) as pilot:
        engine.say(ready)
        await send(pilot, "hello")
        await settle(pilot, lambda: app.tab.chat.messages and not app.tab.busy)
        if size != (12, 4):
            await settle(pilot, lambda: "END" in screen_text(app))
            assert app.panel.display is (size[1] >= 14)
        for other in [(120, 40), (40, 10), size]:
            await pilot.resize_terminal(*other)
            await pilot.pause()


async def test_prefill_shows_how_far_it_is(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, screen_text: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(100, 24)) as pilot:
        engine.say(ready)
        await send(pilot, "long")
        await settle(pilot, lambda: engine.submits())
        chat = engine.submits()[0].chat_id
        engine.say(Started(chat, 4000, 0), Prefilled(chat, 1024, 4000))
        await settle(pilot, lambda: "1,024 of 4,000 tokens" in screen_text(app))


async def test_hidden_chats_and_steps_draw_no_transcript(
    scripted: Make, make_app: Make, ready: Ready, record: Make, settle: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(100, 30)) as pilot:
        engine.say(ready)
        await send(pilot, "in the back")
        await pilot.press("ctrl+t")
        await settle(pilot, lambda: engine.submits())
        chat = engine.submits()[0].chat_id
        await settle(pilot, lambda: not app._frame_due)
        drawn: list[int] = []
        update = app.transcript.update
        app.transcript.update = lambda: (drawn.append(1), update())  # type: ignore[method-assign]
        for number in range(20):
            engine.say(Delta(chat, "word ", 1), Steps((record(number),)))
        await settle(pilot, lambda: app.tabs[0].chat.messages[-1].text.count("word") == 20)
        await pilot.pause(0.2)
        assert drawn == []


async def test_scrolling_up_reads_in_peace_and_the_end_follows_again(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, screen_text: Make, send: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(80, 24)) as pilot:
        engine.say(ready)
        await send(pilot, "count")
        await settle(pilot, lambda: engine.submits())
        chat = engine.submits()[0].chat_id
        engine.say(Delta(chat, "\n\n".join(f"line {i}" for i in range(100)), 100))
        await settle(pilot, lambda: "line 99" in screen_text(app))
        app.transcript.focus()
        await pilot.press("pageup", "pageup")
        place = app.transcript.scroll_y
        engine.say(Delta(chat, "\n\nlast words", 2))
        await pilot.pause(0.3)
        assert app.transcript.scroll_y == place
        assert "last words" not in screen_text(app)
        await pilot.press("end")
        await settle(pilot, lambda: "last words" in screen_text(app))
        engine.say(Delta(chat, "\n\nand more", 2))
        await settle(pilot, lambda: "and more" in screen_text(app))


async def test_a_long_chat_opens_at_its_end_and_reads_back_to_its_start(
    scripted: Make, make_app: Make, settle: Make, screen_text: Make
) -> None:
    app = make_app(scripted())
    async with app.run_test(size=(80, 24)) as pilot:
        for number in range(300):
            app.tab.chat.add("user", f"question {number}")
            app.tab.chat.add("assistant", f"answer {number}").version.reason = "stop"
        await pilot.press("ctrl+t", "ctrl+pageup")
        await settle(pilot, lambda: "answer 299" in screen_text(app))
        app.transcript.focus()
        await pilot.press("home")
        await settle(pilot, lambda: "question 0" in screen_text(app))
        for _ in range(4):  # each reaches the window's end, which then grows
            app.transcript.scroll_end(animate=False, immediate=True)
            await pilot.pause()
        assert "question 30" in "\n".join(strip.text for strip in app.transcript._lines)
        await pilot.press("end")
        await settle(pilot, lambda: "answer 299" in screen_text(app))
        for _ in range(4):
            app.transcript.scroll_to(y=1, animate=False, immediate=True)
            await pilot.pause()
        assert "question 270" in "\n".join(strip.text for strip in app.transcript._lines)
        assert "question 100" not in "\n".join(strip.text for strip in app.transcript._lines)


async def test_keys_can_be_changed(scripted: Make, make_app: Make) -> None:
    app = make_app(scripted(), keys={"new_chat": "ctrl+n"})
    async with app.run_test() as pilot:
        await pilot.press("ctrl+t")
        assert len(app.tabs) == 1
        await pilot.press("ctrl+n")
        assert len(app.tabs) == 2


@pytest.mark.parametrize(
    ("settings", "names"),
    [(Settings(keys={"fly": "f9"}), "new_chat"), (Settings(theme="beige"), "dracula")],
)
def test_a_wrong_key_or_theme_name_is_said_with_the_right_ones(
    settings: Settings, names: str
) -> None:
    with pytest.raises(UsageError, match=names):
        run(EngineOptions(), SamplingParams(), settings)


@pytest.mark.parametrize("theme", ["dark", "light", "terminal", "dracula"])
async def test_themes_draw(
    scripted: Make,
    make_app: Make,
    answering: Make,
    ready: Ready,
    theme: str,
    settle: Make,
    screen_text: Make,
    send: Make,
) -> None:
    engine = scripted(answering("text with `code`\n\n```python\nx = 1\n```"))
    app = make_app(engine, theme=theme)
    async with app.run_test(size=(120, 40)) as pilot:
        engine.say(ready)
        await send(pilot, "hi")
        await settle(pilot, lambda: "x = 1" in screen_text(app))
