"""Loading models from GGUF files: split ones, and what can be wrong in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pkvchat.models.errors import ModelError
from pkvchat.models.loader import LoadedModel, load_model

CPU = torch.device("cpu")
Tensors = dict[str, np.ndarray]


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(str(path), device=CPU, **options)


def test_split_gguf(
    gguf_with: Callable[..., Path],
    small_gguf: tuple[dict[str, Any], Tensors],
    tmp_path: Path,
    helpers: Any,
) -> None:
    whole = load(gguf_with(lambda entries, tensors: None))
    entries, tensors = small_gguf
    for i in range(3):
        path = tmp_path / f"big-0000{i + 1}-of-00003.gguf"
        counts = {"split.no": i, "split.count": 3}
        part = dict(list(tensors.items())[i::3])
        helpers.write_gguf(path, "llama", {} if i else entries, part, plain=counts)
    split = load(tmp_path / "big-00002-of-00003.gguf")  # any part stands for all
    ids = list(range(40, 60))
    assert torch.equal(
        helpers.run(whole.model, ids, [len(ids)]), helpers.run(split.model, ids, [len(ids)])
    )
    (tmp_path / "big-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelError, match=r"1 of 3 parts are missing, big-00003-of-00003.gguf"):
        load(tmp_path / "big-00001-of-00003.gguf")


def drop(name: str) -> Callable[[dict[str, Any], Tensors], object]:
    return lambda entries, tensors: (entries.pop(name, 0), tensors.pop(name, 0))


def put(**given: Any) -> Callable[[dict[str, Any], Tensors], object]:
    """Keys with a dot's place taken by "__"."""
    return lambda entries, tensors: [
        (tensors if isinstance(value, np.ndarray) else entries).update(
            {k.replace("__", "."): value}
        )
        for k, value in given.items()
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop("block_count"), "'llama.block_count' is missing"),
        (drop("attention.head_count"), "'llama.attention.head_count' is missing"),
        (put(block_count="one"), "'llama.block_count' is 'one', not of type int"),
        (put(block_count=0), "'llama.block_count' is 0, which cannot be"),
        (put(rope__dimension_count=1 << 20), "1048576 numbers of a head of 8 cannot be rotated"),
        (put(rope__dimension_count=3), "3 numbers of a head of 8 cannot be rotated in pairs"),
        (put(rope__freq_base=float("nan")), "'llama.rope.freq_base' is nan, which cannot be"),
        (put(rope__freq_base=-1.0), "'llama.rope.freq_base' is -1.0, which cannot be"),
        (
            put(attention__layer_norm_rms_epsilon=float("inf")),
            "'llama.attention.layer_norm_rms_epsilon' is inf, which cannot be",
        ),
        (drop("token_embd.weight"), "tensor 'token_embd.weight' is missing"),
        (drop("blk.0.ffn_up.weight"), r"tensor 'blk.0.ffn_up.weight' \[64, 32\] is missing"),
        (put(block_count=2), r"tensor 'blk.1.attn_norm.weight' \[32\] is missing"),
        (
            put(feed_forward_length=96),
            r"tensor 'blk.0.ffn_gate.weight' has shape \[64, 32\] but .* says \[96, 32\]",
        ),
        (
            put(blk__0__strange__weight=np.ones((2, 3), np.float32)),
            r"no place for tensors 'blk.0.strange.weight' \[2, 3\]",
        ),
        (
            put(token_embd__weight=np.ones((100, 32), np.float32)),
            "vocabulary has 260 tokens but the embedding only 100 rows",
        ),
        (put(rope__scaling__type="spiral"), "unknown rope_type 'spiral'"),
        (put(rope__scaling__type="longrope"), "not usable: KeyError"),
    ],
)
def test_bad_gguf(gguf_with: Callable[..., Path], change: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load(gguf_with(change))


@pytest.mark.parametrize(
    ("after", "stops"), [("<|endoftext|>\n", {257, 258}), ("\n<|im_end|>", {257}), ("\n", {257})]
)
def test_a_turn_ends_where_the_template_ends_it(
    gguf_with: Callable[..., Path], after: str, stops: set[int]
) -> None:
    """Early files of Llama 3 declare only the end of a text."""
    template = "{% for m in messages %}{{ m.content }}" + after + "{% endfor %}"
    change = put(**{"tokenizer__chat_template": template})
    assert load(gguf_with(change)).stop_ids == stops


def test_an_unknown_architecture(gguf_with: Callable[..., Path]) -> None:
    says = r"architecture 'mamba' is not supported; choose a model of one of .*llama.*qwen3"
    with pytest.raises(ModelError, match=says):
        load(gguf_with(lambda entries, tensors: None, arch="mamba"))
