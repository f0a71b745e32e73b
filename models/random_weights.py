"""A model's shape with random weights and no file, for benchmarks anyone can repeat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.kernels.progress import Progress

from .checkpoint import Blocks, Shape
from .config import ExpertConfig, ModelConfig, RopeConfig
from .decoder import Decoder
from .errors import ModelError
from .fit import fit
from .reading import Part
from .vocabulary import Vocabulary
from .weights import WeightReader

SHAPES = {
    "llama-3-8b": ModelConfig(
        architecture="llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_qo_heads=32,
        num_kv_heads=8,
        head_dim=128,
        context_length=131072,
        rms_norm_eps=1e-5,
        ropes=(RopeConfig(theta=500000.0),),
    ),
    "qwen3-30b-a3b": ModelConfig(
        architecture="qwen3moe",
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        num_layers=48,
        num_qo_heads=32,
        num_kv_heads=4,
        head_dim=128,
        context_length=40960,
        rms_norm_eps=1e-6,
        ropes=(RopeConfig(theta=1e6),),
        qk_norm=True,
        experts=ExpertConfig(count=128, per_token=8, intermediate_size=768, normalise=True),
    ),
}
QUANTS = ("bf16", "Q8_0", "Q4_K_M")


def random_model(
    shape: str,
    quant: str,
    *,
    device: torch.device,
    context: int = 0,
    memory: int | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Decoder:
    """shape: a name in SHAPES; quant: one of QUANTS. context, memory: see load_model.

    Activations in bfloat16. Raises ModelError.
    """
    if shape not in SHAPES:
        raise ModelError(f"unknown shape {shape!r}: one of {', '.join(SHAPES)}")
    if quant not in QUANTS:
        raise ModelError(f"unknown quant {quant!r}: one of {', '.join(QUANTS)}")
    types = LinearTypes(torch.bfloat16, torch.bfloat16, torch.bfloat16, packed_bits=8)
    checkpoint = RandomCheckpoint(SHAPES[shape], quant, device)
    fit(checkpoint, device, torch.bfloat16, types, memory)
    reader = WeightReader(checkpoint, device, torch.bfloat16, types, progress)
    return Decoder(checkpoint.config, reader, context)


def num_parameters(shape: str) -> int:
    """Elements of all tensors. shape: a name in SHAPES."""
    return sum(math.prod(size) for size in _shapes(SHAPES[shape]).values())


class RandomCheckpoint:
    """Implements Checkpoint; what a GGUF file of this shape would hold, made on ``device``.

    A matrix's standard deviation is 1 / sqrt(width): products neither grow nor vanish.
    """

    def __init__(self, config: ModelConfig, quant: str, device: torch.device) -> None:
        self.path = Path(f"random {config.architecture}")
        self.config, self.quant = config, quant
        self.shapes: Mapping[str, Shape] = _shapes(config)
        self._random = torch.Generator(device).manual_seed(0)

    def vocabulary(self) -> Vocabulary:
        raise ModelError("random weights have no vocabulary: run a benchmark on them")

    def nbytes(self, name: str) -> int:
        elements = math.prod(self.shapes[name])
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[self._type(name)]]
        return elements // block * block_bytes

    def blocks(self, name: str) -> Blocks | None:
        kind = self._type(name)
        if kind not in _SCALES:
            return None
        rows = math.prod(self.shapes[name][:-1])
        return Blocks(kind, (rows, self.nbytes(name) // rows), partial(self._fill_blocks, name))

    def _fill_blocks(self, name: str, out: torch.Tensor) -> tuple[()]:
        """Leaves nothing to other threads: they would take turns at the generator by chance."""
        kind, width = self._type(name), self.shapes[name][-1]
        _, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        torch.randint(0, 256, out.shape, generator=self._random, out=out)
        for start, scale in _SCALES[kind].items():
            half = torch.tensor([scale * width**-0.5], dtype=torch.float16).view(torch.uint8)
            out.view(len(out), -1, block_bytes)[..., start : start + 2] = half.to(out.device)
        return ()

    def parts(self, name: str, out: torch.Tensor) -> Iterable[Part]:
        if out.dim() == 1:
            out.fill_(1.0)
        else:
            out.normal_(std=out.shape[-1] ** -0.5, generator=self._random)
        return ()

    def _type(self, name: str) -> str:
        """GGUF's type of a tensor. Q4_K_M's mix is llama.cpp's: more bits where it pays."""
        if len(self.shapes[name]) == 1 or "_inp." in name:
            return "F32"
        if self.quant != "Q4_K_M":
            return self.quant.upper()
        if name == "output.weight":
            return "Q6_K"
        part = name.split(".")[-2]
        if part.removesuffix("_exps") not in ("attn_v", "ffn_down"):
            return "Q4_K"
        layer, eighth = int(name.split(".")[1]), self.config.num_layers // 8
        inner = range(eighth + 2, self.config.num_layers - eighth, 3)
        outer = layer < eighth or layer >= self.config.num_layers - eighth
        return "Q6_K" if outer or layer in inner else "Q4_K"


# Bytes of a block that hold an fp16 scale, and the value at which random bits elsewhere give
# weights of standard deviation 1 around zero.
_SCALES = {
    "Q8_0": {0: 1 / 74},
    "Q4_K": {0: 1 / 250, 2: 7.5 / 250},
    "Q6_K": {208: 1 / 1365},
}


def _shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, ffn, experts = config.hidden_size, config.intermediate_size, config.experts
    shapes: dict[str, Shape] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes["output.weight"] = config.vocab_size, hidden
    for layer in range(config.num_layers):
        parts: dict[str, Shape] = {
            "attn_norm": (hidden,),
            "attn_q": (config.q_size, hidden),
            "attn_k": (config.kv_size, hidden),
            "attn_v": (config.kv_size, hidden),
            "attn_output": (hidden, config.q_size),
            "ffn_norm": (hidden,),
        }
        if config.qk_norm:
            parts |= {"attn_q_norm": (config.head_dim,), "attn_k_norm": (config.head_dim,)}
        if experts:
            count, each = experts.count, experts.intermediate_size
            parts |= {
                "ffn_gate_inp": (count, hidden),
                "ffn_gate_exps": (count, each, hidden),
                "ffn_up_exps": (count, each, hidden),
                "ffn_down_exps": (count, hidden, each),
            }
        else:
            parts |= {"ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
    return shapes
