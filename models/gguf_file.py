"""One GGUF file, mapped: its header read strictly, its tensors dequantised a few rows at a time.

gguf-py supplies the format's constants and the dequantisation; the header is parsed here because
gguf-py trusts it and takes seconds over a vocabulary. Layout: docs/gguf.md of ggml-org/ggml.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.constants import GGUFValueType as Kind

from .checkpoint import FLOATS, Blocks
from .errors import ModelError
from .reading import Part, StoredTensor

SUPPORTED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
CHUNK_ELEMENTS = 1 << 21  # dequantised at once per thread: 8 MiB of float32
DAMAGED = "the file is damaged or not completely downloaded: fetch it again"

_SCALARS = {
    Kind.UINT8: "B",
    Kind.INT8: "b",
    Kind.UINT16: "H",
    Kind.INT16: "h",
    Kind.UINT32: "I",
    Kind.INT32: "i",
    Kind.FLOAT32: "f",
    Kind.BOOL: "?",
    Kind.UINT64: "Q",
    Kind.INT64: "q",
    Kind.FLOAT64: "d",
}


@dataclass(frozen=True)
class GgufTensor:
    """shape: as torch has it, rows first. start: byte offset in the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    start: int
    nbytes: int


class _Cursor:
    """Reads little-endian values from ``data`` and refuses to run past its end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at, self.size = data, path, 0, len(data)

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what}; {DAMAGED}")

    def take(self, nbytes: int, what: str) -> int:
        start = self.at
        if nbytes > self.size - start:
            raise self.fail(
                f"{what} at byte {start} needs {nbytes} bytes, {self.size - start} left"
            )
        self.at = start + nbytes
        return start

    def scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        return struct.unpack_from("<" + code, self.data, self.take(size, what))[0]

    def string(self, what: str) -> str:
        length = self.scalar("Q", what)
        start = self.take(length, what)
        return self.data[start : start + length].decode("utf-8", "replace")

    def value(self, key: str) -> Any:
        kind = self.scalar("I", key)
        if kind == Kind.STRING:
            return self.string(key)
        if kind in _SCALARS:
            return self.scalar(_SCALARS[Kind(kind)], key)
        if kind != Kind.ARRAY:
            raise self.fail(f"key '{key}' has unknown type {kind}")
        item, count = self.scalar("I", key), self.scalar("Q", key)
        if item == Kind.STRING:
            return self.strings(count, key)
        if item not in _SCALARS:
            raise self.fail(f"key '{key}' is an array of unknown type {item}")
        code = _SCALARS[Kind(item)]
        start = self.take(count * struct.calcsize("<" + code), key)
        return np.frombuffer(self.data, np.dtype(code).newbyteorder("<"), count, start).tolist()

    def strings(self, count: int, key: str) -> list[str]:
        """The hot loop of loading: a vocabulary and its merges are 100,000 strings."""
        if count * 8 > self.size - self.at:
            raise self.fail(f"key '{key}' claims {count} strings")
        data, at, size = self.data, self.at, self.size
        unpack, found = struct.Struct("<Q").unpack_from, []
        for _ in range(count):
            if at + 8 > size:
                raise self.fail(f"the strings of key '{key}' pass the end")
            start = at + 8
            at = start + unpack(data, at)[0]
            if at > size:
                raise self.fail(f"the strings of key '{key}' pass the end")
            found.append(data[start:at].decode("utf-8", "replace"))
        self.at = at
        return found


class GgufFile:
    """``metadata``: every key-value pair. ``tensors``: by name. Raises ModelError on bad files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
            if path.stat().st_size < 24:
                raise ModelError(f"{path}: too short to be a GGUF file; {DAMAGED}")
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
        cursor = _Cursor(self._map, path)
        tensor_count, pair_count = self._read_counts(cursor)
        self.metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = cursor.string("a key")
            self.metadata[key] = cursor.value(key)
        self.tensors = self._read_tensors(cursor, tensor_count)

    def _read_counts(self, cursor: _Cursor) -> tuple[int, int]:
        magic = self._map[:4]
        cursor.take(4, "magic")
        if magic != b"GGUF":
            raise ModelError(f"{self.path}: not a GGUF file (it begins with {magic!r})")
        version = cursor.scalar("I", "version")
        if version not in (2, 3):
            raise ModelError(f"{self.path}: GGUF version {version}; versions 2 and 3 are supported")
        tensors, pairs = cursor.scalar("Q", "tensor count"), cursor.scalar("Q", "key count")
        # A tensor takes 32 header bytes at least, a key-value pair 13.
        if tensors * 32 + pairs * 13 > cursor.size:
            raise cursor.fail(f"{tensors} tensors and {pairs} keys cannot fit {cursor.size} bytes")
        return tensors, pairs

    def _read_tensors(self, cursor: _Cursor, count: int) -> dict[str, GgufTensor]:
        headers = []
        for _ in range(count):
            name = cursor.string("a tensor name")
            rank = cursor.scalar("I", name)
            if not 1 <= rank <= 4:
                raise cursor.fail(f"tensor '{name}' has {rank} dimensions")
            shape = tuple(cursor.scalar("Q", name) for _ in range(rank))[::-1]
            headers.append((name, shape, cursor.scalar("I", name), cursor.scalar("Q", name)))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise cursor.fail(f"general.alignment is {alignment}, not a power of two")
        base = -(-cursor.at // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in headers:
            if name in tensors:
                raise cursor.fail(f"tensor '{name}' appears twice")
            if offset % alignment:
                raise cursor.fail(f"tensor '{name}' is not aligned to {alignment} bytes")
            quant = self._quant_type(name, kind)
            nbytes = self._nbytes(cursor, name, shape, quant)
            if base + offset + nbytes > cursor.size:
                raise cursor.fail(
                    f"tensor '{name}' ends at byte {base + offset + nbytes},"
                    f" the file at {cursor.size}"
                )
            tensors[name] = GgufTensor(name, shape, quant, base + offset, nbytes)
        return tensors

    def _quant_type(self, name: str, kind: int) -> GGMLQuantizationType:
        known = {item.value for item in GGMLQuantizationType}
        label = GGMLQuantizationType(kind).name if kind in known else str(kind)
        if label not in SUPPORTED:
            raise ModelError(
                f"{self.path}: tensor '{name}' has quant type {label}, which is not supported;"
                f" use a file with {', '.join(SUPPORTED)}"
            )
        return GGMLQuantizationType(kind)

    def _nbytes(
        self, cursor: _Cursor, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType
    ) -> int:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        elements = 1
        for size in shape:
            elements *= size
        if elements == 0 or shape[-1] % block:
            raise cursor.fail(f"tensor '{name}' of type {kind.name} has shape {list(shape)}")
        return elements // block * block_bytes

    def blocks(self, name: str, places: torch.Tensor | None = None) -> Blocks:
        """The stored blocks of a matrix. places: see ``parts``."""
        tensor = self.tensors[name]
        rows = math.prod(tensor.shape[:-1])
        stored = StoredTensor(self._file, tensor.start, torch.uint8)
        parts = partial(stored.parts, places=places)
        return Blocks(tensor.type.name, (rows, tensor.nbytes // rows), parts)

    def parts(
        self, name: str, out: torch.Tensor, places: torch.Tensor | None = None
    ) -> Iterator[Part]:
        """What dequantises tensor ``name`` into ``out`` (same shape, any float dtype and device).

        places: the row of ``out`` for each stored row; None keeps the order.
        """
        tensor = self.tensors[name]
        if dtype := FLOATS.get(tensor.type.name):
            yield from StoredTensor(self._file, tensor.start, dtype).parts(out, places=places)
            return
        out = out.view(-1, tensor.shape[-1])
        raw = self._raw(tensor).reshape(len(out), -1)
        step = max(1, CHUNK_ELEMENTS // tensor.shape[-1])

        def convert(part: slice, _buffer: torch.Tensor) -> None:
            values = torch.from_numpy(quants.dequantize(raw[part], tensor.type))
            out[part if places is None else places[part].to(out.device)] = values.to(out)

        for start in range(0, len(raw), step):
            yield partial(convert, slice(start, start + step))

    def values(self, name: str) -> list[float]:
        """A small tensor's items."""
        tensor = self.tensors[name]
        items: list[float] = quants.dequantize(self._raw(tensor), tensor.type).flatten().tolist()
        return items

    def _raw(self, tensor: GgufTensor) -> np.ndarray:
        return np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.start)
