"""The step inspector."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pkvchat.messages import Pages
from pkvchat.tui.inspector import Inspector

OpenApp = Callable[..., Any]


async def test_it_shows_filters_and_saves_steps(
    open_app: OpenApp,
    record: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_app(size=(120, 40)) as window:
        meter = window.app.session.meter
        meter.add([record(1, "split"), record(2, "sdpa", reason="few [rows]")])
        await window.press("f4")
        await window.shows("few [rows]")
        assert isinstance(window.app.screen, Inspector)
        for fact in ("1,024", "no task list: 64 pages gathered", "130.0 µs", "65 of 512 used"):
            assert fact in window.text
        await window.press("f")
        await window.shows("1 step, sdpa")
        await window.press("s", "space")
        saved = Path("steps.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["step"] for line in saved] == [2]
        meter.add([record(3, "sdpa")])
        await window.pilot.pause(0.6)
        assert "1 step, sdpa, paused" in window.text
        window.say(Pages(40, 0, 512))  # a chat was deleted: the steps stay what they were
        await window.shows("0 of them shared; 40 used now")
        assert "65 of 512 used" in window.text
        await window.press("escape")
        assert len(window.app.screen_stack) == 1


async def test_steps_that_cannot_be_saved_are_told(
    open_app: OpenApp, record: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/proc")  # nobody may write here, root neither
    async with open_app() as window:
        window.app.session.meter.add([record(1)])
        await window.press("f4", "s")
        await window.settle(lambda: window.notes)
        assert window.notes == ["Cannot write steps.jsonl: No such file or directory"]


async def test_its_columns_fit_in_80(open_app: OpenApp, record: Callable[..., Any]) -> None:
    async with open_app(size=(80, 24)) as window:
        window.app.session.meter.add(
            [
                record(123456, "flashinfer", num_splits=1, seq_lens=(131072,), pages_used=13234),
                record(123457, "split", num_splits=16, seq_lens=(131072,), pages_used=13234),
            ]
        )
        await window.press("f4")
        await window.shows("S split ×16")
        head, *rows = window.text.splitlines()[1:4]
        assert head.split()[-1] == "pages"
        assert [row.split()[-1] for row in rows] == ["13,234", "13,234"]
