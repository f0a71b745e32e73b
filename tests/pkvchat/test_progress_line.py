"""A long task's line on a terminal, and elsewhere."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios

import pytest

from pkvchat.progress_line import ProgressLine

CLEAR = "\r\x1b[K"


def test_on_a_terminal_it_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    progress = ProgressLine(terminal)
    for done in (100, 101, 400):
        progress("weights", done, 400)
    progress("tokenizer", 0, 0)
    progress.close()
    lines = ("weights 25%", "weights 100%", "tokenizer", "")
    assert terminal.getvalue() == "".join(f"{CLEAR}{line}" for line in lines)


def test_elsewhere_it_is_a_line_for_each_stage() -> None:
    log = io.StringIO()
    progress = ProgressLine(log)
    for done in range(4):
        progress("weights", done, 4)
    progress("tokenizer", 0, 0)
    progress.close()
    assert log.getvalue() == "weights ...\ntokenizer ...\n"


def test_it_does_not_wrap() -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    with os.fdopen(theirs, "w") as terminal:
        ProgressLine(terminal)("downloading some-model", 1, 4)
        assert os.read(ours, 99).decode() == f"{CLEAR}downloading som 25%"
    os.close(ours)


@pytest.mark.parametrize("live", [True, False])
def test_what_a_name_holds_is_shown_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: live)
    ProgressLine(stream)("a\x1b]0;title\x07\nb", 1, 4)
    assert "a␛]0;title␇ b" in stream.getvalue()
