"""The window: sizes, themes, colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rich.color import ColorType
from textual.widgets import OptionList

from pkvchat.errors import UsageError
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.store import ChatStore
from pkvchat.tui.app import run

OpenApp = Callable[..., Any]
ANSWER = "text with `code`\n\n```python\nx = 1\n```\n\nThe END"


def sent_colours(window: Any) -> set[ColorType]:
    """The kinds of colours that go to the terminal, after the app's filters."""
    found = set()
    for strip in window.app.screen._compositor.render_strips():
        segments = list(strip)
        for line_filter in window.app._filters:
            if line_filter.enabled:
                segments = line_filter.apply(segments, window.app.screen.background_colors[1])
        for segment in segments:
            for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                found |= {colour.type} if colour else set()
    return found


@pytest.mark.parametrize(
    "size", [(40, 10), (60, 20), (80, 24), (120, 40), (250, 80), (12, 4), (3, 40), (1, 1)]
)
async def test_every_window_size_works(open_app: OpenApp, size: tuple[int, int]) -> None:
    answer = "An answer with a fair number of words in it, to wrap. END"
    async with open_app(answer, size=size) as window:
        app = window.app
        await window.ask("hello")
        await window.settle(lambda: not app.tab.busy)
        if size[0] > 12:
            await window.shows("END")
            assert app.panel.display is (size[1] >= 14)
        for other in [(120, 40), (40, 10), size]:
            await window.pilot.resize_terminal(*other)
            await window.pilot.pause()


@pytest.mark.parametrize("keys", [["/", "down"], ["ctrl+p", "c"], ["f5"]])
async def test_lists_open_in_any_window(open_app: OpenApp, keys: list[str]) -> None:
    for size in ((1, 1), (4, 30), (20, 14)):
        async with open_app(size=size) as window:
            await window.press(*keys)
            lists = window.app.screen.query(OptionList)
            await window.settle(lambda lists=lists: any(each.option_count for each in lists))
            await window.pilot.pause(0.1)


@pytest.mark.parametrize("theme", ["dark", "light", "terminal", "dracula"])
async def test_themes_draw(open_app: OpenApp, theme: str) -> None:
    async with open_app(ANSWER, theme=theme) as window:
        await window.send("hi")
        await window.shows("x = 1", "The END")


async def test_without_colours_the_theme_is_the_terminals_own(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_app(ANSWER) as window:
        await window.send("hi")
        await window.shows("The END")
        assert window.app.theme == "ansi-dark"
        assert sent_colours(window) == {ColorType.DEFAULT}
    async with open_app(ANSWER, theme="light") as window:  # asked for by name
        await window.send("hi")
        await window.shows("The END")
        assert window.app.theme == "pkvchat-light"
        assert sent_colours(window) == {ColorType.DEFAULT}


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        ([*"/re", "down", "down"], "/regen"),
        (["ctrl+p", "down"], "close this chat"),
        (["f5"], "▎ New chat"),
    ],
)
async def test_without_colours_the_highlighted_row_of_a_list_is_underlined(
    open_app: OpenApp,
    store: ChatStore,
    monkeypatch: pytest.MonkeyPatch,
    keys: list[str],
    row: str,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_app(store=store) as window:
        await window.press(*keys)
        await window.shows(row)

        def underlined() -> list[str]:
            strips = window.app.screen._compositor.render_strips()
            texts = (
                "".join(s.text for s in strip if s.style and s.style.underline) for strip in strips
            )
            return [text.strip() for text in texts if text.strip()]

        await window.settle(lambda: len(underlined()) == 1)
        assert underlined()[0].startswith(row)


def test_a_theme_that_does_not_exist_is_said_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"theme 'beige' does not exist; one of dark, .*dracula"):
        run(EngineOptions(), SamplingParams(), Settings(theme="beige"))


async def test_the_theme_can_be_changed(open_app: OpenApp) -> None:
    async with open_app(ANSWER) as window:
        await window.send("hi")
        await window.shows("The END")
        for name in ("light", "terminal", "nord"):
            await window.send(f"/theme {name}")
            await window.shows("The END")
        assert window.app.theme == "nord"
        await window.send("/theme beige")
        assert "no theme 'beige'" in window.notes[-1]


async def test_the_terminals_own_theme_uses_no_colours_but_its_own(open_app: OpenApp) -> None:
    async with open_app(ANSWER, theme="terminal") as window:
        await window.send("hi")
        await window.shows("The END")
        await window.press("f5")
        assert sent_colours(window) <= {ColorType.DEFAULT, ColorType.STANDARD}


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_what_is_said_in_passing_leaves_the_composer_in_sight(
    open_app: OpenApp, size: tuple[int, int]
) -> None:
    async with open_app(size=size, toasts=True) as window:
        app = window.app
        await window.press(*"typed", *["ctrl+j"] * 8, *"here")
        for number in range(5):
            app.notify(f"{number} " + "of many words " * 20, timeout=60)
        await window.shows("0 of many words")
        rows = [y for y, line in enumerate(window.text.splitlines()) if "words" in line]
        assert 0 < rows[0] < rows[-1] < app.composer.region.y
        await window.press("f4")
        await window.shows("no decode step yet", "0 of many words")
        rows = [y for y, line in enumerate(window.text.splitlines()) if "words" in line]
        assert rows[-1] <= size[1] // 2, "a step's record is below"
