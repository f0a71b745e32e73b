"""No text reaches the terminal with a character that acts, hides or reorders."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkvchat.clean import message, one_line, typed, visible

ANY_TEXT = st.text(
    st.one_of(
        st.characters(codec=None),
        st.sampled_from(
            "👩🏽❤\ufe0f\u200d\x00\x07\x08\x1b\r\n\t\x7f\x9b\u200b\u202e\u2066\u2028\ufeff\ud800\u200c\u200d\u0301\u1dc0\u0591\u0645\u093e"
        ),
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
        ("👩\u200d" * 6 + "👧", "👩\u200d👩\u200d👩\u200d👩👩\u200d👩\u200d👧"),
        ("👩\u200d\u200d👩\u200b\u200d👩\u200dx", "👩👩👩x"),
        ("\u200d👧", "\u200d👧"),
        ("👩\ufe0f\u200c👧\ufe0f", "👩👧"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("z" + "\u0300" * 50, "z" + "\u0300" * 4),
        ("\ud800", "\N{REPLACEMENT CHARACTER}"),
        ("i\u200cn\u200dk", "ink"),
        ("می\u200c\u200c\u200dخواهم", "می\u200cخواهم"),
        ("\u200cخواهم", "\u200cخواهم"),  # goes on where another part of a stream ended
        ("\u200c", ""),
        ("क\u094d\u200dष", "क\u094d\u200dष"),
        ("z" + "\u1161" * 50, "z" + "\u1161" * 4),  # Hangul vowels and last consonants, which
        ("z" + "\u1161\u0300\ud7b0\u11ff" * 9, "z\u1161\u0300\ud7b0\u11ff"),  # have no width
        ("z" + "\u1dc0" * 50, "z" + "\u1dc0" * 4),
        ("ש" + "\u0591" * 50 + "ל", "ש" + "\u0591" * 4 + "ל"),
        ("z" + "\u0300\u200c" * 50 + "z", "z" + "\u0300" * 4 + "z"),
        (
            "z" + "\u0300\u1ab0" * 3 + "z" + "\u0301" * 3,
            "z" + "\u0300\u1ab0" * 2 + "z" + "\u0301" * 3,
        ),
    ],
)
def test_what_is_seen(text: str, shown: str) -> None:
    assert visible(text) == shown


INVISIBLE = (
    "\u034f\u115f\u180b\u2065\u206a\u206f\u3164\ufe0f\uffa0\ufff0\U0001d173\U000e0001\U000e0101"
)


@pytest.mark.parametrize("character", INVISIBLE)
def test_what_shows_nothing_is_dropped(character: str) -> None:
    assert visible(f"a{character}é") == "aé"


def test_format_characters_are_dropped_shown_or_have_ink() -> None:
    ink = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    formats = {code for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf"}
    assert {code for code in formats if chr(code) in visible(f"a{chr(code)}")} == ink


@pytest.mark.parametrize(
    "text",
    [
        "Tiếng Việt".replace("ế", "e\u0302\u0301"),
        "हिन्दी में क्षत्रिय",
        "ที่นี่เป็นภาษาไทย",
        "בְּרֵאשִׁ֖ית בָּרָ֣א",
        "السَّلَامُ عَلَيْكُمْ",
        "བསྒྲུབས",
        "한국어 日本語、「中文」。",
        "\u1112\u1161\u11ab\u1100\u116e\u11a8" * 3,
        "│├──└ █▁▂▃ → ⇒ ∑∫ 👍🏽",
        "👨‍👩‍👧‍👦 👩🏽‍💻 ❤️‍🔥 👁️‍🗨️ 🏳️‍🌈 👩🏻‍❤️‍💋‍👨🏼",
    ],
)
def test_what_people_write_stays(text: str) -> None:
    assert visible(text) == text


def test_a_message_is_short_and_keeps_both_ends() -> None:
    assert message(ValueError("a\x1b[31m\nb")) == "a␛[31m b"
    long = message("start " + "9" * 100_000 + " end")
    assert len(long) < 1000
    assert (long[:5], long[-3:]) == ("start", "end")
