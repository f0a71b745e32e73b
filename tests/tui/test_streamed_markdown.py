"""Streamed Markdown ends as the same lines as Markdown that came at once, and hides nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.tui.markdown import MarkdownRenderer
from pkvchat.tui.palette import CALM_DARK, Palette
from pkvchat.tui.streamed_markdown import StreamedMarkdown

RENDERER = MarkdownRenderer(Palette.of(CALM_DARK))
PIECES = [
    "*",  # alone a list item, before more text emphasis that goes on with the block above
    "- \r\n",
    "~\n",
    "# Head\n",
    "Some *words* and `code`, [not markup].\n",
    "second line\n",
    "\n",
    "- one\n",
    "  - two\n",
    "1. first\n",
    "> quote\n",
    "```python\n",
    "def f(x):\n    return x\n",
    "```\n",
    "~~~\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "***\n",
    "<think>tag</think>\n",
    "    indented\n",
    "\r\n",
    "no line end",
]
DOCUMENTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def shown(text: str, width: int = 60) -> list[str]:
    return [strip.text.rstrip() for strip in StreamedMarkdown(RENDERER, width).lines(text)]


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.lists(st.integers(1, 30), max_size=40), st.sampled_from([8, 20, 60]))
def test_streaming_ends_as_the_whole(text: str, cuts: list[int], width: int) -> None:
    streamed = StreamedMarkdown(RENDERER, width)
    end = 0
    for cut in cuts:
        end += cut
        streamed.lines(text[:end])
    lines = [strip.text.rstrip() for strip in streamed.lines(text)]
    assert lines == shown(text, width)


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.sampled_from([8, 20, 60]))
def test_every_word_is_shown(text: str, width: int) -> None:
    ink = re.sub(r"[\s│▌]", "", "".join(shown(text, width)))
    for word in re.findall(r"\w+", text):
        assert word in ink


def test_lines_fit_their_width() -> None:
    text = "word " * 50 + "\n\n```\n" + "x" * 200 + "\n```\n\n" + "y" * 200
    for strip in StreamedMarkdown(RENDERER, 40).lines(text):
        assert strip.cell_length <= 42


@pytest.mark.parametrize("nest", ["- ", "> ", "1. "])
def test_nesting_too_deep_for_the_window_still_shows_its_text(nest: str) -> None:
    assert "bottom" in "".join(shown(nest * 30 + "bottom", 40))


def test_a_table_too_wide_is_shown_as_written() -> None:
    rows = ["|head" * 30 + "|", "|---" * 30 + "|", "|cell" * 30 + "|"]
    assert "".join(shown("\n".join(rows), 40)).count("cell") == 30


def test_links_show_where_they_lead() -> None:
    assert "https://evil.example" in "".join(shown("[a bank](https://evil.example)"))


def test_a_long_open_code_block_renders_only_its_new_lines() -> None:
    streamed = StreamedMarkdown(RENDERER, 60)
    text = "```python\n" + "x = 1\n" * 500
    before = streamed.lines(text)
    after = streamed.lines(text + "y = 2\n")
    kept = sum(a is b for a, b in zip(before, after, strict=False))
    assert kept > 450
    assert after[-1].text.strip() == "│ y = 2"


def test_escape_sequences_in_code_are_drawn_not_sent() -> None:
    text = "\x1b]0;title\x07\n\n```\n\x1b[2J\n```"
    assert not [line for line in shown(text) if "\x1b" in line or "\x07" in line]
