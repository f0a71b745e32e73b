"""Make any text safe to put on a terminal: nothing in it may act, hide or reorder."""

from __future__ import annotations

import re
from unicodedata import category

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_C1 = dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}")
_LINE_ENDS = {0x2028: " ", 0x2029: " "}
# Bidirectional controls reorder what is around them; they are shown, not obeyed.
_BIDI = dict.fromkeys(
    [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\N{MIDDLE DOT}"
)
# No width, no ink, and terminals disagree about them: Unicode's Default_Ignorable_Code_Point but
# for the above and the two joiners, and the other format characters (Cf) that draw nothing.
_INVISIBLE_RANGES = (
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # grapheme joiner
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors
    (0x200B, 0x200B),  # zero-width space
    (0x2060, 0x2065),  # word joiner, invisible operators
    (0x206A, 0x206F),  # deprecated format characters
    (0x3164, 0x3164),  # Hangul filler
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),  # half-width Hangul filler
    (0xFFF0, 0xFFFB),  # interlinear marks
    (0x13430, 0x1343F),  # Egyptian hieroglyph joiners
    (0x1BCA0, 0x1BCA3),  # shorthand format controls
    (0x1D173, 0x1D17A),  # musical beams and phrases
    (0xE0000, 0xE0FFF),  # tags, variation selectors supplement
)
_INVISIBLE = {code: "" for first, last in _INVISIBLE_RANGES for code in range(first, last + 1)}
_TABLE: dict[int, str] = {**_PICTURES, 0x7F: "␡", **_C1, **_LINE_ENDS, **_BIDI, **_INVISIBLE}
_SURROGATE = re.compile("[\ud800-\udfff]")
# A joiner after a letter of Arabic, the Indic scripts and their kin is spelling, and stays, as do
# those between emoji. A text may begin with one, being a part of a stream. Elsewhere it shows
# nothing.
JOINERS = "\u200c\u200d"
_JOINING = (
    "\u0600-\u109f\u1700-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00011fff\U0001e900-\U0001e95f"
)
_IDLE_JOINERS = re.compile(
    f"(?:(?<=[^{_JOINING}{JOINERS}])|^(?![{JOINERS}][{_JOINING}]))[{JOINERS}]+"
    f"|(?<=[{JOINERS}])[{JOINERS}]+"
)
# Several emoji that are drawn as one: at most four, the most that Unicode gives a picture to, each
# perhaps with the selector of its colours and a tone of skin.
_EMOJI = (
    "[\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
    "\ufe0f?[\U0001f3fb-\U0001f3ff]?"
)
_JOINED = re.compile(f"((?:^|{_EMOJI})\u200d{_EMOJI}(?:\u200d{_EMOJI}){{0,2}})")
# Where many marks may be stacked: no mark is a \w. Left out are symbols, which often come in rows.
# The Hangul vowels and last consonants that join what is before them have no width either.
_MANY_MARKS = 4
_HANGUL = "\u1160-\u11ff\ud7b0-\ud7ff"
_NO_LETTERS = re.compile(
    rf"(?:[^\w\s\x00-\u02ff\u2010-\u20cf\u2100-\u2bff\u3000-\u3029]|[{_HANGUL}]){{5,}}"
)
_JOINED_HANGUL = re.compile(f"[{_HANGUL}]")
_NOT_TYPED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TAB = "    "
_MESSAGE_ENDS = 700, 200  # characters of a message that is too long


def visible(text: str) -> str:
    """``text`` with control characters drawn as symbols and invisible ones dropped.

    Newlines stay, tabs become spaces. The result holds no character that moves the cursor,
    starts an escape sequence or changes direction. Escapes are shown (ESC as "␛"), so that
    nothing a model wrote is hidden.
    """
    if text.isascii() and text.isprintable():
        return text
    if "\u200d" not in text:
        return _visible(text)
    parts = _JOINED.split(text)
    return "".join(part if i % 2 else _visible(part) for i, part in enumerate(parts))


def _visible(text: str) -> str:
    """But for emoji that are joined."""
    text = text.replace("\r\n", "\n").translate(_TABLE).replace("\t", _TAB)
    if text.isascii():
        return text
    text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
    return _IDLE_JOINERS.sub("", _NO_LETTERS.sub(_few_marks, text))


def _few_marks(found: re.Match[str]) -> str:
    """With no more than _MANY_MARKS marks on a character; a joiner between them is no other one."""
    kept, marks = [], 0
    for character in found[0]:
        if category(character) in ("Mn", "Me") or _JOINED_HANGUL.match(character):
            marks += 1
        elif character not in JOINERS:
            marks = 0
        if marks <= _MANY_MARKS or character in JOINERS:
            kept.append(character)
    return "".join(kept)


def one_line(text: str) -> str:
    """``visible`` text on one line, for titles and notes."""
    return " ".join(visible(text).split())


def message(error: object) -> str:
    """What an error says, on one line and no longer than a person reads: its start and its end."""
    line = one_line(str(error))
    start, end = _MESSAGE_ENDS
    return line if len(line) <= start + end else f"{line[:start]} … {line[-end:]}"


def typed(text: str) -> str:
    """Text for the composer and so for the model: line ends as newlines, tabs as spaces, no
    control characters, no halves of surrogate pairs."""
    return _NOT_TYPED.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", _TAB))
