"""A scripted engine with EngineClient's interface, for event sequences a real one won't produce
on demand; and a way to run ``async def`` tests."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pkvchat.chats import Chat
from pkvchat.messages import (
    Delta,
    Died,
    Event,
    Finished,
    Pages,
    Ready,
    Request,
    Started,
    Steps,
    Submit,
)
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.steps import StepRecord
from pkvchat.store import ChatStore
from pkvchat.tui.app import ChatApp

READY = Ready(
    model="SmolLM2-135M-Instruct",
    device="cpu",
    dtype="f32",
    context=8192,
    pages_total=512,
    page_size=16,
    policy="adaptive",
    strategies={"flashinfer": "no CUDA device", "split": "", "workqueue": "", "sdpa": ""},
)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests; their fixtures are ordinary ones."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def step(number: int, strategy: str = "split", **changes: object) -> StepRecord:
    values: dict[str, object] = {
        "step": number,
        "strategy": strategy,
        "reason": "one long row: split it over the cores",
        "batch": 1,
        "seq_lens": (1024,),
        "num_splits": 4,
        "predicted_us": {"split": 41.0, "workqueue": 47.0, "sdpa": 130.0},
        "step_ms": 9.8,
        "tokens_per_s": 102.0,
        "pages_used": 65,
        "pages_total": 512,
    }
    return StepRecord(**{**values, **changes})  # type: ignore[arg-type]


class ScriptedEngine:
    """Says what a test tells it to; ``on_submit`` may answer a prompt by itself."""

    def __init__(self, on_submit: Callable[[Submit], list[Event]] | None = None) -> None:
        self.options = EngineOptions()
        self.sent: list[Request] = []
        self.starts = 1
        self.may_end = threading.Event()  # clear: an engine in a long step
        self.may_end.set()
        self._on_submit = on_submit
        self._events: queue.Queue[list[Event]] = queue.Queue()

    def start(self) -> None:
        self.starts += 1

    def close(self) -> None:
        self.may_end.wait()

    def send(self, request: Request) -> None:
        self.sent.append(request)
        if isinstance(request, Submit) and self._on_submit:
            self.say(*self._on_submit(request))

    def say(self, *events: Event) -> None:
        self._events.put(list(events))

    def die(self) -> None:
        self.say(Died("the engine process ended (killed by signal 9)"))

    def events(self, timeout: float | None = None) -> list[Event]:
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return []

    def submits(self) -> list[Submit]:
        return [request for request in self.sent if isinstance(request, Submit)]


def answer(text: str) -> Callable[[Submit], list[Event]]:
    """An ``on_submit`` that answers every prompt with ``text``."""

    def reply(request: Submit) -> list[Event]:
        chat = request.chat_id
        return [
            Started(chat, 20, 0),
            Delta(chat, text, 5),
            Steps((step(1),)),
            Pages(65, 0, 512),
            Finished(chat, "stop", 20, 5, 0.21, 96.3),
        ]

    return reply


class Window:
    """An app that is open under Pilot on a scripted engine."""

    def __init__(self, app: ChatApp, engine: ScriptedEngine, pilot: Pilot[Any]) -> None:
        self.app, self.engine, self.pilot = app, engine, pilot

    @property
    def chat(self) -> Chat:
        """The active one."""
        return self.app.tab.chat

    @property
    def text(self) -> str:
        """All characters on the screen, line by line."""
        return "\n".join(s.text for s in self.app.screen._compositor.render_strips())

    @property
    def notes(self) -> list[str]:
        """What the app said in passing."""
        return [notification.message for notification in self.app._notifications]

    def say(self, *events: Event) -> None:
        self.engine.say(*events)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def send(self, text: str) -> None:
        """Type a prompt or a command and press Enter."""
        self.app.composer.insert(text)
        await self.press("enter")

    async def settle(self, condition: Callable[[], object], seconds: float = 5) -> None:
        """Wait until ``condition`` holds."""
        for _ in range(int(seconds / 0.02)):
            if condition():
                return
            await self.pilot.pause(0.02)
        raise AssertionError(f"never came true; the screen:\n{self.text}")

    async def shows(self, *texts: str) -> None:
        for text in texts:
            await self.settle(lambda text=text: text in self.text)  # type: ignore[misc]

    async def ask(self, prompt: str) -> str:
        """Send a prompt and have it taken by the engine; returns the chat's id."""
        before = len(self.engine.submits())
        await self.send(prompt)
        await self.settle(lambda: len(self.engine.submits()) > before)
        return self.chat.id

    def prompts(self) -> list[list[str]]:
        """What the engine was asked to answer: each time the whole conversation."""
        return [[m.content for m in submit.messages] for submit in self.engine.submits()]


@pytest.fixture
def open_app() -> Callable[..., AbstractAsyncContextManager[Window]]:
    """Open an app: ``says`` answers every prompt, else ``on_submit`` or nobody does; ``loaded`` has
    the engine ready; ``toasts`` shows what is said in passing; the rest are settings."""

    @asynccontextmanager
    async def opened(
        says: str = "",
        *,
        size: tuple[int, int] = (140, 30),
        on_submit: Callable[[Submit], list[Event]] | None = None,
        store: ChatStore | None = None,
        path: Path | None = None,
        loaded: bool = True,
        toasts: bool = False,
        **settings: object,
    ) -> AsyncIterator[Window]:
        engine = ScriptedEngine(answer(says) if says else on_submit)
        chosen = Settings(**settings)  # type: ignore[arg-type]
        app = ChatApp(engine, SamplingParams(), chosen, store, path)  # type: ignore[arg-type]
        async with app.run_test(size=size, notifications=toasts) as pilot:
            window = Window(app, engine, pilot)
            if loaded:
                engine.say(READY)
                await window.settle(lambda: app.session.state.ready)
            yield window

    return opened


@pytest.fixture
def talk() -> Chat:
    """Two prompts and their answers."""
    chat = Chat()
    for role, text in [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2")]:
        chat.add(role, text).version.reason = "stop"
    return chat


@pytest.fixture
def store(tmp_path: Path) -> ChatStore:
    return ChatStore(tmp_path / "chats.db")


@pytest.fixture
def ready() -> Ready:
    return READY


@pytest.fixture
def record() -> Callable[..., StepRecord]:
    return step
