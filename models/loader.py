"""From a model's name to everything that is needed to chat with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.kernels.progress import Progress

from .causal_lm import CausalLM
from .checkpoint import Checkpoint
from .decoder import Decoder
from .errors import ModelError
from .fit import fit
from .gguf_checkpoint import GgufCheckpoint
from .resolve import resolve
from .safetensors_checkpoint import SafetensorsCheckpoint
from .template import ChatTemplate
from .tokenizer import Tokenizer
from .weights import WeightReader


@dataclass(frozen=True)
class LoadedModel:
    """num_parameters: elements of all tensors. packed: quant types that products read as they are.
    stop_ids: tokens that end an answer. notes: what a person should know, one line each.
    """

    name: str
    model: CausalLM
    num_parameters: int
    packed: tuple[str, ...]
    tokenizer: Tokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]
    notes: tuple[str, ...]


def _silent(stage: str, done: int, total: int) -> None:
    pass


def load_model(
    name: str | None,
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    linear_types: Callable[[], LinearTypes] | LinearTypes | None = None,
    context: int = 0,
    memory: int | None = None,
    progress: Progress = _silent,
) -> LoadedModel:
    """name: see ``resolve``. dtype: of activations; None is float32 on CPU, bfloat16 on CUDA.

    linear_types: how matrices are kept and multiplied; None keeps them all in ``dtype``.
    context: tokens in a sequence at most; 0 is the model's own limit. memory: bytes free on the
    device; a model whose weights need more is refused. progress: called with (stage, done, total),
    often. Raises ModelError.
    """
    found = resolve(name, progress, memory if device.type == "cuda" else None)
    path = found.path
    checkpoint = open_checkpoint(path)
    progress("reading the tokenizer", 0, 0)
    vocabulary = checkpoint.vocabulary()
    tokenizer, rows = vocabulary.tokenizer, checkpoint.config.vocab_size
    if tokenizer.vocab_size > rows:
        raise ModelError(
            f"{path}: the vocabulary has {tokenizer.vocab_size} tokens but the embedding only"
            f" {rows} rows: the files do not belong together, fetch the model again"
        )
    template = ChatTemplate(vocabulary)
    turn_end = tokenizer.specials.get(template.turn_end())
    asked = dtype is not None
    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    types = linear_types() if callable(linear_types) else linear_types
    types = types or LinearTypes.uniform(dtype)
    if checkpoint.config.wide_range:
        types = types.without_float16()
        if dtype == torch.float16:
            raise ModelError(
                f"{path}: this model's activations do not fit float16: use --dtype bf16 or f32"
            )
    types, fit_note = fit(checkpoint, device, dtype, types, memory, asked=asked)
    reader = WeightReader(checkpoint, device, dtype, types, progress)
    model = Decoder(checkpoint.config, reader, context)
    return LoadedModel(
        name=name or path.stem,
        model=model,
        num_parameters=sum(math.prod(shape) for shape in checkpoint.shapes.values()),
        packed=tuple(sorted(reader.packed)),
        tokenizer=tokenizer,
        template=template,
        stop_ids=vocabulary.stop_ids | ({turn_end} if turn_end is not None else set()),
        notes=tuple(filter(None, (found.note, template.fallback_note, reader.note, fit_note))),
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of a .gguf file or a safetensors folder. Raises ModelError."""
    return SafetensorsCheckpoint(path) if path.is_dir() else GgufCheckpoint(path)
