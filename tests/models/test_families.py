"""Every family's logits against transformers, on small random checkpoints it makes itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.errors import ModelError
from pkvchat.models.loader import load_model

FILE = "model.safetensors"
LENGTH = 75  # longer than any window below
SHARED = {
    "vocab_size": 260,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e3,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
    "original_max_position_embeddings": 32,
}


def rope(kind: str, **entries: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **entries}}


@dataclass(frozen=True)
class Case:
    """config: what transformers' config class gets beyond SHARED. gguf: the same as GGUF keys."""

    name: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    arch: str | None = None
    gguf: dict[str, Any] = field(default_factory=dict)


SLIDING = {"sliding_window": 20}
SLIDING_GGUF = {"attention.sliding_window": 20}
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
YARN_GGUF = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
LINEAR_GGUF = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
MOE_GGUF = {"expert_count": 4, "expert_used_count": 2}
GEMMA2 = {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, **SLIDING}
GEMMA2_GGUF = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0, **SLIDING_GGUF}
GEMMA3_ROPE = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
CASES = (
    Case("llama", "llama", {}, "llama"),
    Case("llama-tied", "llama", {"tie_word_embeddings": True}, "llama"),
    Case("llama-bias", "llama", {"attention_bias": True}, "llama"),
    Case("llama-linear", "llama", rope("linear", factor=4.0), "llama", LINEAR_GGUF),
    Case("llama-dynamic", "llama", {**rope("dynamic", factor=2.0), "max_position_embeddings": 50}),
    Case("llama-llama3", "llama", {"rope_parameters": LLAMA3}, "llama"),
    Case("llama-yarn", "llama", YARN, "llama", YARN_GGUF),
    Case("mistral", "mistral", SLIDING),
    Case("mixtral", "mixtral", {**SLIDING, **MOE}),
    Case("mixtral-full", "mixtral", {"sliding_window": None, **MOE}, "llama", MOE_GGUF),
    Case("qwen2", "qwen2", {}, "qwen2"),
    Case(
        "qwen2-sliding",
        "qwen2",
        {"use_sliding_window": True, "max_window_layers": 2, **SLIDING},
    ),
    Case("qwen3", "qwen3", YARN, "qwen3", YARN_GGUF),
    Case(
        "qwen3-moe",
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
        | {"norm_topk_prob": True},
        "qwen3moe",
        {**MOE_GGUF, "expert_feed_forward_length": 40},
    ),
    Case(
        "qwen3-moe-some",
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
        | {"decoder_sparse_step": 2, "mlp_only_layers": [1]},
    ),
    Case("gemma2", "gemma2", GEMMA2, "gemma2", GEMMA2_GGUF),
    Case(
        "gemma3",
        "gemma3_text",
        {"num_hidden_layers": 7, "query_pre_attn_scalar": 16, **SLIDING, **GEMMA3_ROPE},
        "gemma3",
        {"rope.freq_base": 1e6, **SLIDING_GGUF, **LINEAR_GGUF, "rope.scaling.factor": 8.0},
    ),
    Case(
        "phi3",
        "phi3",
        {"hidden_size": 96, "rope_parameters": LONGROPE, "original_max_position_embeddings": 32}
        | SLIDING,
        "phi3",
        {**SLIDING_GGUF, "rope.scaling.original_context_length": 32, "rope.dimension_count": 12},
    ),
    Case("smollm3", "smollm3", {}, "smollm3"),
)


@dataclass(frozen=True)
class Checkpoint:
    case: Case
    config: Any  # transformers' own
    folder: Path
    ids: list[int]
    logits: torch.Tensor  # of the whole text, by transformers


def make_model(case: Case) -> Any:
    config = AutoConfig.for_model(case.model_type, **{**SHARED, **case.config})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Large enough that every part shows in the logits; norms and biases not trivial.
            spread = 0.5 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, helpers: Any
) -> Checkpoint:
    folder = tmp_path_factory.mktemp(request.param.name)
    model = make_model(request.param)
    model.save_pretrained(folder)
    helpers.write_tokenizer(folder)
    ids = torch.randint(0, 256, (LENGTH,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = model(ids[None], use_cache=False).logits[0]
    return Checkpoint(request.param, model.config, folder, ids.tolist(), logits)


def only(cases: Sequence[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("checkpoint", cases, indirect=True, ids=lambda case: case.name)


def check(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert reference.std() > 0.3
    assert (ours - reference).abs().max() < 1e-4


@pytest.mark.parametrize("strategy", ["sdpa", "split", "workqueue"])
def test_safetensors(checkpoint: Checkpoint, helpers: Any, strategy: str) -> None:
    """Prefill in chunks, then decode under every strategy."""
    model = helpers.load_f32(checkpoint.folder, context=LENGTH)
    ours = helpers.run(model, checkpoint.ids, chunks=[7, 32, 16], strategy=strategy)
    check(ours, checkpoint.logits)


def test_prefill_in_one_go(checkpoint: Checkpoint, helpers: Any) -> None:
    model = helpers.load_f32(checkpoint.folder, context=LENGTH)
    check(helpers.run(model, checkpoint.ids, chunks=[LENGTH]), checkpoint.logits)


@only([case for case in CASES if case.arch])  # GGUF has no way to write the others
def test_gguf(checkpoint: Checkpoint, helpers: Any, tmp_path: Path) -> None:
    arch = checkpoint.case.arch
    assert arch is not None
    path = tmp_path / "model.gguf"
    helpers.write_gguf(path, arch, gguf_entries(checkpoint), gguf_tensors(checkpoint, arch))
    model = helpers.load_f32(path, context=LENGTH)
    check(helpers.run(model, checkpoint.ids, chunks=[40, 20]), checkpoint.logits)


@only([case for case in CASES if case.name == "mixtral-full"])
def test_gguf_with_a_tensor_an_expert(checkpoint: Checkpoint, helpers: Any, tmp_path: Path) -> None:
    """As files of Mixtral were before experts were stacked."""
    tensors = gguf_tensors(checkpoint, "llama")
    for name in [name for name in tensors if "_exps" in name]:
        for number, expert in enumerate(tensors.pop(name)):
            tensors[name.replace("_exps", f".{number}")] = expert
    path = tmp_path / "model.gguf"
    helpers.write_gguf(path, "llama", gguf_entries(checkpoint), tensors)
    model = helpers.load_f32(path, context=LENGTH)
    check(helpers.run(model, checkpoint.ids, chunks=[40, 20]), checkpoint.logits)
    tensors["blk.1.ffn_up.2.weight"] = np.ones((4, 4), np.float32)
    helpers.write_gguf(path, "llama", gguf_entries(checkpoint), tensors)
    says = r"'blk.1.ffn_up.2.weight' has shape \[4, 4\] but 'blk.1.ffn_up.0.weight' \[72, 48\]"
    with pytest.raises(ModelError, match=says):
        helpers.load_f32(path)


@only([case for case in CASES if case.name == "gemma3"])
def test_language_part_of_a_model_that_sees(
    checkpoint: Checkpoint, helpers: Any, tmp_path: Path
) -> None:
    """Gemma 3 from 4B on: one config inside another, prefixed names, tensors for pictures."""
    config = json.loads((checkpoint.folder / "config.json").read_text())
    outer = {"model_type": "gemma3", "text_config": config, "vision_config": {"hidden_size": 1}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = load_file(checkpoint.folder / FILE)
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    renamed["vision_tower.patches.weight"] = torch.ones(2)
    save_file(renamed, tmp_path / FILE)
    helpers.write_tokenizer(tmp_path)
    model = helpers.load_f32(tmp_path)
    check(helpers.run(model, checkpoint.ids, chunks=[LENGTH]), checkpoint.logits)


@only([case for case in CASES if case.name == "gemma2"])
def test_gemma_never_runs_in_float16(checkpoint: Checkpoint) -> None:
    cpu, half = torch.device("cpu"), LinearTypes.uniform(torch.float16)
    with pytest.raises(ModelError, match="do not fit float16"):
        load_model(str(checkpoint.folder), device=cpu, dtype=torch.float16)
    loaded = load_model(str(checkpoint.folder), device=cpu, linear_types=half)
    assert loaded.model.output.types == half.without_float16()


def gguf_entries(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.config
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters.get("rope_theta", 1e6),
        **checkpoint.case.gguf,
    }


def gguf_tensors(checkpoint: Checkpoint, arch: str) -> dict[str, np.ndarray]:
    """As llama.cpp's converter writes them."""
    config = checkpoint.config
    kind = {name: key for key, name in gguf.constants.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"attn_q.": config.num_attention_heads, "attn_k.": config.num_key_value_heads}
    tensors: dict[str, np.ndarray] = {}
    experts: dict[str, list[np.ndarray]] = {}
    for name, tensor in sorted(load_file(checkpoint.folder / FILE).items()):
        values = tensor.numpy()
        target = names.get_name(re.sub(r"experts\.\d+", "experts", name), (".weight", ".bias"))
        assert target is not None, name
        if "experts." in name:
            experts.setdefault(target, []).append(values)
            continue
        if arch.startswith("gemma") and target.endswith("norm.weight"):
            values = values + 1
        part = next((heads[part] for part in heads if part in target), None)
        if part and arch in ("llama", "smollm3"):
            halves = values.reshape(part, 2, -1, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        tensors[target] = values
    tensors.update({name: np.stack(values) for name, values in experts.items()})
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        for length in ("long", "short"):
            factors = np.array(rope[f"{length}_factor"], np.float32)
            tensors[f"rope_factors_{length}.weight"] = factors
    if rope.get("rope_type") == "llama3":
        plain = rope["rope_theta"] ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
        scaled = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0].numpy()
        tensors["rope_freqs.weight"] = (plain / scaled).astype(np.float32)
    return tensors
