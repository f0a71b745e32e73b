"""The box a person types in."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual import events

from pkvchat.messages import Finished, Stop

OpenApp = Callable[..., Any]


async def test_history_walks_back_and_returns_what_was_typed(open_app: OpenApp) -> None:
    async with open_app("ok") as window:
        composer = window.app.composer
        for text in ("first", "second"):
            await window.send(text)
            await window.settle(lambda: not window.app.tab.busy)
        await window.press(*"third", "up", "up")
        assert composer.text == "first"
        await window.press("up", "down", "down")
        assert composer.text == "third"


async def test_a_huge_paste_is_folded_on_screen_and_sent_whole(open_app: OpenApp) -> None:
    huge = "x" * 1_000_000
    async with open_app() as window:
        composer = window.app.composer
        await window.press(*"see ")
        composer.post_message(events.Paste(huge))
        await window.pilot.pause()
        assert composer.text == "see [paste 1: 1,000,000 characters]"
        await window.press("ctrl+t", "ctrl+pageup")
        assert composer.full_text == "see " + huge
        await window.press("enter")
        await window.settle(window.prompts)
        assert window.prompts() == [["see " + huge]]


async def test_the_prompt_can_be_written_in_an_editor(
    open_app: OpenApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "ed"
    script.write_text('#!/bin/sh\nprintf " and more" >> "$1"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", os.fspath(script))
    async with open_app(loaded=False) as window:
        monkeypatch.setattr(window.app, "suspend", _no_terminal)
        await window.press(*"text", "ctrl+g")
        assert window.app.composer.text == "text and more"


class _no_terminal:
    """In place of App.suspend, which the headless driver cannot do."""

    def __enter__(self) -> None: ...
    def __exit__(self, *exc: object) -> None: ...


async def test_files_go_into_the_prompt_and_names_complete(
    open_app: OpenApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("remember\x1b[2J", encoding="utf-8")
    (tmp_path / "more.md").write_text("and this", encoding="utf-8")
    async with open_app() as window:
        composer = window.app.composer
        await window.press(*"/rea", "tab")
        assert composer.text == "/read "
        await window.press("n", "tab")
        assert composer.text == "/read notes.txt "
        await window.press("enter")
        assert composer.text == "notes.txt:\n```\nremember[2J\n```\n"
        composer.take("")
        await window.send("/glob *.md")
        assert "and this" in composer.text
        composer.take("")
        await window.press(*"/policy forced-w", "tab")
        assert composer.text == "/policy forced-workqueue "


async def test_ctrl_c_stops_then_clears_then_quits(open_app: OpenApp) -> None:
    async with open_app() as window:
        app, chat = window.app, await window.ask("go")
        await window.press(*"draft", "ctrl+c")
        assert Stop(chat) in window.engine.sent
        assert app.composer.text == "draft"
        window.say(Finished(chat, "cancelled", 5, 0, 0.1, 0.0))
        await window.settle(lambda: not app.tab.busy)
        await window.press("ctrl+c")
        assert app.composer.text == ""
        await window.press("ctrl+z")
        assert app.composer.text == "draft"
        await window.press("ctrl+c", "ctrl+c")
        assert app.is_running
        await window.press("ctrl+c")
    assert app.return_code == 0


async def test_a_slash_command_is_run_and_never_sent(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.send("/nosuch thing")
        assert window.app.composer.text == "/nosuch thing"
        assert "There is no /nosuch" in window.notes[-1]
        window.app.composer.take("")
        await window.ask("//etc is a folder?")
        assert window.prompts() == [["/etc is a folder?"]]
