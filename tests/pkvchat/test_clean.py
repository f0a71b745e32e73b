"""No text reaches the terminal with a character that acts, hides or reorders."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkvchat.clean import one_line, typed, visible

ANY_TEXT = st.text(
    st.one_of(
        st.characters(codec=None),
        st.sampled_from("\x00\x07\x08\x1b\r\n\t\x7f\x9b\u200b\u202e\u2066\u2028\ufeff\ud800\u200d"),
    )
)


def acts(character: str) -> bool:
    """Whether a terminal could do more than draw it."""
    category = unicodedata.category(character)
    return category in ("Cc", "Cs", "Zl", "Zp") or (
        category == "Cf"
        and unicodedata.bidirectional(character) not in ("BN", "AN", "AL", "L", "ON")
    )


@given(ANY_TEXT)
def test_nothing_that_acts_is_left(text: str) -> None:
    shown = visible(text)
    assert not [c for c in shown if c != "\n" and acts(c)]
    shown.encode("utf-8")
    assert visible(shown) == shown


@given(ANY_TEXT)
def test_a_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


@given(ANY_TEXT)
def test_typed_text_has_no_control_characters(text: str) -> None:
    assert not [c for c in typed(text) if c != "\n" and unicodedata.category(c) in ("Cc", "Cs")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("a\r\nb", "a\nb"),
        ("over\rwrite", "over␍write"),
        ("safe\u202etxt.exe", "safe·txt.exe"),
        ("zero\u200bwidth", "zerowidth"),
        ("a\tb", "a    b"),
        ("👩\u200d👩\u200d👧", "👩👩👧"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("z" + "\u0300" * 50, "z" + "\u0300" * 4),
        ("\ud800", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_what_is_seen(text: str, shown: str) -> None:
    assert visible(text) == shown
