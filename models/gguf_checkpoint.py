"""A GGUF file, or all parts of a split one, as a Checkpoint: the quirks of the format undone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from .checkpoint import Blocks, Shape
from .errors import ModelError
from .gguf_file import GgufFile
from .gguf_vocabulary import read_vocabulary
from .metadata import Metadata
from .reading import Part
from .registry import by_gguf_architecture
from .vocabulary import Vocabulary

# Small tensors that are configuration rather than weights.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class GgufCheckpoint:
    """Implements Checkpoint. Raises ModelError for whatever is damaged or not supported."""

    def __init__(self, path: Path) -> None:
        """path: the file, or the first part; the others lie beside it."""
        self.path = path
        parts = _parts(path)
        self._files = {name: file for file in parts for name in file.tensors}
        self.shapes: dict[str, Shape] = {
            name: file.tensors[name].shape for name, file in self._files.items()
        }
        rope_factors = {
            name: self._files[name].values(name)
            for name in ROPE_FACTORS
            if self.shapes.pop(name, None)
        }
        self.metadata = Metadata(path, parts[0].metadata | rope_factors)
        self.family = by_gguf_architecture(self.metadata)
        if len(self.shapes.get("token_embd.weight", ())) != 2:
            raise ModelError(f"{path}: tensor 'token_embd.weight' is missing: fetch the file again")
        self.config = self.family.from_gguf(self.metadata, self.shapes)

    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.metadata)

    def nbytes(self, name: str) -> int:
        return self._files[name].tensors[name].nbytes

    def blocks(self, name: str) -> Blocks:
        return self._files[name].blocks(name, self._places(name))

    def parts(self, name: str, out: torch.Tensor) -> Iterator[Part]:
        return self._files[name].parts(name, out, self._places(name))

    def _places(self, name: str) -> torch.Tensor | None:
        """llama.cpp stores the two halves of each rotary Q/K head interleaved; we want halves."""
        heads = {"attn_q": self.config.num_qo_heads, "attn_k": self.config.num_kv_heads}
        part = name.split(".")[-2]
        if not self.family.permuted or part not in heads:
            return None
        rows = torch.arange(self.shapes[name][0]).view(heads[part], 2, -1)
        return rows.transpose(1, 2).reshape(-1)


def _parts(path: Path) -> list[GgufFile]:
    """The first part says how many there are."""
    first = GgufFile(path)
    count = Metadata(path, first.metadata).get("split.count", int, 1)
    if count <= 1:
        return [first]
    named = re.fullmatch(r"(.*)-00001-of-\d{5}\.gguf", path.name)
    if named is None:
        raise ModelError(f"{path}: is not the first of {count} parts: name that one")
    names = [f"{named[1]}-{i:05}-of-{count:05}.gguf" for i in range(2, count + 1)]
    if missing := [name for name in names if not path.with_name(name).exists()]:
        raise ModelError(
            f"{path}: {len(missing)} of {count} parts are missing, {missing[0]} for one: fetch them"
        )
    return [first, *(GgufFile(path.with_name(name)) for name in names)]
