"""The settings screen: what it shows, refuses, writes and brings into force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Select, TextArea

from pkvchat.messages import SetPolicy
from pkvchat.settings import load_settings, settings_path

OpenApp = Callable[..., Any]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file's path in a home that is empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return settings_path()


async def test_what_is_changed_is_written_and_in_force(open_app: OpenApp, config: Path) -> None:
    config.parent.mkdir()
    config.write_text("# mine\ncontext = 4096\n")
    async with open_app(size=(100, 40), system_prompt="Be brief.") as window:
        app = window.app
        await window.press("alt+s")
        find = app.screen.query_one
        assert find("#temperature", Input).has_focus
        await window.press("0", ".", "5")  # over what was there, which is selected
        find("#system_prompt", TextArea).text = "Be [very] brief."
        find("#theme", Select).value = "light"
        find("#policy", Select).value = "forced-sdpa"
        find("#panel", Select).value = False
        await window.press("ctrl+s")
        await window.settle(lambda: len(app.screen_stack) == 1)
        assert app.session.params.temperature == 0.5
        assert app.theme == "pkvchat-light"
        assert not app.panel.display
        assert SetPolicy("forced-sdpa") in window.engine.sent
        assert app.fresh_tab().chat.system == "Be [very] brief."
    assert config.read_text().startswith("# mine\ncontext = 4096\n")
    written = load_settings()
    assert (written.sampling.temperature, written.theme, written.panel) == (0.5, "light", False)
    assert written.sampling.top_k == 40
    assert "top_k" not in config.read_text(), "only what was changed is written"


async def test_a_wrong_value_is_said_beside_it_and_nothing_is_written(
    open_app: OpenApp, config: Path
) -> None:
    async with open_app(size=(100, 40)) as window:
        await window.press("alt+s", "tab", *"many", "ctrl+s")
        await window.shows("must be a whole number of at least 0")
        assert window.app.screen.query_one("#top_k", Input).has_focus
        await window.press("shift+tab")
        assert window.app.screen.query_one("#temperature", Input).has_focus
        await window.press("escape")
        assert len(window.app.screen_stack) == 1
    assert not config.exists()


async def test_settings_that_cannot_be_written_still_come_into_force(
    open_app: OpenApp, config: Path
) -> None:
    config.parent.write_text("a file in the folder's place")
    async with open_app(size=(100, 40)) as window:
        await window.press("alt+s")
        await window.settle(lambda: isinstance(window.app.focused, Input))
        await window.press("0", "ctrl+s")
        await window.settle(lambda: window.app.session.params.temperature == 0)
        assert "cannot write the settings file" in window.notes[-1]


async def test_the_mouse_can_be_left_to_the_terminal(open_app: OpenApp) -> None:
    async with open_app(mouse=False) as window:
        await window.send("/mouse")
        assert window.app.mouse
        await window.send("/mouse")
        assert not window.app.mouse


@pytest.mark.parametrize("size", [(60, 20), (40, 12), (12, 4)])
async def test_every_window_size_works(open_app: OpenApp, size: tuple[int, int]) -> None:
    async with open_app(size=size) as window:
        await window.press("alt+s")
        await window.settle(lambda: isinstance(window.app.focused, Input))
        await window.press("0", *["tab"] * 12, "ctrl+s")
        await window.settle(lambda: window.app.session.params.temperature == 0)
