"""How weights are kept: what stays as it is stored, what is said where it cannot, what fits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.checkpoint import Blocks
from pkvchat.models.decoder import Decoder
from pkvchat.models.errors import ModelError
from pkvchat.models.fit import fit
from pkvchat.models.gguf_file import GgufFile
from pkvchat.models.loader import open_checkpoint
from pkvchat.models.reading import Part
from pkvchat.models.weight_plan import WeightPlan
from pkvchat.models.weights import WeightReader


class Matrices:
    """Implements what a WeightReader asks of a Checkpoint, on a GGUF file without a model."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, GgufFile(path)
        self.shapes = {name: tensor.shape for name, tensor in self.file.tensors.items()}

    def nbytes(self, name: str) -> int:
        return self.file.tensors[name].nbytes

    def blocks(self, name: str) -> Blocks:
        return self.file.blocks(name)

    def parts(self, name: str, out: torch.Tensor) -> Iterator[Part]:
        return self.file.parts(name, out)


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = replace(LinearTypes.uniform(torch.bfloat16), packed_bits=8)


def matrices(path: Path, tensors: dict[str, np.ndarray]) -> Matrices:
    """tensors: float32, by the quant type that each is written as and named after."""
    writer = gguf.GGUFWriter(path, "llama")
    for kind, values in tensors.items():
        quant = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(values, quant)
        writer.add_tensor(f"{kind}.weight", data, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Matrices(path)


@pytest.mark.parametrize(
    ("kinds", "packed_bits", "note"),
    [
        (("Q5_0", "F16"), 8, "Q5_0 weights are held as bfloat16"),
        (("Q4_0", "F16"), 8, ""),
        (("Q5_0", "Q5_1"), 0, ""),  # asked for in 16 bits
    ],
)
def test_says_which_types_a_gpu_must_widen(tmp_path, kinds, packed_bits, note):
    ones = np.ones((4, 32), np.float32)
    checkpoint = matrices(tmp_path / "a.gguf", dict.fromkeys(kinds, ones))
    types = replace(BF16, packed_bits=packed_bits)
    plan = WeightPlan(checkpoint, CUDA, torch.bfloat16, types)
    for kind in kinds:
        plan.linear({kind: 4}, 32)
    assert plan.note.startswith(note) if note else plan.note == ""


MOST = LinearTypes(torch.float16, torch.float16, torch.bfloat16, packed_bits=8)  # memory, that is
DENSE = replace(MOST, packed_bits=0)


@pytest.mark.parametrize(
    ("asked", "memory", "given", "note"),
    [
        (MOST, None, MOST, ""),
        (MOST, 430e6, MOST, ""),
        (MOST, 360e6, replace(MOST, dense=False), "0.34 of 0.36 GB.*without 16-bit copies"),
        (MOST, 123.5e6, replace(MOST, dense=False), "0.34 of 0.12 GB"),
        (DENSE, 270e6, DENSE, ""),
        (DENSE, 200e6, replace(MOST, dense=False), "0.27 of 0.2 GB.*this processor is slow"),
    ],
)
def test_keeps_weights_so_that_they_fit(default_gguf, asked, memory, given, note):
    types, said = fit(open_checkpoint(default_gguf), CPU, torch.float32, asked, memory)
    assert types == given
    assert re.search(note, said) if note else said == ""


def test_refuses_with_numbers_what_cannot_fit(default_gguf):
    says = r"Q4_1.gguf: the weights need 0.12 GB on cpu, 0.1 GB are free: close"
    with pytest.raises(ModelError, match=says):
        fit(open_checkpoint(default_gguf), CPU, torch.float32, MOST, 100e6)
    with pytest.raises(ModelError, match=r"need 0.27 GB on cpu, 0.2 GB are free"):
        fit(open_checkpoint(default_gguf), CPU, torch.float32, DENSE, 200e6, asked=True)


@pytest.mark.parametrize("types", [MOST, replace(MOST, dense=False), DENSE])
def test_a_plan_counts_what_is_held(default_gguf, types):
    checkpoint = open_checkpoint(default_gguf)
    plan = WeightPlan(checkpoint, CPU, torch.float32, types)
    Decoder(checkpoint.config, plan)
    reader = WeightReader(checkpoint, CPU, torch.float32, types, lambda *stage: None)
    model = Decoder(checkpoint.config, reader)
    products = [model.embedding]
    norms = [model.output_norm]
    for layer in model.layers:
        products += [layer.attention.qkv, layer.attention.output]
        products += [layer.feed_forward.gate_up, layer.feed_forward.down]
        norms += [layer.attention_norm, layer.feed_forward_norm]
    held = sum(product.nbytes() for product in products) + sum(norm.nbytes for norm in norms)
    assert plan.held == reader.held == held
    assert plan.nbytes == reader.nbytes == model.nbytes()


@pytest.mark.parametrize(
    ("device", "close"), [(CPU, 1e-2), pytest.param(CUDA, 1e-4, marks=pytest.mark.gpu)], ids=str
)
def test_experts_stay_quantised(tmp_path, device, close):
    values = np.random.default_rng(0).normal(size=(3, 16, 64)).astype(np.float32)
    checkpoint = matrices(tmp_path / "a.gguf", {"Q8_0": values})
    types = replace(BF16, dense=False)
    reader = WeightReader(checkpoint, device, torch.bfloat16, types, lambda *stage: None)
    experts = reader.experts("Q8_0", 3, 16, 64)
    assert reader.nbytes == reader.expert_nbytes == 3 * 16 * 68
    assert reader.held < 3 * 16 * 64 * 1.3
    quant = gguf.GGMLQuantizationType.Q8_0
    stored = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(values, quant), quant))
    x = torch.randn(5, 64)
    for expert, weight in zip(experts.products, stored, strict=True):
        error = expert(x.to(device)).cpu() - x @ weight.T
        assert error.norm() < close * (x @ weight.T).norm()
