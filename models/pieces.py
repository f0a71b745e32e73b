"""What a vocabulary's spelling of a token stands for, in bytes."""

from __future__ import annotations

import re

SPACE = "\u2581"  # SentencePiece's stand-in for a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_BYTES = {char: byte for byte, char in enumerate(byte_level_alphabet())}


def byte_level_piece(token: str) -> bytes:
    """A token of a byte-level BPE vocabulary; characters that stand for no byte are themselves."""
    try:
        return bytes([_BYTES[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def sentencepiece_piece(token: str) -> bytes:
    """A token of a SentencePiece vocabulary: a byte written <0xNN>, or text."""
    if byte := _BYTE.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace(SPACE, " ").encode("utf-8", "replace")
