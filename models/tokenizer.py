"""Text to token ids and back; the interface, and streaming detokenisation."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

# A Unicode noncharacter. Put inside a special token's text it makes that text plain: tokenizers
# recognise special tokens first and drop the mark afterwards.
MARK = "\U0010ffff"


class Detokenizer:
    """Turns token ids into text one by one, and never shows half a character."""

    def __init__(self, pieces: Sequence[bytes], *, strip_space: bool) -> None:
        """pieces: each token's bytes. strip_space: drop one space that begins the text."""
        self._pieces = pieces
        self._strip = strip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; often all of its own, sometimes none."""
        text = self._decoder.decode(self._pieces[token_id])
        return self._stripped(text) if self._strip and text else text

    def finish(self) -> str:
        """What is left: U+FFFD for bytes that never became a character."""
        return self._decoder.decode(b"", final=True)

    def _stripped(self, text: str) -> str:
        self._strip = False
        return text.removeprefix(" ")


class Tokenizer(Protocol):
    """vocab_size: ids run from 0 below it. specials: text of the special tokens, to their ids."""

    vocab_size: int
    specials: dict[str, int]

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """specials: recognise special tokens in ``text`` (a rendered template, never raw input).

        A MARK inside a special token's text hides it; marks themselves vanish.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` without special tokens; bytes that are no UTF-8 become U+FFFD."""

    def detokenizer(self, *, open: bool = False) -> Detokenizer:
        """A fresh one, for one answer. open: the answer goes on from text that is there."""


def join(detokenizer: Detokenizer, ids: Iterable[int]) -> str:
    """Everything ``ids`` stand for."""
    return "".join([detokenizer.push(token) for token in ids]) + detokenizer.finish()
