"""Everything a checkpoint says about text, apart from its weights."""

from __future__ import annotations

from dataclasses import dataclass

from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """template: Jinja source, "" if none. bos, eos: their text, "" if none.

    stop_ids: every token that ends a turn.
    """

    tokenizer: Tokenizer
    template: str
    bos: str
    eos: str
    stop_ids: frozenset[int]
