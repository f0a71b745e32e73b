"""A long task's line on a terminal, and elsewhere."""

from __future__ import annotations

import io

import pytest

from pkvchat.progress_line import ProgressLine


@pytest.mark.parametrize("live", [True, False])
def test_what_a_name_holds_is_shown_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: live)
    ProgressLine(stream)("a\x1b]0;title\x07\nb", 1, 4)
    assert "a␛]0;title␇ b" in stream.getvalue()
