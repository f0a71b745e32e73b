"""Every screen as a picture, wide, narrow, light and in the terminal's 16 colours.

Each must equal the SVG in ``screens/``. After a change that is meant,
``UPDATE_SCREENS=1 python -m pytest tests/tui/test_screens.py`` writes them anew: look at each.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.strip import Strip
from textual.widgets import Input

from pkvchat import meter, open_chat
from pkvchat.chats import Chat
from pkvchat.messages import (
    Delta,
    Failed,
    Finished,
    Loading,
    Pages,
    Prefilled,
    Ready,
    Started,
    Steps,
)
from pkvchat.steps import StepRecord
from pkvchat.store import ChatStore
from pkvchat.tui import tabstrip
from pkvchat.tui.palette import THEME_NAMES

OpenApp = Callable[..., Any]
SCREENS = Path(__file__).parent / "screens"
FORMS = (
    ("wide", (120, 40), "dark"),
    ("narrow", (60, 20), "dark"),
    ("light", (100, 30), "light"),
    ("ansi", (100, 30), "terminal"),
)
READY = Ready(
    model="SmolLM2-135M-Instruct",
    device="NVIDIA H200",
    dtype="bf16",
    context=8192,
    pages_total=512,
    page_size=16,
    policy="adaptive",
    strategies={"flashinfer": "", "split": "", "workqueue": "", "sdpa": ""},
)
ANSWER = """The rainbow has **many** colours; three of them are:

- red
- *green*
- `blue`

```python
def colours(n: int) -> list[str]:
    return ["red", "green", "blue"][:n]
```
"""


Act = Callable[[Any, SimpleNamespace], Awaitable[None]]


async def picture(window: Any) -> str:
    """The screen as SVG, once nothing moves any more."""
    for line in window.app.screen.query(Input):
        line.cursor_blink = False
    window.app.draw_around()
    before = None
    while window.app._frame_due or before != (before := _drawn(window)):
        await window.pilot.pause(0.1)
    return str(window.app.export_screenshot())


def _drawn(window: Any) -> list[Strip]:
    strips: list[Strip] = window.app.screen._compositor.render_strips()
    return strips


async def begin(window: Any, ready: Ready) -> None:
    window.say(ready)
    await window.settle(lambda: window.app.session.state.ready)


async def first_start(window: Any, _: SimpleNamespace) -> None:
    pass


async def loading(window: Any, _: SimpleNamespace) -> None:
    window.say(Loading("reading weights", 30, 120))
    await window.press(*"already typed", "ctrl+j", *"while it loads")
    await window.settle(lambda: window.app.session.state.total)


async def chats(window: Any, clock: SimpleNamespace) -> None:
    """One chat answered, one that is being answered, and one whose prompt is read."""
    app, engine = window.app, window.engine
    await begin(window, READY)
    for prompt in ("Name three colours of the rainbow.", "What is a fork?", "Read this [file]"):
        app.composer.insert(prompt)
        await window.press("enter", "ctrl+t")
    one, two, three = (submit.chat_id for submit in engine.submits())
    engine.say(Started(one, 34, 0), Started(two, 31, 0), Started(three, 4000, 0))
    engine.say(Delta(one, ANSWER, 60), Delta(two, "A fork shares", 3))
    await window.settle(lambda: app.tabs[1].answer.text)
    clock.now += 1.5
    engine.say(
        Prefilled(three, 1000, 4000),
        Steps(tuple(starmap(_step, enumerate("S" * 30 + "D" * 12 + "W" * 9 + "F" * 5 + "S" * 9)))),
        Pages(71, 20, 512),
        Delta(two, " the pages of", 27),
        Finished(one, "stop", 34, 60, 0.21, 96.3),
    )
    await window.settle(lambda: not app.tabs[0].busy)
    await window.press("alt+1")


def _step(number: int, letter: str) -> StepRecord:
    return StepRecord(
        step=number,
        strategy={"S": "split", "D": "sdpa", "W": "workqueue", "F": "flashinfer"}[letter],
        reason="1 of 2 rows is long: split is predicted 1.15x as fast as workqueue",
        batch=2,
        seq_lens=(94, 1034),
        num_splits=4,
        predicted_us={"split": 41.0, "workqueue": 47.0, "flashinfer": 49.0, "sdpa": 130.0},
        step_ms=9.0 + number % 7,
        tokens_per_s=200.0 - number,
        pages_used=71,
        pages_total=512,
        pages_shared=20,
    )


async def engine_died(window: Any, clock: SimpleNamespace) -> None:
    await chats(window, clock)
    await window.press("alt+2")
    window.engine.die()
    await window.settle(lambda: window.app.session.state.dead)


async def context_full(window: Any, _: SimpleNamespace) -> None:
    await begin(window, replace(READY, model_context=32768, memory_context=20000))
    for role, text in ("user", "Sum up the first chapter."), ("assistant", "A storm, a ship."):
        window.app.tab.chat.add(role, text).version.reason = "stop"
    window.app.composer.insert("And the last chapter?")
    await window.press("enter")
    (submit,) = window.engine.submits()
    line = "the prompt has 9000 tokens, 809 too many for a context of 8192: shorten it"
    window.say(Failed(submit.chat_id, line, context_full=True))
    await window.settle(lambda: len(window.app.screen_stack) == 2)


async def summary(window: Any, _: SimpleNamespace) -> None:
    await begin(window, READY)
    talk = Chat()
    talk.add("user", "Name three colours of the rainbow.")
    talk.add("assistant", "Red, green and blue.").version.reason = "stop"
    talk.add("summary", "The rainbow's colours were asked for.").version.reason = "stop"
    talk.add("user", "And two more?")
    talk.add("assistant", "Orange and").version.reason = "cancelled"
    window.app.tab.chat.messages += talk.messages
    window.app.changed(window.app.tab)


# What the picture is named, what happens before it, and the keys that open what it shows.
SCENES: tuple[tuple[str, Act, tuple[str, ...]], ...] = (
    ("first-start", first_start, ()),
    ("loading", loading, ()),
    ("chat", chats, ()),
    ("browse", chats, ("shift+tab",)),
    ("commands", chats, (*"/re", "down")),
    ("inspector", chats, ("f4", "down", "down")),
    ("help", chats, ("f1",)),
    ("palette", chats, ("ctrl+p", *"chat")),
    ("search", chats, ("ctrl+o", *"rainbow")),
    ("rename", chats, ("f2",)),
    ("settings", chats, ("alt+s",)),
    ("sidebar", chats, ("f5",)),
    ("engine-died", engine_died, ()),
    ("context-full", context_full, ()),
    ("summary", summary, ()),
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the figures take for the time, in seconds; ``now`` can be set."""
    clock = SimpleNamespace(now=100.0)
    for module in (meter, open_chat):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(tabstrip, "SPINNER", "⠿")
    return clock


@pytest.mark.parametrize(("name", "act", "keys"), SCENES, ids=[scene[0] for scene in SCENES])
async def test_screens_look_as_they_were_approved(
    name: str,
    act: Act,
    keys: tuple[str, ...],
    open_app: OpenApp,
    store: ChatStore,
    clock: SimpleNamespace,
    tmp_path: Path,
) -> None:
    differing = []
    async with open_app(size=FORMS[0][1], store=store, loaded=False) as window:
        window.app.composer.cursor_blink = False
        await act(window, clock)
        for form, size, theme in FORMS:
            window.app.theme = THEME_NAMES[theme]
            await window.pilot.resize_terminal(*size)
            await window.press(*keys)
            svg = await picture(window)
            if keys:
                await window.press(*("escape", "f5") if keys == ("f5",) else ("escape",))
                window.app.composer.take("")
            if not approved(SCREENS / f"{name}-{form}.svg", svg):
                new = tmp_path / f"{name}-{form}.svg"
                new.write_text(svg, encoding="utf-8")
                differing.append(str(new))
    assert not differing, f"not as in {SCREENS}"


def approved(path: Path, svg: str) -> bool:
    if os.environ.get("UPDATE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(svg, encoding="utf-8")
    return path.exists() and path.read_text(encoding="utf-8") == svg
