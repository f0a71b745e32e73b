"""Weights for a GPU: what stays as it is stored, and what is said where it cannot."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from pkvchat.kernels.linear import LinearTypes
from pkvchat.models.gguf_file import GgufFile
from pkvchat.models.weights import Blocks, WeightReader


class Matrices:
    """Implements what a WeightReader asks of a Checkpoint, on a GGUF file without a model."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, GgufFile(path)
        self.shapes = {name: tensor.shape for name, tensor in self.file.tensors.items()}

    def nbytes(self, name: str) -> int:
        return self.file.tensors[name].nbytes

    def blocks(self, name: str) -> Blocks:
        return self.file.blocks(name)


def gpu_reader(path: Path, tensors: dict[str, np.ndarray], packed_bits: int = 8) -> WeightReader:
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
    types = LinearTypes(torch.bfloat16, torch.bfloat16, torch.bfloat16, packed_bits=packed_bits)
    device = torch.device("cuda")
    return WeightReader(Matrices(path), device, torch.bfloat16, types, lambda *stage: None)


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
    reader = gpu_reader(tmp_path / "a.gguf", dict.fromkeys(kinds, ones), packed_bits)
    for kind in kinds:
        reader._packable({f"{kind}.weight": (4, 32)})  # puts nothing on the device
    assert reader.note.startswith(note) if note else reader.note == ""


@pytest.mark.gpu
def test_experts_stay_quantised_on_a_gpu(tmp_path):
    values = np.random.default_rng(0).normal(size=(3, 16, 64)).astype(np.float32)
    reader = gpu_reader(tmp_path / "a.gguf", {"Q8_0": values})
    experts = reader.experts("Q8_0", 3, 16, 64)
    assert reader.nbytes == 3 * 16 * 68
    quant = gguf.GGMLQuantizationType.Q8_0
    stored = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(values, quant), quant))
    x = torch.randn(5, 64)
    for expert, weight in zip(experts, stored, strict=True):
        torch.testing.assert_close(expert(x.cuda()).cpu(), x @ weight.T, rtol=1e-4, atol=1e-4)
