"""Loading whole models: sharded and split ones, and every way in which files can be wrong."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.errors import ModelError
from pkvchat.models.loader import LoadedModel, load_model
from pkvchat.models.resolve import resolve

CPU = torch.device("cpu")
HIDDEN, FFN, VOCAB = 32, 64, 260
BLOCK = {
    "attn_norm": (HIDDEN,),
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // 2, HIDDEN),
    "attn_v": (HIDDEN // 2, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}
ENTRIES = {
    "block_count": 1,
    "context_length": 64,
    "embedding_length": HIDDEN,
    "feed_forward_length": FFN,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
Tensors = dict[str, np.ndarray]


def gguf_tensors() -> Tensors:
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {f"blk.0.{name}.weight": shape for name, shape in BLOCK.items()}
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(shape, dtype=np.float32) * 0.2 for n, shape in shapes.items()}


def hf_tensors() -> dict[str, torch.Tensor]:
    given = gguf_tensors()
    tensors = {f"model.layers.0.{HF_NAMES[n]}.weight": given[f"blk.0.{n}.weight"] for n in BLOCK}
    tensors["model.embed_tokens.weight"] = given["token_embd.weight"]
    tensors["model.norm.weight"] = given["output_norm.weight"]
    return {name: torch.from_numpy(values) for name, values in tensors.items()}


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(str(path), device=CPU, **options)


@pytest.fixture
def gguf_with(tmp_path: Path, helpers: Any) -> Callable[..., Path]:
    """gguf_with(change): a small model's file, its entries and tensors changed before writing."""

    def make(change: Callable[[dict[str, Any], Tensors], object], arch: str = "llama") -> Path:
        entries, tensors = dict(ENTRIES), gguf_tensors()
        change(entries, tensors)
        path = tmp_path / "model.gguf"
        helpers.write_gguf(path, arch, entries, tensors)
        return path

    return make


@pytest.fixture
def folder(tmp_path: Path, helpers: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(hf_tensors(), tmp_path / "model.safetensors")
    helpers.write_tokenizer(tmp_path)
    return tmp_path


def test_split_gguf(gguf_with: Callable[..., Path], tmp_path: Path, helpers: Any) -> None:
    whole = load(gguf_with(lambda entries, tensors: None))
    tensors = list(gguf_tensors().items())
    for i in range(3):
        path = tmp_path / f"big-0000{i + 1}-of-00003.gguf"
        entries = dict(ENTRIES) if i == 0 else {}
        counts = {"split.no": i, "split.count": 3}
        helpers.write_gguf(path, "llama", entries, dict(tensors[i::3]), plain=counts)
    split = load(tmp_path / "big-00002-of-00003.gguf")  # any part stands for all
    ids = list(range(40, 60))
    assert torch.equal(
        helpers.run(whole.model, ids, [len(ids)]), helpers.run(split.model, ids, [len(ids)])
    )
    (tmp_path / "big-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelError, match=r"1 of 3 parts are missing, big-00003-of-00003.gguf"):
        load(tmp_path / "big-00001-of-00003.gguf")


def test_sharded_safetensors(folder: Path, helpers: Any) -> None:
    ids = list(range(40, 60))
    whole = helpers.run(load(folder).model, ids, [len(ids)])
    tensors = list(hf_tensors().items())
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for i in range(2):
        name = f"model-0000{i + 1}-of-00002.safetensors"
        save_file(dict(tensors[i::2]), folder / name)
        weight_map.update(dict.fromkeys(dict(tensors[i::2]), name))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(helpers.run(load(folder).model, ids, [len(ids)]), whole)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002.safetensors is missing"):
        load(folder)


def test_progress_and_size(folder: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    loaded = load(folder, progress=lambda *report: seen.append(report))
    assert seen[0] == ("reading the tokenizer", 0, 0)
    expected = sum(tensor.nbytes for tensor in hf_tensors().values())
    assert seen[-1] == ("reading the weights", expected, expected)
    assert loaded.model.nbytes() == expected
    half = LinearTypes.uniform(torch.float16)
    assert expected / 2 < load(folder, linear_types=half).model.nbytes() < expected * 0.51


def test_too_large_for_memory(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"weights need 7.1e-05 GB on cpu, 1e-06 GB are free"):
        load(folder, memory=1000)
    half = LinearTypes.uniform(torch.float16)
    load(folder, memory=40_000, linear_types=half)  # it is what they take here that counts


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
            put(token_embd__weight=np.ones((100, HIDDEN), np.float32)),
            "vocabulary has 260 tokens but the embedding only 100 rows",
        ),
        (put(rope__scaling__type="spiral"), "unknown rope_type 'spiral'"),
        (put(rope__scaling__type="longrope"), "not usable: KeyError"),
    ],
)
def test_bad_gguf(gguf_with: Callable[..., Path], change: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load(gguf_with(change))


def test_unknown_architectures(gguf_with: Callable[..., Path], folder: Path) -> None:
    says = r"architecture '\w+' is not supported; choose a model of one of .*llama.*qwen3"
    with pytest.raises(ModelError, match=says):
        load(gguf_with(lambda entries, tensors: None, arch="mamba"))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "mamba2"}))
    with pytest.raises(ModelError, match=says):
        load(folder)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, "config.json: cannot be read"),
        ("{not json", "config.json: not JSON"),
        ("[" * 100_000, "config.json: not JSON"),
        ("[]", "config.json: holds no JSON object"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "32"}, "'hidden_size' is '32', not of type int"),
        ({"num_hidden_layers": -1}, "'num_hidden_layers' is -1, which cannot be"),
        ({"model_type": None}, "'model_type' is missing"),
        ({"partial_rotary_factor": 8.0}, "64 numbers of a head of 8 cannot be rotated"),
        ({"hidden_size": 64}, r"tensor 'token_embd.weight' has shape \[260, 32\] but"),
        ({"vocab_size": 300}, r"tensor 'token_embd.weight' has shape \[260, 32\] but"),
        ({"tie_word_embeddings": False}, r"tensor 'output.weight' \[260, 32\] is missing"),
        ({"rope_scaling": {"rope_type": "linear"}}, "not usable: KeyError"),
    ],
)
def test_bad_config(folder: Path, config: Any, says: str) -> None:
    path = folder / "config.json"
    if config is None:
        (folder / "tokenizer.json").touch()
        path.unlink()
        path.mkdir()
    else:
        path.write_text(config if isinstance(config, str) else json.dumps({**CONFIG, **config}))
    with pytest.raises(ModelError, match=says) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_an_index_of_the_wrong_kind(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    with pytest.raises(ModelError, match=r"entry 'weight_map' is \[1\], not of type dict"):
        load(folder)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)
ROPE_KEYS = ("rope_type", "type", "factor", "rope_theta", "partial_rotary_factor")


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from([*CONFIG, "head_dim", "rope_scaling", "eos_token_id", "text_config"]),
    value=ANYTHING | st.dictionaries(st.sampled_from(ROPE_KEYS), ANYTHING),
)
def test_any_config_loads_or_is_refused(folder: Path, key: str, value: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, key: value}))
    with suppress(ModelError):
        load(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08\0\0\0\0\0\0\0{}",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 8) + b"not json",
        struct.pack("<Q", 70)
        + b'{"a":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4000000]}}  ',
    ],
)
def test_lying_safetensors(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model.safetensors: not a whole safetensors file"):
        load(folder)


def test_safetensors_cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        load(folder)


def test_extra_tensors_and_types(folder: Path) -> None:
    extra = {"model.layers.0.adapter.weight": torch.ones(2)}
    save_file(hf_tensors() | extra, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"no place for tensors 'model.layers.0.adapter.weight'"):
        load(folder)
    quantised = {"model.layers.0.mlp.up_proj.weight": torch.ones(FFN, HIDDEN, dtype=torch.int8)}
    save_file(hf_tensors() | quantised, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"'model.layers.0.mlp.up_proj.weight' is of type I8"):
        load(folder)


def test_pickles_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled weights \(pytorch_model.bin\).* refused"):
        load(folder)


def test_a_token_past_the_embedding(folder: Path) -> None:
    """As Gemma 3 1B's for pictures; one that the chat needs is a fault."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    extra = {"content": "<image>", "id": VOCAB, "special": True, "normalized": False}
    data["added_tokens"].append(data["added_tokens"][0] | extra)
    path.write_text(json.dumps(data))
    loaded = load(folder)
    ids = loaded.tokenizer.encode("a<image><|im_end|>", specials=True)
    assert max(ids) < VOCAB
    assert "<image>" in loaded.tokenizer.decode(ids)
    (folder / "chat_template.jinja").write_text("<image>{{ messages[-1].content }}")
    with pytest.raises(ModelError, match="vocabulary has 261 tokens but the embedding only 260"):
        load(folder)


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"neither tokenizer.json nor tokenizer.model"):
        load(folder)
    (folder / "tokenizer.json").write_text('{"model": 7}')
    with pytest.raises(ModelError, match="not a tokenizer this version reads"):
        load(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"junk")
    with pytest.raises(ModelError, match="not a SentencePiece model"):
        load(folder)


def test_stop_ids_and_template(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [256, 258]}')
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}{{ eos_token }}")
    loaded = load(folder)
    assert loaded.stop_ids == {256, 257, 258}
    assert loaded.notes == ()
    assert loaded.template.render([{"role": "user", "content": "x"}]) == "x<|im_end|>"
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    assert load(folder).notes == (
        "the model's chat template is not usable (no): a plain one is used",
    )


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


def test_a_chat_template_that_is_not_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"{{ \xff }}")
    with pytest.raises(ModelError, match=r"chat_template.jinja: cannot be read: .*0xff"):
        load(folder)


def silent(stage: str, done: int, total: int) -> None:
    pass


def test_resolve_paths(folder: Path, gguf_with: Callable[..., Path], tmp_path: Path) -> None:
    assert resolve(str(folder), silent).path == folder
    assert resolve(str(folder / "model.safetensors"), silent).path == folder
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ModelError, match=r"neither config.json nor a .gguf file"):
        resolve(str(other), silent)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match=r"pipe: is neither a .gguf file nor a safetensors folder"):
        resolve(str(tmp_path / "pipe"), silent)
    gguf = gguf_with(lambda entries, tensors: None).rename(other / "a.gguf")
    (other / "mmproj-a.gguf").touch()
    assert resolve(str(other), silent).path == gguf
    (other / "b.gguf").touch()
    with pytest.raises(ModelError, match=r"several models.*a.gguf, b.gguf"):
        resolve(str(other), silent)


def test_resolve_names(default_gguf: Path) -> None:
    assert resolve(None, silent).path == default_gguf
    assert resolve(None, silent, gpu_memory=1 << 40).path == default_gguf
    assert resolve("SmolLM2-135M", silent).path == default_gguf
    with pytest.raises(ModelError, match=r"no model 'no-such-model': give a path.*llama-3-8b"):
        resolve("no-such-model", silent)
    for name in ("models/absent.gguf", "absent.safetensors", "a/b/c", "./absent"):
        with pytest.raises(
            ModelError, match=rf"no such file: {name}: give a path[^,]*, owner/name"
        ):
            resolve(name, silent)
