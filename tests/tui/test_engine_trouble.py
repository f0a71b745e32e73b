"""The engine as it loads, refuses, dies, comes back, and becomes another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pkvchat.messages import Delta, Failed, Finished, Loading, Notice, PolicyChanged, Ready, Started

OpenApp = Callable[..., Any]


async def test_typing_works_while_the_model_loads_and_the_prompt_waits(
    open_app: OpenApp, ready: Ready
) -> None:
    async with open_app("done", size=(80, 24), loaded=False) as window:
        window.say(Loading("reading weights", 30, 120))
        await window.shows("reading weights", "25%")
        await window.press(*"early", "enter")
        await window.shows("your prompt waits")
        await window.press(*"and a draft")
        assert window.prompts() == []
        window.say(ready)
        await window.shows("done")
        assert window.prompts() == [["early"]]
        assert window.app.composer.text == "and a draft"


async def test_a_refused_prompt_returns_to_the_composer(open_app: OpenApp) -> None:
    line = "the prompt has 9,000 tokens, 808 more than the context holds"
    async with open_app(on_submit=lambda submit: [Failed(submit.chat_id, line)]) as window:
        await window.send("a long prompt")
        await window.shows(line)
        assert window.app.composer.text == "a long prompt"


async def test_a_dead_engine_is_said_and_a_key_restarts_it(open_app: OpenApp, ready: Ready) -> None:
    async with open_app() as window:
        chat = await window.ask("go")
        window.say(Started(chat, 5, 0), Delta(chat, "half an answer", 3))
        await window.shows("half an answer")
        await window.send("queued meanwhile")
        await window.press(*"draft")
        window.engine.die()
        await window.shows("killed by signal 9", "half an answer", "^R restarts the engine")
        await window.press("ctrl+r")
        await window.settle(lambda: window.engine.starts == 2)
        window.say(ready)
        await window.settle(lambda: len(window.prompts()) == 2)
        assert window.prompts()[1] == ["go", "half an answer", "queued meanwhile"]
        assert window.app.composer.text == "draft"
        window.say(Finished(chat, "stop", 9, 1, 0.1, 1.0))
        await window.settle(lambda: not window.app.tab.busy)
        await window.press("ctrl+r")
        await window.settle(lambda: len(window.prompts()) == 3)
        assert window.prompts()[2] == ["go", "half an answer", "queued meanwhile"]


async def test_a_restart_is_seen_before_the_new_engine_says_anything(open_app: OpenApp) -> None:
    async with open_app() as window:
        window.engine.die()
        await window.shows("✗ the engine process ended")
        await window.press("ctrl+r")
        await window.shows("restarting the engine")
        window.app.session.state.stage = "as drawn later"
        await window.shows("as drawn later")


async def test_an_engine_that_dies_idle_is_said_in_the_chat_in_view(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press("ctrl+t")
        window.engine.die()
        await window.shows("! the engine process ended (killed by signal 9)")
        assert [len(tab.chat.messages) for tab in window.app.tabs] == [0, 1]


async def test_a_model_that_cannot_load_is_said_in_its_own_words(open_app: OpenApp) -> None:
    async with open_app(loaded=False) as window:
        window.say(Failed(None, "no such model: nowhere.gguf", fatal=True))
        window.engine.die()
        await window.shows("! no such model: nowhere.gguf")
        await window.pilot.pause(0.1)
        assert "killed" not in window.text


async def test_out_of_pages_names_the_chats_that_hold_them(open_app: OpenApp) -> None:
    async with open_app() as window:
        one = await window.ask("a [long] story")
        await window.press("ctrl+t")
        two = await window.ask("another")
        window.say(Delta(two, "half", 1), Finished(two, "error", 5, 1, 0.1, 0.0))
        window.say(Failed(two, "out of KV pages: start with a larger --kv-memory"))
        window.say(Notice(one, f"waiting for 2 KV pages, and 0 are free: {two} (500) answering"))
        await window.shows("! out of KV pages", "half")
        await window.press("alt+1")
        await window.shows("0 are free: “another” (500) answering")
        assert two not in window.text
        assert one not in window.text


async def test_another_model_takes_over_the_chats(open_app: OpenApp, ready: Ready) -> None:
    async with open_app("one") as window:
        await window.ask("first")
        await window.settle(lambda: not window.app.tab.busy)
        await window.send("/model qwen3-0.6b")
        assert window.engine.options.model == "qwen3-0.6b"
        await window.settle(lambda: window.engine.starts == 2)
        await window.send("second")
        window.say(replace(ready, model="Qwen3-0.6B", context=4096))
        await window.shows("● Qwen3-0.6B", "● SmolLM2-135M-Instruct")
        assert window.prompts()[1] == ["first", "one", "second"]
        assert [m.version.model for m in window.chat.messages] == [
            "",
            "SmolLM2-135M-Instruct",
            "",
            "Qwen3-0.6B",
        ]


async def test_typing_works_while_the_old_engine_ends_its_step(
    open_app: OpenApp, ready: Ready
) -> None:
    async with open_app("fine") as window:
        window.engine.may_end.clear()
        try:
            await window.send("/context 1024")
            await window.press(*"early", "enter", *"draft")
            await window.shows("restarting the engine", "your prompt waits", "draft")
            assert window.engine.starts == 1
        finally:
            window.engine.may_end.set()
        await window.settle(lambda: window.engine.starts == 2)
        window.say(ready)
        await window.shows("fine")
        assert window.engine.options.context == 1024


async def test_a_policy_outlives_its_engine(open_app: OpenApp) -> None:
    async with open_app() as window:
        window.say(PolicyChanged("forced-split"))
        await window.settle(lambda: window.app.session.state.policy == "forced-split")
        window.engine.die()
        await window.shows("^R restarts the engine")
        await window.press("ctrl+r")
        await window.settle(lambda: window.engine.starts == 2)
        assert window.engine.options.policy == "forced-split"


async def test_a_model_that_is_not_there_gives_way_to_the_one_before(
    open_app: OpenApp, ready: Ready
) -> None:
    async with open_app("fine") as window:
        await window.send("/model nowhere.gguf")
        await window.settle(lambda: window.engine.starts == 2)
        await window.send("still here?")
        window.say(Failed(None, "no model 'nowhere.gguf'", fatal=True))
        window.engine.die()
        await window.shows("no model 'nowhere.gguf'. Nothing is lost; ^R goes back to SmolLM2")
        await window.press("ctrl+r")
        await window.settle(lambda: window.engine.starts == 3)
        assert window.engine.options.model is None
        window.say(ready)
        await window.shows("fine")


async def test_the_engine_is_not_restarted_under_an_answer(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.ask("go")
        await window.send("/model other")
        assert "an answer runs; stop it before the engine restarts" in window.notes[-1]
        assert window.engine.starts == 1
