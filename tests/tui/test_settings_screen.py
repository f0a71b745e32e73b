"""The settings screen: what it shows, refuses, writes and brings into force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Select, TextArea

from pkvchat.messages import Ready, SetPolicy
from pkvchat.settings import load_settings, settings_path

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file's path in a home that is empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return settings_path()


async def test_what_is_changed_is_written_and_in_force(
    scripted: Make, make_app: Make, ready: Ready, settle: Make, config: Path
) -> None:
    config.parent.mkdir()
    config.write_text("# mine\ncontext = 4096\n")
    engine = scripted()
    app = make_app(engine, system_prompt="Be brief.")
    async with app.run_test(size=(100, 40)) as pilot:
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        await pilot.press("alt+s")
        find = app.screen.query_one
        assert find("#temperature", Input).has_focus
        await pilot.press("0", ".", "5")  # over what was there, which is selected
        find("#system_prompt", TextArea).text = "Be [very] brief."
        find("#theme", Select).value = "light"
        find("#policy", Select).value = "forced-sdpa"
        find("#panel", Select).value = False
        await pilot.press("ctrl+s")
        await settle(pilot, lambda: len(app.screen_stack) == 1)
        assert app.session.params.temperature == 0.5
        assert app.theme == "pkvchat-light"
        assert not app.panel.display
        assert SetPolicy("forced-sdpa") in engine.sent
        assert app.fresh_tab().chat.system == "Be [very] brief."
    assert config.read_text().startswith("# mine\ncontext = 4096\n")
    written = load_settings()
    assert (written.sampling.temperature, written.theme, written.panel) == (0.5, "light", False)
    assert written.sampling.top_k == 40
    assert "top_k" not in config.read_text(), "only what was changed is written"


async def test_a_wrong_value_is_said_beside_it_and_nothing_is_written(
    scripted: Make, make_app: Make, screen_text: Make, settle: Make, config: Path
) -> None:
    app = make_app(scripted())
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("alt+s", "tab", *"many", "ctrl+s")
        await settle(pilot, lambda: "must be a whole number of at least 0" in screen_text(app))
        assert app.screen.query_one("#top_k", Input).has_focus
        await pilot.press("shift+tab")
        assert app.screen.query_one("#temperature", Input).has_focus
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
    assert not config.exists()


async def test_settings_that_cannot_be_written_still_come_into_force(
    scripted: Make, make_app: Make, settle: Make, config: Path
) -> None:
    config.parent.write_text("a file in the folder's place")
    app = make_app(scripted())
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("alt+s", *"0", "ctrl+s")
        await settle(pilot, lambda: app.session.params.temperature == 0)
        (said,) = [n.message for n in app._notifications]
        assert "cannot write the settings file" in said


async def test_the_mouse_can_be_left_to_the_terminal(
    scripted: Make, make_app: Make, send: Make
) -> None:
    app = make_app(scripted(), mouse=False)
    async with app.run_test() as pilot:
        await send(pilot, "/mouse")
        assert app.mouse
        await send(pilot, "/mouse")
        assert not app.mouse


@pytest.mark.parametrize("size", [(60, 20), (40, 12), (12, 4)])
async def test_every_window_size_works(
    scripted: Make, make_app: Make, settle: Make, size: tuple[int, int]
) -> None:
    app = make_app(scripted())
    async with app.run_test(size=size) as pilot:
        await pilot.press("alt+s", *"0", *["tab"] * 12, "ctrl+s")
        await settle(pilot, lambda: app.session.params.temperature == 0)
