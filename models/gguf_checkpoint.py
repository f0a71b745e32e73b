"""A GGUF file as a Checkpoint: config, weights, and the quirks of the format undone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .errors import ModelError
from .gguf_file import GgufFile
from .gguf_vocabulary import read_vocabulary
from .metadata import Metadata
from .registry import by_gguf_architecture
from .vocabulary import Vocabulary
from .weights import Shape

# Small tensors that are configuration rather than weights.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class GgufCheckpoint:
    """Implements Checkpoint. Raises ModelError for whatever is damaged or not supported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GgufFile(path)
        self.shapes: dict[str, Shape] = {n: t.shape for n, t in self.file.tensors.items()}
        rope_factors = {
            name: self._values(name) for name in ROPE_FACTORS if self.shapes.pop(name, None)
        }
        self.metadata = Metadata(path, self.file.metadata | rope_factors)
        self.family = by_gguf_architecture(self.metadata)
        if len(self.shapes.get("token_embd.weight", ())) != 2:
            raise ModelError(f"{path}: tensor 'token_embd.weight' is missing: fetch the file again")
        self.config = self.family.from_gguf(self.metadata, self.shapes)

    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.metadata)

    def _values(self, name: str) -> list[float]:
        out = torch.empty(self.file.tensors[name].shape)
        self.file.read_into(name, out)
        values: list[float] = out.flatten().tolist()
        return values

    def nbytes(self, name: str) -> int:
        return self.file.tensors[name].nbytes

    def quantised(self, name: str) -> tuple[str, torch.Tensor]:
        order = self._row_order(name)
        return self.file.tensors[name].type.name, self.file.raw_rows(name, order)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        self.file.read_into(name, out, self._row_order(name))

    def _row_order(self, name: str) -> np.ndarray | None:
        """llama.cpp stores the two halves of each rotary Q/K head interleaved; we want halves."""
        heads = {"attn_q": self.config.num_qo_heads, "attn_k": self.config.num_kv_heads}
        part = name.split(".")[-2]
        if not self.family.permuted or part not in heads:
            return None
        rows = np.arange(self.shapes[name][0]).reshape(heads[part], -1, 2)
        order: np.ndarray = rows.swapaxes(1, 2).reshape(-1)
        return order
