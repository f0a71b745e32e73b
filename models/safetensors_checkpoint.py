"""A folder of safetensors with its config.json as a Checkpoint."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from gguf import get_tensor_name_map
from safetensors import SafetensorError, safe_open

from .errors import ModelError
from .hf_vocabulary import read_json, read_vocabulary
from .metadata import Metadata
from .registry import by_model_type
from .vocabulary import Vocabulary
from .weights import Shape

# Buffers of old exports, and the parts of a model that sees.
IGNORED = re.compile(r"rotary_emb\.inv_freq$|vision_tower\.|multi_modal_projector\.")
LANGUAGE = re.compile(r"^(model\.)?language_model\.(model\.)?")
EXPERT = re.compile(r"\.experts\.(\d+)\.")
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class SafetensorsCheckpoint:
    """Implements Checkpoint. Tensors are read from the mapped files; nothing is held."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for anything that is missing, damaged or not supported."""
        self.path = folder
        path = folder / "config.json"
        outer = Metadata(path, read_json(path, needed=True))
        # A model that also sees keeps its language part's configuration apart.
        self.metadata = Metadata(path, {**outer.entries, **outer.get("text_config", dict, {})})
        self.family = by_model_type(self.metadata)
        self.config = self.family.from_hf(self.metadata)
        self._sources: dict[str, list[tuple[Any, str]]] = defaultdict(list)
        names = get_tensor_name_map(self.family.arch, self.config.num_layers)
        for path in self._files():
            file = _open(path)
            for name in file.keys():  # noqa: SIM118 (no mapping: has no iterator)
                if IGNORED.search(name) or (
                    name == "lm_head.weight" and self.config.tie_embeddings
                ):
                    continue
                plain = EXPERT.sub(".experts.", LANGUAGE.sub("model.", name))
                known = names.get_name(plain, (".weight", ".bias"))
                if known in self._sources and not EXPERT.search(name):
                    known = None  # two tensors for one place: the second is reported as extra
                self._sources[known or name].append((file, name))
        for sources in self._sources.values():  # experts in order of their number
            sources.sort(key=lambda source: [int(n) for n in EXPERT.findall(source[1])])
        self.shapes = {name: _shape(sources) for name, sources in self._sources.items()}
        self._nbytes = {name: self._stored_bytes(name) for name in self.shapes}

    def _stored_bytes(self, name: str) -> int:
        file, stored = self._sources[name][0]
        kind = file.get_slice(stored).get_dtype()
        if kind not in ITEM_BYTES:
            raise ModelError(
                f"{self.path}: tensor '{stored}' is of type {kind}, which is not supported: get the"
                f" model as {', '.join(ITEM_BYTES)} or as GGUF"
            )
        return math.prod(self.shapes[name]) * ITEM_BYTES[kind]

    def _files(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            weight_map = read_json(index).get("weight_map") or {}
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
        return read_vocabulary(self.path, self.metadata.entries)

    def nbytes(self, name: str) -> int:
        return self._nbytes[name]

    def quantised(self, name: str) -> tuple[str, torch.Tensor] | None:
        return None

    def read_into(self, name: str, out: torch.Tensor) -> None:
        sources = self._sources[name]
        parts = out.unbind() if EXPERT.search(sources[0][1]) else [out]
        for part, (file, stored) in zip(parts, sources, strict=True):
            values = file.get_tensor(stored)
            if self.family.norms_from_one and name.endswith("norm.weight"):
                values = values.float() + 1
            part.copy_(values)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path}: not a whole safetensors file ({error}): fetch it again"
        ) from error


def _shape(sources: list[tuple[Any, str]]) -> Shape:
    """Of one tensor, or of the stack of a layer's experts."""
    file, name = sources[0]
    shape = tuple(file.get_slice(name).get_shape())
    return (len(sources), *shape) if EXPERT.search(name) else shape
