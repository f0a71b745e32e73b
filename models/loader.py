"""From a model's name to everything that is needed to chat with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pkvchat.kernels.linear import LinearTypes

from .causal_lm import CausalLM
from .decoder import Decoder
from .errors import ModelError
from .gguf_checkpoint import GgufCheckpoint
from .gguf_tokenizer import gguf_tokenizer
from .hub import resolve
from .metadata import Metadata
from .template import ChatTemplate
from .tokenizer import Tokenizer
from .weights import Progress, WeightReader


@dataclass(frozen=True)
class LoadedModel:
    """notes: what a person should know, one line each (a template replaced, say)."""

    name: str
    model: CausalLM
    tokenizer: Tokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]
    notes: tuple[str, ...]


def load_model(
    name: str | None,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    linear_types: Callable[[], LinearTypes] | LinearTypes | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> LoadedModel:
    """name: see ``hub.resolve``. dtype: of activations; None is float32 on CPU, bfloat16 on CUDA.

    linear_types: how matrices are kept and multiplied; None keeps them all in ``dtype``.
    progress: called with (stage, done, total), often. Raises ModelError.
    """
    path = resolve(name, progress)
    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    types = linear_types() if callable(linear_types) else linear_types
    checkpoint = GgufCheckpoint(path)
    progress("tokenizer", 0, 0)
    meta = checkpoint.metadata
    tokenizer = gguf_tokenizer(meta)
    tokens: list[str] = meta.entries["tokenizer.ggml.tokens"]
    if len(tokens) > checkpoint.config.vocab_size:
        raise ModelError(
            f"{path}: the vocabulary has {len(tokens)} tokens, the embedding only"
            f" {checkpoint.config.vocab_size} rows: the file is damaged, fetch another"
        )
    template = ChatTemplate(
        meta.get("tokenizer.chat_template", str, "") or None,
        tokenizer,
        bos=_token(meta, tokens, "bos"),
        eos=_token(meta, tokens, "eos"),
    )
    reader = WeightReader(checkpoint, device, dtype, types or LinearTypes.uniform(dtype), progress)
    model = Decoder(checkpoint.config, reader)
    return LoadedModel(
        name=name or path.stem,
        model=model,
        tokenizer=tokenizer,
        template=template,
        stop_ids=_stop_ids(meta),
        notes=(template.fallback_note,) if template.fallback_note else (),
    )


def _token(meta: Metadata, tokens: list[str], kind: str) -> str:
    index = meta.entries.get(f"tokenizer.ggml.{kind}_token_id")
    return tokens[index] if index is not None and index < len(tokens) else ""


def _stop_ids(meta: Metadata) -> frozenset[int]:
    kinds = ("eos", "eot", "eom")
    found = (meta.entries.get(f"tokenizer.ggml.{kind}_token_id") for kind in kinds)
    return frozenset(index for index in found if index is not None)
