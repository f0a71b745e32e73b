"""Make any text safe to put on a terminal: nothing in it may act, hide or reorder."""

from __future__ import annotations

import re

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_C1 = dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}")
_LINE_ENDS = {0x2028: " ", 0x2029: " "}
# Bidirectional controls reorder what is around them; they are shown, not obeyed.
_BIDI = dict.fromkeys(
    [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\N{MIDDLE DOT}"
)
# No width, no ink, and terminals disagree about them: soft hyphen, zero-width space, word joiner,
# invisible operators, byte order mark, variation selectors, interlinear marks, tag characters.
_INVISIBLE_RANGES = (
    (0x00AD, 0x00AD),
    (0x180E, 0x180E),
    (0x200B, 0x200B),
    (0x2060, 0x2064),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0000, 0xE007F),
)
_INVISIBLE = {code: "" for first, last in _INVISIBLE_RANGES for code in range(first, last + 1)}
_TABLE: dict[int, str] = {**_PICTURES, 0x7F: "␡", **_C1, **_LINE_ENDS, **_BIDI, **_INVISIBLE}
_SURROGATE = re.compile("[\ud800-\udfff]")
# A joiner between emoji makes one glyph in some terminals and several in others; between letters
# of Persian or the Indic scripts it is spelling, and stays.
_EMOJI_JOINER = re.compile("(?<=[\u2190-\u2bff\U0001f000-\U0001faff])\u200d")
_MANY_MARKS = re.compile("([\u0300-\u036f\u20d0-\u20f0]{4})[\u0300-\u036f\u20d0-\u20f0]+")
_NOT_TYPED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TAB = "    "


def visible(text: str) -> str:
    """``text`` with control characters drawn as symbols and invisible ones dropped.

    Newlines stay, tabs become spaces. The result holds no character that moves the cursor,
    starts an escape sequence or changes direction. Escapes are shown (ESC as "␛"), so that
    nothing a model wrote is hidden.
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").translate(_TABLE).replace("\t", _TAB)
    if text.isascii():
        return text
    text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
    return _MANY_MARKS.sub(r"\1", _EMOJI_JOINER.sub("", text))


def one_line(text: str) -> str:
    """``visible`` text on one line, for titles and notes."""
    return " ".join(visible(text).split())


def typed(text: str) -> str:
    """Text for the composer and so for the model: line ends as newlines, tabs as spaces, no
    control characters, no halves of surrogate pairs."""
    return _NOT_TYPED.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", _TAB))
