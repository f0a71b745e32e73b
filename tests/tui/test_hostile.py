"""What the engine says is drawn, never obeyed, wherever it is shown; and no text is too long."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pkvchat.messages import Delta, Died, Failed, Finished, Loading, Notice, Ready, Started, Steps

OpenApp = Callable[..., Any]
HOSTILE = "[red]x[/] [/nope] \x1b[2J\x1b]52;c;aGk=\x07 a\u202eb\u200bc \x00 \ud800 👩\u200d👧 שלום"
ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\ud800-\udfff]")


def drawn(window: Any) -> bool:
    """Something of it is on the screen, and nothing that acts is."""
    return "[red]x[/]" in window.text and not ACTS.findall(window.text)


async def test_loading_failing_and_dying_are_said_in_any_words(open_app: OpenApp) -> None:
    async with open_app(loaded=False) as window:
        window.say(Loading(HOSTILE, 1, 2))
        await window.settle(lambda: drawn(window))
        window.say(Notice(None, HOSTILE), Failed(None, HOSTILE))
        await window.settle(lambda: drawn(window) and window.text.count("[red]x[/]") >= 3)
        window.say(Died(HOSTILE))
        await window.settle(lambda: drawn(window) and "restart" in window.text)


@pytest.mark.parametrize("size", [(120, 40), (60, 20)])
async def test_models_devices_and_reasons_have_any_names(
    open_app: OpenApp, ready: Ready, record: Callable[..., Any], size: tuple[int, int]
) -> None:
    async with open_app(size=size, loaded=False) as window:
        names = replace(ready, model=HOSTILE, device=HOSTILE, dtype=HOSTILE, template=HOSTILE)
        window.say(names, Steps((record(1, reason=HOSTILE),)))
        await window.settle(lambda: drawn(window))
        await window.send("/show template")
        await window.settle(lambda: drawn(window))
        await window.press("f4")
        await window.settle(lambda: drawn(window))


async def test_a_line_of_a_megabyte_is_a_line(open_app: OpenApp) -> None:
    line = "x" * 1_000_000 + "END"
    async with open_app() as window:
        chat = await window.ask(line)
        window.say(Started(chat, 9, 0), Delta(chat, line, 9))
        window.say(Finished(chat, "stop", 9, 9, 0.1, 1.0))
        await window.settle(lambda: "END" in window.text, seconds=60)
        window.say(Failed(chat, line))
        await window.settle(lambda: len(window.chat.messages) == 3)
        await window.press("ctrl+t", "ctrl+pageup")
        assert window.chat.title.startswith("xxx")
        assert window.prompts() == [[line]]
