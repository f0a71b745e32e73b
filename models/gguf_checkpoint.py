"""A GGUF file, or all parts of a split one, as a Checkpoint: the quirks of the format undone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from .checkpoint import Blocks, Shape, stacked
from .errors import ModelError
from .families import by_gguf_architecture
from .gguf_file import GgufFile, GgufTensor
from .gguf_vocabulary import read_vocabulary
from .metadata import Metadata
from .reading import Part
from .vocabulary import Vocabulary

# One of a layer's experts, in files from before they were stacked.
EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d{1,5})\.weight")
# Small tensors that are configuration rather than weights.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class _Source(NamedTuple):
    """A tensor by its name in a file."""

    name: str
    file: GgufFile

    @property
    def tensor(self) -> GgufTensor:
        return self.file.tensors[self.name]


class GgufCheckpoint:
    """Implements Checkpoint. Raises ModelError for whatever is damaged or not supported."""

    def __init__(self, path: Path) -> None:
        """path: the file, or the first part; the others lie beside it."""
        self.path = path
        parts = _parts(path)
        files = {name: file for file in parts for name in file.tensors}
        rope_factors = {n: files.pop(n).values(n) for n in ROPE_FACTORS if n in files}
        self._sources: dict[str, list[_Source]] = defaultdict(list)
        for name in sorted(files, key=_expert):
            stack = EXPERT.sub(r"\1_exps.weight", name)
            self._sources[name if stack in files else stack].append(_Source(name, files[name]))
        self.shapes = {name: self._shape(sources) for name, sources in self._sources.items()}
        self.metadata = Metadata(path, parts[0].metadata | rope_factors)
        self.family = by_gguf_architecture(self.metadata)
        if len(self.shapes.get("token_embd.weight", ())) != 2:
            raise ModelError(f"{path}: tensor 'token_embd.weight' is missing: fetch the file again")
        self.config = self.family.from_gguf(self.metadata, self.shapes)

    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.metadata)

    def nbytes(self, name: str) -> int:
        return sum(source.tensor.nbytes for source in self._sources[name])

    def blocks(self, name: str) -> Blocks | None:
        """None for experts of several types, too."""
        each = [file.blocks(stored, self._places(name)) for stored, file in self._sources[name]]
        kind, (rows, row_bytes) = each[0].type, each[0].shape

        def parts(out: torch.Tensor) -> Iterator[Part]:
            for blocks, place in zip(each, out.split(rows), strict=True):
                yield from blocks.parts(place)

        if any(blocks.type != kind for blocks in each):
            return None
        return Blocks(kind, (len(each) * rows, row_bytes), parts)

    def parts(self, name: str, out: torch.Tensor) -> Iterator[Part]:
        sources = self._sources[name]
        places = out.unbind() if EXPERT.fullmatch(sources[0].name) else [out]
        for (stored, file), place in zip(sources, places, strict=True):
            yield from file.parts(stored, place, self._places(name))

    def _shape(self, sources: list[_Source]) -> Shape:
        """Of one tensor, or of the stack of a layer's experts."""
        if not EXPERT.fullmatch(sources[0].name):
            return sources[0].tensor.shape
        return stacked(self.path, {source.name: source.tensor.shape for source in sources})

    def _places(self, name: str) -> torch.Tensor | None:
        """llama.cpp stores the two halves of each rotary Q/K head interleaved; we want halves."""
        heads = {"attn_q": self.config.num_qo_heads, "attn_k": self.config.num_kv_heads}
        part = name.split(".")[-2]
        if not self.family.permuted or part not in heads:
            return None
        rows = torch.arange(self.shapes[name][0]).view(heads[part], 2, -1)
        return rows.transpose(1, 2).reshape(-1)


def _expert(name: str) -> int:
    """Its number, where ``name`` is of an expert."""
    found = EXPERT.fullmatch(name)
    return int(found[2]) if found else 0


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
