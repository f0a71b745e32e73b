"""Keys that a person changes, and where they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.errors import UsageError
from pkvchat.messages import Delta, Started
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.store import ChatStore
from pkvchat.tui.all_commands import COMMANDS
from pkvchat.tui.app import run
from pkvchat.tui.keymap import Keymap

OpenApp = Callable[..., Any]


async def test_any_command_can_have_a_key(open_app: OpenApp) -> None:
    """Also one without a key of its own, and one whose key another takes."""
    keys = {"new_chat": "ctrl+n", "duplicate_chat": "f12,alt+d", "chat_2": "ctrl+t"}
    async with open_app(keys=keys) as window:
        app = window.app
        window.chat.add("user", "hello")
        await window.press("ctrl+t")
        assert len(app.tabs) == 1
        await window.press("ctrl+n")
        assert len(app.tabs) == 2
        await window.press("alt+1", "alt+2", "alt+1")
        assert app.active == 0
        await window.press("f12")
        assert window.chat.name == "copy: hello"
        await window.press("ctrl+t")
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


async def test_hints_and_help_show_the_keys_in_force(open_app: OpenApp, store: ChatStore) -> None:
    keys = {"new_chat": "ctrl+n", "browse": "f12", "retry": "alt+r"}
    async with open_app(size=(140, 60), store=store, keys=keys) as window:
        await window.shows("Welcome. The model runs on this machine", "^N opens another chat")
        await window.press("f1")
        await window.shows("F12       moves into the transcript", "^N         /new")
        assert "^T" not in window.text
        await window.press("escape")
        window.engine.die()
        await window.shows("Alt+R restarts the engine")


async def test_what_is_said_in_passing_names_the_keys_in_force(open_app: OpenApp) -> None:
    keys = {"find_chat": "f12", "stop": "alt+z", "policy": "f11"}
    async with open_app(size=(140, 40), keys=keys) as window:
        await window.shows("F11 changes it")
        await window.press("alt+t")
        assert "F12 finds earlier ones" in window.notes[-1]
        await window.ask("go")
        window.say(Started(window.chat.id, 5, 0), Delta(window.chat.id, "half", 1))
        await window.shows("half")
        await window.press("alt+left")
        assert "Alt+Z stops it" in window.notes[-1]


async def test_folded_reasoning_names_the_key_that_unfolds_it(open_app: OpenApp) -> None:
    async with open_app("<think>two words</think>yes", keys={"thoughts": "f12"}) as window:
        await window.ask("go")
        await window.shows("thought, 2 words (F12 shows them)")


async def test_only_a_first_run_is_welcomed(open_app: OpenApp, store: ChatStore) -> None:
    store.save(Chat(), None)
    async with open_app(store=store) as window:
        await window.shows("Enter sends")
        assert "Welcome" not in window.text
