"""The tokenizer and chat template inside a GGUF file."""

from __future__ import annotations

import tokenizers
from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from .backend_tokenizer import BackendTokenizer
from .errors import ModelError
from .metadata import Metadata
from .pieces import SPACE
from .spm_tokenizer import Algorithm, SpmTokenizer, model_proto
from .tokenizer import Tokenizer
from .vocabulary import Vocabulary

# The patterns of the models' own tokenizer.json files, by the name GGUF gives each.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(suffix: str, digits: str) -> str:
    """Words end where lower case is followed by upper case."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{suffix}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{suffix}|\p{{N}}{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


PATTERNS = {
    "default": GPT2,
    "gpt-2": GPT2,
    "smollm": GPT2,
    "llama-bpe": CL100K % 3,
    "llama-v3": CL100K % 3,
    "llama3": CL100K % 3,
    "smaug-bpe": CL100K % 3,  # SmolLM3's, too
    "qwen2": CL100K % 1,
    "deepseek-r1-qwen": CL100K % 1,
    "gpt-4o": _by_case(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"),
    "tekken": _by_case("", ""),
}
# These look a whole word up in the vocabulary before they merge bytes.
WHOLE_WORDS = {"llama-bpe", "llama-v3", "llama3", "tekken"}
SINGLE_DIGITS = {"smollm"}  # split digits one by one first


def read_vocabulary(meta: Metadata) -> Vocabulary:
    """Raises ModelError for a tokenizer or pre-tokenizer that is not supported, naming it."""
    tokens = meta.items("tokenizer.ggml.tokens", str)

    def text(kind: str) -> str:
        key = f"tokenizer.ggml.{kind}_token_id"
        index = meta.get(key, int, -1)
        return tokens[index] if 0 <= index < len(tokens) else ""

    ends = (meta.get(f"tokenizer.ggml.{kind}_token_id", int, -1) for kind in ("eos", "eot", "eom"))
    return Vocabulary(
        tokenizer=_tokenizer(meta, tokens),
        template=meta.get("tokenizer.chat_template", str, ""),
        bos=text("bos"),
        eos=text("eos"),
        stop_ids=frozenset(index for index in ends if 0 <= index < len(tokens)),
    )


def _tokenizer(meta: Metadata, tokens: list[str]) -> Tokenizer:
    kind = meta.get("tokenizer.ggml.model", str)
    types = meta.items("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise ModelError(f"{meta.path}: {len(tokens)} tokens but {len(types)} token types")
    if kind == "gpt2":
        return _byte_level(meta, tokens, types)
    if kind in ("llama", "t5"):
        return _sentencepiece(meta, tokens, types)
    raise ModelError(
        f"{meta.path}: tokenizer '{kind}' is not supported; supported are gpt2, llama and t5"
    )


def _byte_level(meta: Metadata, tokens: list[str], types: list[int]) -> BackendTokenizer:
    pre = meta.get("tokenizer.ggml.pre", str, "default")
    if pre not in PATTERNS:
        raise ModelError(
            f"{meta.path}: pre-tokenizer '{pre}' is not supported; supported are"
            f" {', '.join(PATTERNS)}"
        )
    merges = [
        (left, right)
        for left, _, right in (m.partition(" ") for m in meta.items("tokenizer.ggml.merges", str))
    ]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in WHOLE_WORDS)
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"{meta.path}: the vocabulary's merges do not fit it: {error}") from error
    backend = tokenizers.Tokenizer(bpe)
    steps: list[PreTokenizer] = [
        pre_tokenizers.Split(Regex(PATTERNS[pre]), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    if pre in SINGLE_DIGITS:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    kinds = list(zip(tokens, types, strict=True))
    backend.add_special_tokens(
        [AddedToken(t, normalized=False) for t, kind in kinds if kind == TokenType.CONTROL]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t, kind in kinds if kind == TokenType.USER_DEFINED]
    )
    return BackendTokenizer(backend, byte_level=True)


def _sentencepiece(meta: Metadata, tokens: list[str], types: list[int]) -> SpmTokenizer:
    prefix = meta.get("tokenizer.ggml.add_space_prefix", bool, True)
    unigram = meta.get("tokenizer.ggml.model", str) == "t5"
    charsmap = bytes(meta.entries.get("tokenizer.ggml.precompiled_charsmap") or b"")
    scores = meta.items("tokenizer.ggml.scores", float)
    algorithm = Algorithm.UNIGRAM if unigram else Algorithm.BPE
    try:
        # GGUF writes runs of spaces that the model's maker added with the spaces themselves.
        texts = [
            token.replace(" ", SPACE) if kind == TokenType.USER_DEFINED else token
            for token, kind in zip(tokens, types, strict=True)
        ]
        pieces = list(zip(texts, scores, types, strict=True))
        proto = model_proto(pieces, algorithm, prefix=prefix, charsmap=charsmap)
        return SpmTokenizer(proto, prefix=prefix)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{meta.path}: the vocabulary is not usable: {error}") from error
