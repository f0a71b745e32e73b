"""GGUF reading: every quant type, and files that are damaged or lie."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pkvchat.models.errors import ModelError
from pkvchat.models.gguf_file import SUPPORTED, GgufFile
from pkvchat.models.reading import Part, PartRunner

ROWS, COLUMNS = 24, 512


def read(parts: Iterable[Part]) -> None:
    runner = PartRunner(torch.device("cpu"))
    runner.submit(parts)
    runner.wait()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, helpers: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    tensors = {"token_embd.weight": np.ones((260, 8), np.float32), "b": np.ones(8, np.float32)}
    helpers.write_gguf(path, "llama", {"block_count": 1, "rope.freq_base": 1e4}, tensors)
    return path


def random_bytes(kind: GGMLQuantizationType) -> np.ndarray:
    """Rows of valid blocks of ``kind``: any bytes, but finite scales."""
    block, size = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    if kind.name in ("F32", "F16", "BF16"):
        values = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        return gguf.quants.quantize(values, kind).view(np.uint8)
    raw = rng.integers(0, 256, (ROWS * COLUMNS // block, size), np.uint8)
    scales = rng.standard_normal((len(raw), 2)).astype(np.float16).view(np.uint8)
    where = slice(-2, None) if kind.name == "Q6_K" else slice(0, 4)
    if kind.name in ("Q8_0", "Q4_0", "Q5_0"):
        where = slice(0, 2)
    raw[:, where] = scales[:, : raw[:, where].shape[1]]
    return raw.reshape(ROWS, -1)


@pytest.mark.parametrize("name", SUPPORTED)
def test_dequantises_as_gguf_py(name: str, tmp_path: Path) -> None:
    kind = GGMLQuantizationType[name]
    raw = random_bytes(kind)
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tensor("pad", np.ones(3, np.float32))
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "t.gguf")
    assert file.tensors["t"].shape == (ROWS, COLUMNS)
    expected = torch.from_numpy(gguf.quants.dequantize(raw, kind).copy())
    out = torch.empty(ROWS, COLUMNS)
    read(file.parts("t", out))
    assert torch.equal(out, expected)
    places = torch.from_numpy(np.random.default_rng(0).permutation(ROWS))
    half = torch.empty(ROWS, COLUMNS, dtype=torch.bfloat16)
    read(file.parts("t", half, places))
    assert torch.equal(half[places], expected.bfloat16())
    blocks = file.blocks("t", places)
    stored = torch.empty(blocks.shape, dtype=torch.uint8)
    read(blocks.parts(stored))
    assert (blocks.type, stored[places].numpy().tobytes()) == (name, raw.tobytes())


def test_metadata(small: Path) -> None:
    reader = gguf.GGUFReader(small)
    file = GgufFile(small)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            assert file.metadata[key] == field.contents(), key
    assert file.metadata["llama.rope.freq_base"] == 1e4


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.9999))
def test_cut_short(small: Path, tmp_path: Path, share: float) -> None:
    whole = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelError, match=r"cut\.gguf: .*; .*fetch it again"):
        GgufFile(cut)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_never_crash(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    at = data.draw(st.integers(0, 2000) | st.integers(0, len(content) - 9))
    content[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with suppress(ModelError):
        tensors = GgufFile(path).tensors.values()
        assert all(t.start + t.nbytes <= len(content) for t in tensors)


def header(tensors: int = 0, pairs: int = 0, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + body


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dims + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (header(version=9), "GGUF version 9"),
        (header(version=1 << 24), "GGUF version"),
        (header(tensors=1 << 60), "cannot fit"),
        (header(pairs=1 << 62), "cannot fit"),
        (header(pairs=1, body=struct.pack("<Q", 1 << 50) + bytes(40)), "needs"),
        (header(pairs=1, body=string("k") + struct.pack("<I", 77) + bytes(40)), "unknown type 77"),
        (
            header(pairs=1, body=string("k") + struct.pack("<IIQ", 9, 8, 1 << 40) + bytes(40)),
            "claims 1099511627776 strings",
        ),
        (
            header(pairs=1, body=string("k") + struct.pack("<IIQ", 9, 4, 1 << 40) + bytes(40)),
            "needs 4398046511104 bytes",
        ),
        (
            header(pairs=1, body=string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(40)),
            "array of unknown type 9",
        ),
        (
            header(
                1,
                1,
                string("general.alignment") + struct.pack("<II", 4, 7) + tensor("t", (4,), 0, 0),
            ),
            "general.alignment is 7",
        ),
        (header(1, body=tensor("t", (4,), 0, 64) + bytes(40)), "ends at byte"),
        (header(1, body=tensor("t", (4,), 0, 5) + bytes(40)), "not aligned"),
        (header(1, body=tensor("t", (4,), 19, 0) + bytes(40)), "quant type IQ1_S"),
        (header(1, body=tensor("t", (4,), 999, 0) + bytes(40)), "quant type 999"),
        (header(1, body=tensor("t", (4,), 8, 0) + bytes(40)), "of type Q8_0 has shape"),
        (header(1, body=tensor("t", (0, 4), 0, 0) + bytes(40)), "has shape"),
        (header(1, body=tensor("t", (1,) * 9, 0, 0)), "9 dimensions"),
        (header(2, body=(tensor("t", (4,), 0, 0)) * 2 + bytes(40)), "appears twice"),
    ],
)
def test_lies(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=says) as caught:
        GgufFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        GgufFile(tmp_path / "none.gguf")
