"""The tokenizer inside a GGUF file."""

from __future__ import annotations

from collections.abc import Callable

import tokenizers
from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from .bpe_tokenizer import BpeTokenizer
from .errors import ModelError
from .metadata import Metadata
from .tokenizer import Tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _digits_then_gpt2() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Digits(individual_digits=True), _split(GPT2)]


# By tokenizer.ggml.pre; the patterns are the ones of the models' own tokenizer.json files.
PRE_TOKENIZERS: dict[str, Callable[[], list[pre_tokenizers.PreTokenizer]]] = {
    "default": lambda: [_split(GPT2)],
    "gpt-2": lambda: [_split(GPT2)],
    "smollm": _digits_then_gpt2,
    "llama-bpe": lambda: [_split(CL100K % "1,3")],
    "qwen2": lambda: [_split(CL100K % "1")],
    "tekken": lambda: [_split(TEKKEN)],
}


def gguf_tokenizer(meta: Metadata) -> Tokenizer:
    """Raises ModelError for a tokenizer or pre-tokenizer that is not supported, naming it."""
    kind = meta.get("tokenizer.ggml.model", str)
    if kind == "gpt2":
        return _bpe(meta)
    raise ModelError(
        f"{meta.path}: tokenizer '{kind}' is not supported; supported are 'gpt2' and 'llama'"
    )


def _bpe(meta: Metadata) -> BpeTokenizer:
    pre = meta.get("tokenizer.ggml.pre", str, "default")
    if pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"{meta.path}: pre-tokenizer '{pre}' is not supported; supported are"
            f" {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    tokens: list[str] = meta.entries["tokenizer.ggml.tokens"]
    types: list[int] = meta.entries["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta.entries["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*PRE_TOKENIZERS[pre](), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]
    plain = [t for t, kind in zip(tokens, types, strict=True) if kind == TokenType.USER_DEFINED]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    backend.add_tokens([AddedToken(t, normalized=False) for t in plain])
    return BpeTokenizer(backend, {token: vocabulary[token] for token in control})
