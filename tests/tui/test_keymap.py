"""Keys that a person changes, and where they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from pkvchat.errors import UsageError
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.store import ChatStore
from pkvchat.tui.app import run
from pkvchat.tui.keymap import Keymap
from pkvchat.tui.registry import COMMANDS

Make = Callable[..., Any]


async def test_any_command_can_have_a_key(scripted: Make, make_app: Make) -> None:
    """Also one without a key of its own, and one whose key another takes."""
    keys = {"new_chat": "ctrl+n", "duplicate_chat": "f12,alt+d", "chat_2": "ctrl+t"}
    app = make_app(scripted(), keys=keys)
    async with app.run_test() as pilot:
        app.tab.chat.add("user", "hello")
        await pilot.press("ctrl+t")
        assert len(app.tabs) == 1
        await pilot.press("ctrl+n")
        assert len(app.tabs) == 2
        await pilot.press("alt+1", "alt+2", "alt+1")
        assert app.active == 0
        await pilot.press("f12")
        assert app.tab.chat.name == "copy: hello"
        await pilot.press("ctrl+t")
        assert app.active == 1


def test_a_key_that_another_command_takes_is_shown_there_alone() -> None:
    keymap = Keymap({"quit": "ctrl+t", "browse": "ctrl+up"})
    shown = [keymap.shown(name) for name in ("quit", "new_chat", "browse", "duplicate_chat")]
    assert shown == ["^T", "", "^Up", ""]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"fly": "f9"}, "keys.fly: no such command; the commands are "),
        ({"quit": "f77"}, "keys.quit = 'f77' is no key; write it as ctrl+n"),
        ({"quit": "control+q"}, "is no key"),
        ({"quit": ""}, "is no key"),
        ({"quit": "q"}, "keys.quit = 'q' is needed for typing; put ctrl+ before it"),
        ({"quit": "f9,enter"}, "'enter' is needed for typing"),
        ({"quit": "f9", "new_chat": "f9"}, "keys.new_chat and keys.quit are both 'f9'"),
    ],
)
def test_a_wrong_key_is_said_in_one_line(keys: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        run(EngineOptions(), SamplingParams(), Settings(keys=keys))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_no_two_commands_have_the_same_key() -> None:
    keys = [key for c in COMMANDS.by_name.values() for key in c.keys.split(",") if key]
    assert len(keys) == len(set(keys))
    Keymap({c.name: c.keys for c in COMMANDS.by_name.values() if c.keys})


async def test_hints_and_help_show_the_keys_in_force(
    scripted: Make, make_app: Make, settle: Make, screen_text: Make, tmp_path: Any
) -> None:
    store = ChatStore(tmp_path / "chats.db")
    keys = {"new_chat": "ctrl+n", "browse": "f12", "retry": "alt+r"}
    app = make_app(scripted(), store, keys=keys)
    async with app.run_test(size=(100, 60)) as pilot:
        await settle(pilot, lambda: "^N opens another chat" in screen_text(app))
        assert "Welcome. The model runs on this machine" in screen_text(app), "a first run"
        await press_and_see(pilot, "f1", "F12 moves into the transcript", settle, screen_text)
        assert "^N         /new" in screen_text(app)
        assert "^T" not in screen_text(app)
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
        app.session.client.die()
        await settle(pilot, lambda: "Alt+R restarts the engine" in screen_text(app))


async def press_and_see(
    pilot: Pilot[int], key: str, text: str, settle: Make, screen_text: Make
) -> None:
    await pilot.press(key)
    await settle(pilot, lambda: text in screen_text(pilot.app))


async def test_a_later_run_is_not_welcomed_again(
    scripted: Make, make_app: Make, screen_text: Make, settle: Make, tmp_path: Any
) -> None:
    store = ChatStore(tmp_path / "chats.db")
    app = make_app(scripted(), store)
    store.save(app.fresh_tab().chat, None)
    app = make_app(scripted(), store)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: "Enter sends" in screen_text(app))
        assert "Welcome" not in screen_text(app)
