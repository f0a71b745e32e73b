"""A folder of safetensors with its config.json as a Checkpoint."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from gguf import MODEL_ARCH, get_tensor_name_map
from safetensors import SafetensorError, safe_open

from .checkpoint import FLOATS, Shape, stacked
from .errors import ModelError
from .families import by_model_type
from .hf_vocabulary import read_json, read_vocabulary
from .metadata import Metadata
from .reading import Part, StoredTensor
from .vocabulary import Vocabulary

# Buffers of old exports, and the parts of a model that sees.
IGNORED = re.compile(r"rotary_emb\.inv_freq$|vision_tower\.|multi_modal_projector\.")
LANGUAGE = re.compile(r"^(model\.)?language_model\.(model\.)?")
EXPERT = re.compile(r"\.experts\.(\d+)\.")
DTYPES = FLOATS | {"F64": torch.float64}


@dataclass(frozen=True)
class _Source:
    """A tensor by the name that its maker gave it."""

    name: str
    shape: Shape
    stored: StoredTensor


class SafetensorsCheckpoint:
    """Implements Checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for anything that is missing, damaged or not supported."""
        self.path = folder
        path = folder / "config.json"
        outer = Metadata(path, read_json(path, needed=True))
        # A model that also sees keeps its language part's configuration apart.
        self.metadata = Metadata(path, {**outer.entries, **outer.get("text_config", dict, {})})
        self.family = by_model_type(self.metadata)
        self.config = self.family.from_hf(self.metadata)
        self._sources: dict[str, list[_Source]] = defaultdict(list)
        names = get_tensor_name_map(self.family.arch, self.config.num_layers)
        # GGUF has no dense layers between routed ones.
        dense_names = get_tensor_name_map(MODEL_ARCH.LLAMA, self.config.num_layers)
        for source in (source for path in self._files() for source in _read_header(path)):
            name = source.name
            if name == "lm_head.weight" and self.config.tie_embeddings:
                continue
            plain = EXPERT.sub(".experts.", LANGUAGE.sub("model.", name))
            suffixes = (".weight", ".bias")
            known = names.get_name(plain, suffixes) or dense_names.get_name(plain, suffixes)
            if known in self._sources and not EXPERT.search(name):
                known = None  # two tensors for one place: the second is reported as extra
            self._sources[known or name].append(source)
        for sources in self._sources.values():  # experts in order of their number
            sources.sort(key=lambda source: [int(n) for n in EXPERT.findall(source.name)])
        self.shapes = {name: self._shape(sources) for name, sources in self._sources.items()}

    def _shape(self, sources: list[_Source]) -> Shape:
        """Of one tensor, or of the stack of a layer's experts."""
        if not EXPERT.search(sources[0].name):
            return sources[0].shape
        return stacked(self.path, {source.name: source.shape for source in sources})

    def _files(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            weight_map = Metadata(index, read_json(index)).get("weight_map", dict)
            files = sorted({self.path / str(name) for name in weight_map.values()})
        else:
            files = sorted(self.path.glob("*.safetensors"))
        if missing := [path.name for path in files if not path.exists()]:
            raise ModelError(f"{self.path}: {', '.join(missing)} is missing: fetch the model again")
        if not files:
            pickles = [p.name for kind in ("bin", "pt", "pth") for p in self.path.glob(f"*.{kind}")]
            raise ModelError(
                f"{self.path}: only has pickled weights ({pickles[0]}), which can run any code when"
                " loaded and are refused: get the model as safetensors or GGUF"
                if pickles
                else f"{self.path}: has no .safetensors files: fetch the model again"
            )
        return files

    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.path, self.metadata.entries, self.config.vocab_size)

    def nbytes(self, name: str) -> int:
        return math.prod(self.shapes[name]) * self._sources[name][0].stored.dtype.itemsize

    def blocks(self, name: str) -> None:
        return None

    def parts(self, name: str, out: torch.Tensor) -> Iterator[Part]:
        sources = self._sources[name]
        less_one = self.family.norms_from_one and name.endswith("norm.weight")
        places = out.unbind() if EXPERT.search(sources[0].name) else [out]
        for place, source in zip(places, sources, strict=True):
            yield from source.stored.parts(place, add=float(less_one))


def _read_header(path: Path) -> Iterator[_Source]:
    """Every tensor in the file. Raises ModelError."""
    try:
        with safe_open(path, framework="pt"):  # checks that the header fits the file
            pass
        file = path.open("rb")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path}: not a whole safetensors file ({error}): fetch it again"
        ) from error
    (size,) = struct.unpack("<Q", file.read(8))
    for name, entry in json.loads(file.read(size)).items():
        if name == "__metadata__" or IGNORED.search(name):
            continue
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ModelError(
                f"{path}: tensor '{name}' is of type {entry['dtype']}, which is not supported: get"
                f" the model as {', '.join(DTYPES)} or as GGUF"
            )
        stored = StoredTensor(file, 8 + size + entry["data_offsets"][0], dtype)
        yield _Source(name, tuple(entry["shape"]), stored)
