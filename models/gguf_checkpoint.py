"""A GGUF file as a Checkpoint: config, weights, and the quirks of the format undone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .config import ModelConfig
from .errors import ModelError
from .gguf_file import GgufFile
from .metadata import Metadata
from .registry import FAMILIES
from .weights import Shape


class GgufCheckpoint:
    """Implements Checkpoint. Raises ModelError for an architecture nobody registered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GgufFile(path)
        self.metadata = Metadata(path, self.file.metadata)
        self.shapes: dict[str, Shape] = {
            name: tensor.shape
            for name, tensor in self.file.tensors.items()
            if name != "rope_freqs.weight"
        }
        arch = self.metadata.get("general.architecture", str)
        if arch not in FAMILIES:
            raise ModelError(
                f"{path}: architecture '{arch}' is not supported; choose one of"
                f" {', '.join(sorted(FAMILIES))}"
            )
        self.family = FAMILIES[arch]
        if len(self.shapes.get("token_embd.weight", ())) != 2:
            raise ModelError(f"{path}: tensor 'token_embd.weight' is missing: fetch the file again")
        self.config: ModelConfig = self.family.from_gguf(self.metadata, self.shapes)

    def nbytes(self, name: str) -> int:
        return self.file.tensors[name].nbytes

    def read_into(self, name: str, out: torch.Tensor) -> None:
        self.file.read_into(name, out, self._row_order(name))

    def _row_order(self, name: str) -> np.ndarray | None:
        """llama.cpp stores the two halves of each rotary Q/K head interleaved; we want halves."""
        heads = {"attn_q": self.config.num_qo_heads, "attn_k": self.config.num_kv_heads}
        part = name.split(".")[-2]
        if not self.family.permuted or part not in heads:
            return None
        rows = np.arange(self.shapes[name][0])
        return rows.reshape(heads[part], -1, 2).swapaxes(1, 2).reshape(-1)
