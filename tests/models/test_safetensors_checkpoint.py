"""Loading models from Hugging Face's folders: sharded ones, and what can be wrong in one."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.errors import ModelError
from pkvchat.models.loader import LoadedModel, load_model

CPU = torch.device("cpu")
Small = tuple[dict[str, Any], dict[str, torch.Tensor]]  # see the fixture small_hf


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(str(path), device=CPU, **options)


def test_sharded_safetensors(folder: Path, small_hf: Small, helpers: Any) -> None:
    ids = list(range(40, 60))
    whole = helpers.run(load(folder).model, ids, [len(ids)])
    tensors = list(small_hf[1].items())
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


def test_progress_and_size(folder: Path, small_hf: Small) -> None:
    seen: list[tuple[str, int, int]] = []
    loaded = load(folder, progress=lambda *report: seen.append(report))
    assert seen[0] == ("reading the tokenizer", 0, 0)
    expected = sum(tensor.nbytes for tensor in small_hf[1].values())
    assert seen[-1] == ("reading the weights", expected, expected)
    assert loaded.model.nbytes() == expected
    half = LinearTypes.uniform(torch.float16)
    assert expected / 2 < load(folder, linear_types=half).model.nbytes() < expected * 0.51


def test_too_large_for_memory(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"weights need 7.1e-05 GB on cpu, 1e-06 GB are free"):
        load(folder, memory=1000)
    half = LinearTypes.uniform(torch.float16)
    load(folder, memory=40_000, linear_types=half)  # it is what they take here that counts


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
def test_bad_config(folder: Path, small_hf: Small, config: Any, says: str) -> None:
    path = folder / "config.json"
    if config is None:
        (folder / "tokenizer.json").touch()
        path.unlink()
        path.mkdir()
    else:
        path.write_text(config if isinstance(config, str) else json.dumps(small_hf[0] | config))
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
CONFIG_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "tie_word_embeddings",
)
ROPE_KEYS = ("rope_type", "type", "factor", "rope_theta", "partial_rotary_factor")


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from([*CONFIG_KEYS, "head_dim", "rope_scaling", "eos_token_id", "text_config"]),
    value=ANYTHING | st.dictionaries(st.sampled_from(ROPE_KEYS), ANYTHING),
)
def test_any_config_loads_or_is_refused(
    folder: Path, small_hf: Small, key: str, value: Any
) -> None:
    (folder / "config.json").write_text(json.dumps(small_hf[0] | {key: value}))
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


def test_extra_tensors_and_types(folder: Path, small_hf: Small) -> None:
    extra = {"model.layers.0.adapter.weight": torch.ones(2)}
    save_file(small_hf[1] | extra, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"no place for tensors 'model.layers.0.adapter.weight'"):
        load(folder)
    quantised = {"model.layers.0.mlp.up_proj.weight": torch.ones(64, 32, dtype=torch.int8)}
    save_file(small_hf[1] | quantised, folder / "model.safetensors")
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
    extra = {"content": "<image>", "id": 260, "special": True, "normalized": False}
    data["added_tokens"].append(data["added_tokens"][0] | extra)
    path.write_text(json.dumps(data))
    loaded = load(folder)
    ids = loaded.tokenizer.encode("a<image><|im_end|>", specials=True)
    assert max(ids) < 260
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


def test_a_chat_template_that_is_not_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"{{ \xff }}")
    with pytest.raises(ModelError, match=r"chat_template.jinja: cannot be read: .*0xff"):
        load(folder)


def test_an_unknown_architecture(folder: Path, small_hf: Small) -> None:
    (folder / "config.json").write_text(json.dumps(small_hf[0] | {"model_type": "mamba2"}))
    says = r"architecture 'mamba2' is not supported; choose a model of one of .*llama.*qwen3"
    with pytest.raises(ModelError, match=says):
        load(folder)
