"""What the panel says, wide and narrow, with and without colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pkvchat.messages import Delta, Finished, Pages, Prefilled, SetPolicy, Started, Steps
from pkvchat.steps import StepRecord

OpenApp = Callable[..., Any]
Record = Callable[..., StepRecord]


async def test_wide_it_says_everything(open_app: OpenApp, record: Record) -> None:
    """Of two chats that decode and one whose prompt is read, and ten steps of two strategies."""
    steps = [
        record(n, name, batch=2, seq_lens=(121, 71), step_ms=ms, pages_shared=3)
        for n, (name, ms) in enumerate([("split", 10.0)] * 8 + [("sdpa", 20.0)] * 2)
    ]
    async with open_app(size=(120, 50)) as window:
        chats = []
        for prompt in ("one", "two", "three"):
            chats.append(await window.ask(prompt))
            await window.press("ctrl+t")
        one, two, three = chats
        window.say(
            Started(one, 100, 0),
            Started(two, 50, 0),
            Started(three, 4000, 0),
            Delta(one, "ONE", 20),
            Delta(two, "TWO", 20),
            Prefilled(three, 1000, 4000),
            Steps(tuple(steps)),
            Pages(65, 3, 512),
        )
        await window.shows("reads 1,000/4,000")
        text = " ".join(window.text.split())
        for fact in (
            "policy adaptive F8 changes it",
            "D sdpa ×4",
            "one long row: split it over the",
            "SSSSSSSSDD",
            "S 80% D 20%",
            "D sdpa 130 µs 20.0 ms",
            "S split 41 µs 10.0 ms",
            "W workqueue 47 µs -",
            "next token 10.0 ms p95 20.0",
            "first token - KV pages",  # no answer has ended yet
            "65 used, 3 shared, 447 free",
            "batch of 2",
            "120 of 8,192",
            "70 of 8,192",
        ):
            assert fact in text, fact
        window.say(Finished(one, "stop", 100, 20, 0.25, 9.0))
        await window.shows("0.25 s  p95 0.25")
        window.say(Pages(40, 0, 512))  # a chat was deleted
        await window.shows("40 used, 0 shared, 472 free")


@pytest.mark.parametrize("width", [30, 45, 60, 99])
async def test_narrow_no_fact_is_cut(open_app: OpenApp, record: Record, width: int) -> None:
    async with open_app(size=(width, 24)) as window:
        window.say(Steps((record(1),)), Pages(65, 0, 512))
        await window.settle(lambda: window.app.panel._meter.last)
        await window.settle(lambda: len(window.app.panel._lines) == 3)
        first, second, _ = (strip.text.strip() for strip in window.app.panel._lines)
        assert first.startswith("S  split ×4")
        assert max(len(first), len(second)) <= width - 4
        facts = {"102.0 tokens/s", "batch 1", "pages 65/512", "average 102.0"}
        assert set(first.split("  ")[2:]) <= facts


async def test_a_fork_has_its_tokens_and_what_nobody_counted_has_none(open_app: OpenApp) -> None:
    async with open_app("blue", size=(120, 40)) as window:
        await window.ask("sky?")
        await window.shows("25 of 8,192")
        await window.send("/fork")
        assert window.app.tab.context_tokens == 25
        await window.shows("25 of 8,192")
        await window.press("ctrl+w")
        await window.send("/reopen")
        await window.shows("- of 8,192")


async def test_the_policy_is_changed_by_a_key(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press("f8")
        assert window.engine.sent[-1] == SetPolicy("forced-split")


async def test_the_policy_is_said_and_left_alone_without_a_name(open_app: OpenApp) -> None:
    async with open_app(size=(120, 40)) as window:
        sent = len(window.engine.sent)
        await window.send("/policy")
        await window.shows("policy: adaptive; there are adaptive, forced-")
        assert len(window.engine.sent) == sent


async def test_without_colour_letters_tell_strategies_apart(
    open_app: OpenApp, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_app(size=(120, 40)) as window:
        window.say(Steps((record(1, "split"), record(2, "workqueue"))))
        await window.shows("SW")
        colours = {
            colour.get_truecolor()
            for strip in window.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style
            for colour in (segment.style.color, segment.style.bgcolor)
            if colour and not colour.is_default
        }
        assert all(red == green == blue for red, green, blue in colours)


async def test_a_window_that_changes_is_laid_out_for_its_new_size(open_app: OpenApp) -> None:
    async with open_app(size=(120, 40)) as window:
        for size, classes in [
            ((60, 20), {"-line", "-few"}),
            ((120, 40), {"-few"}),
            ((120, 16), {"-line"}),
            ((120, 12), {"-line", "-hidden"}),
        ]:
            await window.pilot.resize_terminal(*size)
            await window.pilot.pause()
            assert window.app.panel.classes == classes, size


async def test_of_a_dead_engine_it_says_the_key_that_restarts_it(open_app: OpenApp) -> None:
    async with open_app(size=(120, 50), keys={"retry": "f12"}) as window:
        window.engine.die()
        await window.shows("the engine ended; F12 restarts it")
        await window.press("f12")
        await window.shows("the engine is not ready yet")
