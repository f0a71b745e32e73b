"""A tokenizer run by Hugging Face's ``tokenizers``: from tokenizer.json, or built from GGUF."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers

from .errors import ModelError
from .pieces import byte_level_piece, sentencepiece_piece
from .tokenizer import MARK, Detokenizer, join


class BackendTokenizer:
    """Implements Tokenizer. byte_level: how the vocabulary spells bytes (GPT-2's way, or SPM's).

    strip_space: whether encoding puts a space before the text, which decoding then drops.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, byte_level: bool, strip_space: bool = False
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        # Normalising comes after special tokens are found: the place to drop the marks.
        drop = normalizers.Replace(MARK, "")
        given = backend.normalizer
        backend.normalizer = normalizers.Sequence([drop, given]) if given else drop
        self._backend, self._strip_space = backend, strip_space
        added = backend.get_added_tokens_decoder()
        self.specials = {token.content: i for i, token in added.items() if token.special}
        self._pieces = self._spell(byte_level, {i: token.content for i, token in added.items()})
        self.vocab_size = len(self._pieces)

    def _spell(self, byte_level: bool, added: dict[int, str]) -> Sequence[bytes]:
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        spell = byte_level_piece if byte_level else sentencepiece_piece
        pieces = [b""] * (max(vocabulary.values()) + 1)
        for text, token in vocabulary.items():
            if text not in self.specials:
                pieces[token] = text.encode() if token in added else spell(text)
        return pieces

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        self._backend.encode_special_tokens = not specials
        # The same as encode, but other threads may run meanwhile.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return join(self.detokenizer(), ids)

    def detokenizer(self, *, open: bool = False) -> Detokenizer:
        return Detokenizer(self._pieces, strip_space=self._strip_space and not open)


def read_tokenizer_json(
    path: Path, rows: int | None = None, template: str = ""
) -> BackendTokenizer:
    """rows: of the embedding. Special tokens past them, which only models that also see have rows
    for (Gemma 3's), are left out unless ``template`` needs them.

    Raises ModelError if ``tokenizers`` cannot read the file.
    """
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        added = data.get("added_tokens") or []
        data["added_tokens"] = [token for token in added if not _needless(token, rows, template)]
        for token in data["added_tokens"]:
            # Otherwise a special token would be looked for after the marks are gone.
            token["normalized"] = token["normalized"] and not token["special"]
        backend = tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(
            f"{path}: not a tokenizer this version reads ({error}): fetch it again"
        ) from error
    decoder = json.dumps(data.get("decoder"))
    return BackendTokenizer(
        backend,
        byte_level='"ByteLevel"' in decoder,
        strip_space='"Strip"' in decoder or '"Metaspace"' in decoder,
    )


def _needless(token: dict[str, Any], rows: int | None, template: str) -> bool:
    beyond = rows is not None and token["id"] >= rows
    return beyond and token["special"] and token["content"] not in template
