"""Tokenizers against the libraries' own, on a corpus chosen to be nasty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from pkvchat.models.backend_tokenizer import read_tokenizer_json
from pkvchat.models.errors import ModelError
from pkvchat.models.gguf_file import GgufFile
from pkvchat.models.gguf_vocabulary import PATTERNS, read_vocabulary
from pkvchat.models.loader import open_checkpoint
from pkvchat.models.metadata import Metadata
from pkvchat.models.spm_tokenizer import SpmTokenizer
from pkvchat.models.tokenizer import Tokenizer

HERE = Path(__file__).parent
NASTY = (HERE / "nasty.txt").read_bytes().decode()
ADDED = ("<think>", "▁▁▁▁▁▁")
CONTROL = ["<s>", "</s>", "[INST]"]


def stream(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Text pushed token by token, none of it half a character."""
    detokenizer = tokenizer.detokenizer()
    parts = [detokenizer.push(token) for token in ids]
    assert not any("\ufffd" in part for part in parts[:-1])
    return "".join(parts) + detokenizer.finish()


def write_vocabulary(path: Path, entries: dict[str, Any]) -> Metadata:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in entries.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.add_tensor("pad", np.ones(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Metadata(path, GgufFile(path).metadata)


def test_default_model_as_llama_cpp(default_gguf: Path) -> None:
    """nasty_smollm.json: what llama.cpp 0.3.36's Python binding gives for the corpus."""
    tokenizer = open_checkpoint(default_gguf).vocabulary().tokenizer
    expected = json.loads((HERE / "nasty_smollm.json").read_text())
    ids = tokenizer.encode(NASTY)
    assert ids == expected
    assert tokenizer.decode(ids) == stream(tokenizer, ids) == NASTY


@pytest.fixture(scope="module")
def byte_level() -> tokenizers.Tokenizer:
    """A byte-level BPE trained on the corpus, so that it has merges across every script."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([NASTY] * 3, trainer)
    return backend


def merges_of(backend: tokenizers.Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def gguf_tokenizer(backend: tokenizers.Tokenizer, pre: str, path: Path) -> Tokenizer:
    vocabulary, merges = merges_of(backend)
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    meta = write_vocabulary(
        path,
        {
            "model": "gpt2",
            "pre": pre,
            "tokens": tokens,
            "token_type": [3 if token in CONTROL else 1 for token in tokens],
            "merges": [" ".join(pair) for pair in merges],
            "eos_token_id": 1,
        },
    )
    vocabulary_read = read_vocabulary(meta)
    assert vocabulary_read.eos == "</s>"
    assert vocabulary_read.stop_ids == {1}
    return vocabulary_read.tokenizer


def test_gpt2_and_qwen2_as_transformers(byte_level: tokenizers.Tokenizer, tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer, Qwen2Tokenizer

    vocabulary, merges = merges_of(byte_level)
    for name, make in (("gpt-2", GPT2Tokenizer), ("qwen2", Qwen2Tokenizer)):
        reference = make(vocab=vocabulary, merges=merges)
        # Qwen2 composes characters first; its GGUFs do not say so, and llama.cpp doesn't.
        reference.backend_tokenizer.normalizer = None
        ours = gguf_tokenizer(byte_level, name, tmp_path / f"{name}.gguf")
        plain = NASTY.replace("<s>", "").replace("</s>", "").replace("[INST]", "")
        assert ours.encode(plain) == reference.encode(plain, add_special_tokens=False)


@pytest.mark.parametrize("pre", PATTERNS)
def test_every_pre_tokenizer_keeps_the_text(
    byte_level: tokenizers.Tokenizer, pre: str, tmp_path: Path
) -> None:
    tokenizer = gguf_tokenizer(byte_level, pre, tmp_path / "t.gguf")
    ids = tokenizer.encode(NASTY)
    assert not set(ids) & set(tokenizer.specials.values())
    assert tokenizer.decode(ids) == stream(tokenizer, ids) == NASTY
    with_specials = tokenizer.encode("a<s>b</s>", specials=True)
    assert [i for i in with_specials if i < len(CONTROL)] == [0, 1]


def test_llama_3_looks_words_up_first(tmp_path: Path) -> None:
    """ "ab" is in the vocabulary though no merge makes it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE({t: i for i, t in enumerate([*CONTROL, *alphabet, "ab", "cd"])}, [("c", "d")])
    )
    whole = gguf_tokenizer(backend, "llama-bpe", tmp_path / "a.gguf")
    assert whole.encode("ab") == [len(CONTROL) + len(alphabet)]
    assert len(gguf_tokenizer(backend, "qwen2", tmp_path / "b.gguf").encode("ab")) == 2


def test_tokenizer_json(byte_level: tokenizers.Tokenizer, tmp_path: Path) -> None:
    """As transformers loads it, with special tokens that are looked for after normalising."""
    data = json.loads(byte_level.to_str())
    data["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    data["decoder"]["use_regex"] = True
    for token in data["added_tokens"]:
        token["normalized"] = True
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    ours, reference = read_tokenizer_json(path), tokenizers.Tokenizer.from_file(str(path))
    assert ours.encode(NASTY, specials=True) == reference.encode(NASTY).ids
    assert 0 in ours.encode("x<s>", specials=True)
    assert not set(ours.encode(NASTY)) & {0, 1, 2}
    assert ours.decode(ours.encode(NASTY)) == NASTY


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """SentencePiece models trained on the corpus, BPE with byte fallback as Llama 2's."""
    folder = tmp_path_factory.mktemp("spm")
    corpus = folder / "corpus.txt"
    corpus.write_text(NASTY.replace("\0", "") * 5, encoding="utf-8")
    paths = {}
    for kind in ("bpe", "unigram"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus),
            model_prefix=str(folder / kind),
            model_type=kind,
            vocab_size=900,
            character_coverage=0.98,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            control_symbols="[INST]",
            user_defined_symbols="<think>,▁▁▁▁▁▁",
            minloglevel=2,
        )
        paths[kind] = folder / f"{kind}.model"
    return paths


def spm_gguf(model: Path, kind: str, path: Path) -> Tokenizer:
    source = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ids = range(source.vocab_size())

    def piece_type(i: int) -> int:
        if source.is_unknown(i):
            return 2
        if source.is_control(i):
            return 3
        if source.is_byte(i):
            return 6
        return 4 if source.id_to_piece(i) in ADDED else 1

    meta = write_vocabulary(
        path,
        {
            "model": {"bpe": "llama", "unigram": "t5"}[kind],
            "tokens": [  # as llama.cpp's converter writes them
                source.id_to_piece(i).replace("▁" if piece_type(i) == 4 else "\0", " ") for i in ids
            ],
            "scores": [source.get_score(i) for i in ids],
            "token_type": [piece_type(i) for i in ids],
            "eos_token_id": source.eos_id(),
        },
    )
    return read_vocabulary(meta).tokenizer


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece(spm: dict[str, Path], kind: str, tmp_path: Path) -> None:
    reference = sentencepiece.SentencePieceProcessor(model_file=str(spm[kind]))
    text = NASTY.replace("\0", "").replace("▁", "_") + "<think>"
    for ours in (
        spm_gguf(spm[kind], kind, tmp_path / "t.gguf"),
        SpmTokenizer(spm[kind].read_bytes(), prefix=True),
    ):
        ids = ours.encode(text)
        assert ids == reference.encode(text)
        assert ours.decode(ids) == stream(ours, ids) == text
        special = ours.encode("<s>hi[INST]<think></s>", specials=True)
        assert special[0] == reference.bos_id()
        assert special[-1] == reference.eos_id()
        assert not {0, 1, 2} & set(ours.encode("<s>hi[INST]</s><unk>")) - {0}
        assert ours.decode(special) == "hi <think>"


@settings(max_examples=100)
@given(text=st.text())
def test_streaming_keeps_any_text(byte_level: tokenizers.Tokenizer, text: str) -> None:
    from pkvchat.models.backend_tokenizer import BackendTokenizer

    tokenizer = BackendTokenizer(
        tokenizers.Tokenizer.from_str(byte_level.to_str()), byte_level=True
    )
    assert stream(tokenizer, tokenizer.encode(text)) == text


def test_broken_utf8_is_shown_once(default_gguf: Path) -> None:
    tokenizer = open_checkpoint(default_gguf).vocabulary().tokenizer
    ids = tokenizer.encode("é👍")
    assert len(ids) > 2
    detokenizer = tokenizer.detokenizer()
    text = "".join(detokenizer.push(token) for token in ids[:-1])
    assert text == "é"
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"model": "gpt2", "pre": "mystery"}, "pre-tokenizer 'mystery' is not supported; supp"),
        ({"model": "rwkv"}, "tokenizer 'rwkv' is not supported"),
        ({"model": "gpt2", "token_type": [1]}, "3 tokens but 1 token types"),
        ({"model": "gpt2", "merges": ["x y"]}, "merges do not fit"),
        ({"model": "llama"}, "'tokenizer.ggml.scores' is missing"),
        ({"model": "llama", "scores": [0.0, 0.0, 0.0]}, "vocabulary is not usable"),
        ({"model": "gpt2", "tokens": 7}, "not a list of str"),
    ],
)
def test_bad_vocabularies(entries: dict[str, Any], says: str, tmp_path: Path) -> None:
    whole = {"tokens": ["a", "b", "c"], "token_type": [1, 1, 1], "merges": ["a b"], **entries}
    meta = write_vocabulary(tmp_path / "bad.gguf", whole)
    with pytest.raises(ModelError, match=says) as caught:
        read_vocabulary(meta)
    assert "bad.gguf" in str(caught.value)
