"""What is said about weights that cannot stay as they are stored."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from pkvchat.kernels.linear import LinearTypes
from pkvchat.models.gguf_file import GgufFile
from pkvchat.models.weights import WeightReader


class Matrices:
    """Implements what a WeightReader asks of a Checkpoint, on a GGUF file without a model."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, GgufFile(path)
        self.shapes = {name: tensor.shape for name, tensor in self.file.tensors.items()}

    def nbytes(self, name: str) -> int:
        return self.file.tensors[name].nbytes

    def quantised(self, name: str) -> tuple[str, torch.Tensor]:
        return self.file.tensors[name].type.name, self.file.raw_rows(name)


@pytest.mark.parametrize(
    ("kinds", "packed_bits", "note"),
    [
        (("Q5_0", "F16"), 8, "Q5_0 weights are held as bfloat16"),
        (("Q4_0", "F16"), 8, ""),
        (("Q5_0", "Q5_1"), 0, ""),  # asked for in 16 bits
    ],
)
def test_says_which_types_a_gpu_must_widen(tmp_path, kinds, packed_bits, note):
    path = tmp_path / "matrices.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for index, kind in enumerate(kinds):
        quant = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(np.ones((4, 32), np.float32), quant)
        writer.add_tensor(f"{index}.weight", data, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    types = LinearTypes(torch.bfloat16, torch.bfloat16, torch.bfloat16, packed_bits=packed_bits)
    device = torch.device("cuda")  # nothing is put there
    reader = WeightReader(Matrices(path), device, torch.bfloat16, types, lambda *stage: None)
    for index in range(len(kinds)):
        reader._blocks({f"{index}.weight": (4, 32)})
    assert reader.note.startswith(note) if note else reader.note == ""
