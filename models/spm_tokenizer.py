"""A tokenizer run by ``sentencepiece``: from tokenizer.model, or built from GGUF."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum

import sentencepiece

from .pieces import sentencepiece_piece
from .tokenizer import MARK, Detokenizer, join


class PieceType(IntEnum):
    """As in SentencePiece's ModelProto and GGUF's tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Algorithm(IntEnum):
    """As in SentencePiece's TrainerSpec.model_type."""

    UNIGRAM = 1
    BPE = 2


class SpmTokenizer:
    """Implements Tokenizer over a serialised ModelProto. prefix: whether it adds a space first.

    Text after a special token gets that space too, as in llama.cpp.
    """

    def __init__(self, proto: bytes, *, prefix: bool) -> None:
        """Raises RuntimeError if ``proto`` is not a model."""
        model = sentencepiece.SentencePieceProcessor(model_proto=proto)
        self._model, self._prefix = model, prefix
        self.vocab_size: int = model.vocab_size()
        texts = [model.id_to_piece(i) for i in range(self.vocab_size)]
        hidden = [model.is_control(i) or model.is_unknown(i) for i in range(self.vocab_size)]
        self.specials = {t: i for i, t in enumerate(texts) if model.is_control(i)}
        self._pieces = [
            b"" if hide else sentencepiece_piece(text)
            for text, hide in zip(texts, hidden, strict=True)
        ]
        longest_first = sorted(self.specials, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        ids: list[int] = []
        parts = self._split.split(text) if specials and self.specials else [text]
        for i, part in enumerate(parts):
            if i % 2:
                ids.append(self.specials[part])
            elif part:
                ids += self._model.encode(part.replace(MARK, ""))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return join(self.detokenizer(), ids)

    def detokenizer(self, *, open: bool = False) -> Detokenizer:
        return Detokenizer(self._pieces, strip_space=self._prefix and not open)


def model_proto(
    pieces: Sequence[tuple[str, float, int]],
    algorithm: Algorithm,
    *,
    prefix: bool,
    charsmap: bytes = b"",
) -> bytes:
    """Serialise a ModelProto: (text, score, PieceType) each, and how text is normalised.

    Written by hand for want of protobuf; field numbers: sentencepiece_model.proto.
    """
    unknown = next((i for i, piece in enumerate(pieces) if piece[2] == PieceType.UNKNOWN), -1)
    byte_fallback = any(kind == PieceType.BYTE for _, _, kind in pieces)
    out = bytearray()
    for text, score, kind in pieces:
        body = _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _int(3, kind)
        out += _bytes(1, body)
    trainer = _int(3, algorithm) + _int(35, byte_fallback) + _int(40, unknown)
    for field in (41, 42, 43):  # bos, eos, pad: found by type, not by these
        trainer += _int(field, -1)
    normaliser = _bytes(2, charsmap) + _int(3, prefix) + _int(4, 0) + _int(5, 1)
    return bytes(out + _bytes(2, trainer) + _bytes(3, normaliser))


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
