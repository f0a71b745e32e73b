"""Commands by key, slash and palette."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pkvchat.messages import Benched, RunBench, SetPolicy
from pkvchat.tui.all_commands import COMMANDS

OpenApp = Callable[..., Any]


async def test_slash_commands_are_run_and_never_sent(open_app: OpenApp) -> None:
    async with open_app() as window:
        app, engine = window.app, window.engine
        await window.send("/set parameter temp 0.1")
        assert app.session.params.temperature == 0.1
        await window.send("/set top_k 7")
        assert app.session.params.top_k == 7
        await window.send("/policy forced-sdpa")
        assert engine.sent[-1] == SetPolicy("forced-sdpa")
        await window.send("/system Be brief.")
        assert window.chat.system == "Be brief."
        assert window.prompts() == []
        await window.ask("hi")
        assert window.prompts() == [["Be brief.", "hi"]]


async def test_everything_in_force_can_be_shown(open_app: OpenApp, ready: Any) -> None:
    async with open_app(size=(140, 60)) as window:
        window.say(replace(ready, template="{% for [m] in messages %}\n{{ m }}"))
        for command, shown in (
            ("/show info", "SmolLM2-135M-Instruct"),
            ("/show info", "512 pages of 16 tokens"),
            ("/show parameters", "repeat_last_n   64"),
            ("/show template", "{% for [m] in messages %}"),
            ("/show system", "no system prompt"),
            ("/show strategies", "flashinfer  no CUDA device"),
        ):
            await window.send(command)
            await window.shows(shown)


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
        "/show template",
        "/stats",
        "/glob /etc/*",
        "/code",
        "/continue",
        "/regen",
        "/fork",
        "/copy",
        "/reopen",
        "/nothing",
    ],
)
async def test_a_command_that_cannot_be_done_says_so_in_one_line(
    open_app: OpenApp, line: str
) -> None:
    async with open_app(loaded=False) as window:
        await window.send(line)
        await window.settle(lambda: window.notes)
        (note,) = window.notes
        assert "\n" not in note


async def test_every_command_with_a_key_can_be_run_in_an_empty_chat(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "false")
    async with open_app(loaded=False) as window:
        for command in COMMANDS.by_name.values():
            if command.keys and command.name not in ("quit", "interrupt", "editor"):
                await window.press(command.keys.split(",")[0])
                await window.pilot.pause()
        assert window.app.is_running


async def test_the_palette_runs_commands(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press("ctrl+p", *"new chat")
        await window.shows("new chat  ^T")
        await window.press("down", "enter")
        await window.settle(lambda: len(window.app.tabs) == 2)
        await window.press("ctrl+p", "escape")
        assert len(window.app.screen_stack) == 1


async def test_help_lists_every_slash_command(open_app: OpenApp) -> None:
    async with open_app(size=(100, 100)) as window:
        await window.press("f1")
        await window.shows("/policy [NAME]")
        for command in COMMANDS.by_slash.values():
            assert re.fullmatch(r"/\w+(( [A-Z]+)*|( \[[A-Z]+\]))", command.usage)
            assert command.usage in window.text
        await window.press("escape")
        assert len(window.app.screen_stack) == 1


async def test_a_bench_prints_its_table_into_the_chat(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.send("/bench")
        assert window.engine.sent[-1] == RunBench()
        window.say(Benched("test     tokens/s\npp128       712.0"))
        await window.shows("pp128       712.0")


async def test_a_bench_is_refused_while_any_chat_is_answered(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.ask("long [tale]")
        await window.press("ctrl+t")
        await window.send("/bench")
        assert window.notes == ["“long [tale]” is being answered: stop that before /bench"]
        assert RunBench() not in window.engine.sent
        assert "measuring" not in window.text
