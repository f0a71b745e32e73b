"""The commands that are listed while a slash is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pkvchat.messages import Stop

OpenApp = Callable[..., Any]


async def test_commands_are_listed_as_their_names_are_typed(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press("/")
        await window.shows("/bench                measure the engine")
        await window.press("s", "h")
        await window.shows("/show WHAT            what is in force")
        assert "/set" not in window.text
        await window.press("tab")
        assert window.app.composer.text == "/show "
        assert "/show WHAT" not in window.text
        window.app.composer.take("")
        await window.press("/", "f", "o", "tab", "enter")
        await window.settle(lambda: "nothing to fork" in "".join(window.notes))


@pytest.mark.parametrize("take", ["tab", "enter"])
async def test_arrows_choose_one(open_app: OpenApp, take: str) -> None:
    async with open_app() as window:
        await window.press(*"/re")
        await window.press("down", "down", "down", "up", take)
        assert window.app.composer.text == "/regen"
        await window.press(*["backspace"] * 3, "up", take)
        assert window.app.composer.text == "/reopen", "up chooses from the end on"


async def test_a_click_takes_one(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press(*"/re")
        await window.pilot.click("#commands", offset=(3, 1))
        assert window.app.composer.text == "/regen"
        assert window.app.composer.has_focus


async def test_escape_hides_the_list_and_nothing_else(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.ask("go")
        await window.press("/", "escape", "s")
        assert not window.app.slash_list.display
        assert not any(isinstance(command, Stop) for command in window.engine.sent)
        await window.press("backspace", "backspace", "/")
        assert window.app.slash_list.display, "it is another command's"
        await window.press("escape", "escape")
        assert isinstance(window.engine.sent[-1], Stop)


async def test_a_message_that_begins_with_a_path_is_left_alone(open_app: OpenApp) -> None:
    async with open_app("ok") as window:
        await window.press(*"/path", "down", "up")
        assert not window.app.slash_list.display
        await window.press("enter")
        assert window.app.composer.text == "/path"
        window.app.composer.take("")
        await window.press(*"/re", "enter")
        assert window.app.composer.text == "/re", "nothing was chosen"
        window.app.composer.take("")
        await window.press(*"//read", "up")
        assert not window.app.slash_list.display
        await window.press("enter")
        await window.settle(window.prompts)
        assert window.prompts() == [["/read"]]


async def test_a_prompt_with_a_slash_comes_back_as_it_was_typed(open_app: OpenApp) -> None:
    async with open_app("ok") as window:
        await window.ask("//etc is a folder")
        await window.settle(lambda: not window.app.tab.busy)
        for keys in (["up"], ["ctrl+u", "alt+e"]):
            await window.press(*keys)
            assert window.app.composer.text == "//etc is a folder"
            assert not window.app.slash_list.display


async def test_the_list_goes_where_the_keys_go_elsewhere(open_app: OpenApp) -> None:
    async with open_app("ok") as window:
        await window.ask("one")
        await window.press(*"/re", "shift+tab")
        assert not window.app.slash_list.display
        await window.press("enter", "ctrl+t", "ctrl+pageup")
        assert window.app.composer.text == "/re"
        assert not window.app.slash_list.display


async def test_the_list_is_seen_after_the_palette_was_open(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press("ctrl+p")
        await window.press("escape")
        window.app.theme = "textual-light"  # styles everything anew, the palette's rules included
        await window.pilot.resize_terminal(90, 30)
        await window.press("/")
        await window.shows("/bench                measure the engine")
        assert window.app.slash_list.visible
