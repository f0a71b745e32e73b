"""Byte-level BPE, run by Hugging Face's ``tokenizers``."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import normalizers

from .tokenizer import MARK, Detokenizer, join


class BpeTokenizer:
    """Implements Tokenizer over a ``tokenizers.Tokenizer`` whose vocabulary is byte-level.

    pieces: each token's bytes, empty for special tokens.
    """

    def __init__(self, backend: tokenizers.Tokenizer, specials: dict[str, int]) -> None:
        drop_mark = normalizers.Replace(MARK, "")
        given = backend.normalizer
        backend.normalizer = normalizers.Sequence([drop_mark, given]) if given else drop_mark
        self._backend = backend
        self.specials = specials
        self.vocab_size = backend.get_vocab_size()
        self._pieces = _pieces(backend, specials)

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        self._backend.encode_special_tokens = not specials
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        return join(self.detokenizer(), ids)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self._pieces, strip_space=False)


def _pieces(backend: tokenizers.Tokenizer, specials: dict[str, int]) -> list[bytes]:
    table = _byte_table()
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    pieces = [b""] * (max(backend.get_vocab().values()) + 1)
    for text, token in backend.get_vocab().items():
        if text in specials:
            continue
        pieces[token] = text.encode() if text in added else bytes(table[char] for char in text)
    return pieces


def _byte_table() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table
