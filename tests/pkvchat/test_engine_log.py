"""The file that the engine process prints to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pkvchat.engine_log import EngineLog
from pkvchat.errors import ChatError


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ended_pid() -> int:
    """Of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_logs_of_killed_programs_go_and_those_of_others_stay(temporary: Path) -> None:
    ended, running = ended_pid(), os.getppid()
    for folder in (f"{ended}-a", f"{ended}-b", f"{running}-c", "draft", "x-y", "9" * 30 + "-z"):
        (temporary / f"pkvchat-{folder}").mkdir()
    for log in (f"{ended}-a/engine.log", f"{ended}-b/engine-7.log", f"{running}-c/engine.log"):
        (temporary / f"pkvchat-{log}").write_text("said")
    log = EngineLog()
    left = {path.name.removeprefix("pkvchat-") for path in temporary.iterdir()}
    own = log.path.parent.name.removeprefix("pkvchat-")
    assert left == {own, f"{ended}-b", f"{running}-c", "draft", "x-y", "9" * 30 + "-z"}
    assert (temporary / f"pkvchat-{running}-c/engine.log").read_text() == "said"


def test_a_link_in_a_folders_place_is_not_followed(temporary: Path) -> None:
    """Others may have put it there, where all can write."""
    log = temporary / "mine" / "engine.log"
    log.parent.mkdir()
    log.write_text("said")
    (temporary / f"pkvchat-{ended_pid()}-a").symlink_to("mine")
    EngineLog()
    assert log.exists()


def test_no_place_for_a_log_is_told_in_one_line(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))
    with pytest.raises(ChatError, match=r"engine's log can be made \(.*No such file.*set TMPDIR"):
        EngineLog()


def test_a_log_that_is_kept_outlives_the_next() -> None:
    log = EngineLog()
    log.path.write_text("why")
    kept = log.keep(7)
    assert kept.read_text() == "why"
    log.prepare()
    log.path.write_text("of the next process")
    log.remove()
    assert list(log.path.parent.iterdir()) == [kept]
    kept.unlink()
    log.remove()
    assert not log.path.parent.exists()
    log.prepare()
    assert log.path.parent.stat().st_mode & 0o777 == 0o700
    assert log.keep(8) == log.path, "there was none to keep"
