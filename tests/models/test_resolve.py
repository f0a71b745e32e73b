"""Which model a name or a path stands for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pkvchat.models.errors import ModelError
from pkvchat.models.resolve import resolve


def silent(stage: str, done: int, total: int) -> None:
    pass


def test_resolve_paths(folder: Path, gguf_with: Callable[..., Path], tmp_path: Path) -> None:
    assert resolve(str(folder), silent).path == folder
    assert resolve(str(folder / "model.safetensors"), silent).path == folder
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ModelError, match=r"neither config.json nor a .gguf file"):
        resolve(str(other), silent)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match=r"pipe: is neither a .gguf file nor a safetensors folder"):
        resolve(str(tmp_path / "pipe"), silent)
    gguf = gguf_with(lambda entries, tensors: None).rename(other / "a.gguf")
    (other / "mmproj-a.gguf").touch()
    assert resolve(str(other), silent).path == gguf
    (other / "b.gguf").touch()
    with pytest.raises(ModelError, match=r"several models.*a.gguf, b.gguf"):
        resolve(str(other), silent)


def test_resolve_names(default_gguf: Path) -> None:
    assert resolve(None, silent).path == default_gguf
    assert resolve(None, silent, gpu_memory=1 << 40).path == default_gguf
    assert resolve("SmolLM2-135M", silent).path == default_gguf
    with pytest.raises(ModelError, match=r"no model 'no-such-model': give a path.*llama-3-8b"):
        resolve("no-such-model", silent)
    for name in ("models/absent.gguf", "absent.safetensors", "a/b/c", "./absent"):
        with pytest.raises(
            ModelError, match=rf"no such file: {name}: give a path[^,]*, owner/name"
        ):
            resolve(name, silent)
