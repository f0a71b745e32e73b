"""What the panel says, wide and narrow, with and without colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pkvchat.messages import Delta, Finished, Prefilled, Ready, Started, Steps

Make = Callable[..., Any]


async def at_work(engine: Any, pilot: Any, record: Make, send: Make) -> None:
    """Two chats that decode and one whose prompt is read; ten steps of two strategies."""
    for prompt in ("one", "two", "three"):
        await send(pilot, prompt)
        await pilot.press("ctrl+t")
    await pilot.pause()
    one, two, three = (submit.chat_id for submit in engine.submits())
    engine.say(
        Started(one, 100, 0),
        Started(two, 50, 0),
        Started(three, 4000, 0),
        Delta(one, "ONE", 20),
        Delta(two, "TWO", 20),
        Prefilled(three, 1000, 4000),
        *(
            Steps(
                (
                    record(
                        number,
                        "split" if number < 8 else "sdpa",
                        batch=2,
                        seq_lens=(121, 71),
                        step_ms=10.0 if number < 8 else 20.0,
                        pages_shared=3,
                    ),
                )
            )
            for number in range(10)
        ),
    )


async def test_wide_it_says_everything(
    scripted: Make,
    make_app: Make,
    ready: Ready,
    record: Make,
    settle: Make,
    screen_text: Make,
    send: Make,
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(120, 50)) as pilot:
        engine.say(ready)
        await at_work(engine, pilot, record, send)
        await settle(pilot, lambda: "reads 1,000/4,000" in screen_text(app))
        text = " ".join(screen_text(app).split())
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
            "65 used, 3 shared, 447 free",
            "batch of 2",
            "120 of 8,192",
            "70 of 8,192",
        ):
            assert fact in text, fact
        engine.say(Finished(engine.submits()[0].chat_id, "stop", 100, 20, 0.25, 9.0))
        await settle(pilot, lambda: "0.25 s  p95 0.25" in screen_text(app))


@pytest.mark.parametrize("width", [30, 45, 60, 99])
async def test_narrow_no_fact_is_cut(
    scripted: Make,
    make_app: Make,
    ready: Ready,
    record: Make,
    settle: Make,
    screen_text: Make,
    width: int,
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(width, 24)) as pilot:
        engine.say(ready, Steps((record(1),)))
        await settle(pilot, lambda: "one long row" in screen_text(app))
        first, second, _ = (strip.text.strip() for strip in app.panel._lines)
        assert first.startswith("S  split ×4")
        assert max(len(first), len(second)) <= width - 4
        facts = {"102.0 tokens/s", "batch 1", "pages 65/512", "average 102.0"}
        assert set(first.split("  ")[2:]) <= facts


async def test_the_policy_is_changed_by_a_key(
    scripted: Make, make_app: Make, ready: Ready, settle: Make
) -> None:
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        engine.say(ready)
        await settle(pilot, lambda: app.session.state.ready)
        await pilot.press("f8")
        assert engine.sent[-1].name == "forced-split"


async def test_without_colour_letters_tell_strategies_apart(
    scripted: Make, make_app: Make, ready: Ready, record: Make, settle: Make, monkeypatch: Any
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    engine = scripted()
    app = make_app(engine)
    async with app.run_test(size=(120, 40)) as pilot:
        engine.say(ready, Steps((record(1, "split"), record(2, "workqueue"))))
        await settle(pilot, lambda: app.session.meter.recent)
        await pilot.pause(0.3)
        lines = app.screen._compositor.render_strips()
        assert "SW" in "\n".join(strip.text for strip in lines)
        colours = {
            colour.get_truecolor()
            for strip in lines
            for segment in strip
            if segment.style
            for colour in (segment.style.color, segment.style.bgcolor)
            if colour and not colour.is_default
        }
        assert all(red == green == blue for red, green, blue in colours)
