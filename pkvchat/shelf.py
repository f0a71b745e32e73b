"""``pkvchat models``, ``pull`` and ``rm``: the models there are to choose from, and those here."""

from __future__ import annotations

import sys

import torch

from pkvchat.models.catalogue import CATALOGUE, DEFAULT, Entry
from pkvchat.models.library import installed, remove
from pkvchat.models.resolve import resolve

from .memory import free_memory, human
from .progress import ProgressLine

_COLUMNS = "{:<14} {:>7} {:>10} {:>9}  {:<5} {:<11} {}"


def list_models() -> int:
    """Print the catalogue, with what fits this machine's memory, and what else is downloaded."""
    gpu_memory = _gpu_memory()
    free = gpu_memory or free_memory(torch.device("cpu"))
    here = {model.name: model for model in installed()}
    print(_COLUMNS.format("name", "params", "download", "memory", "fits", "licence", "").rstrip())
    for entry in CATALOGUE.values():
        downloaded = bool(here.keys() & {entry.name, entry.repo, entry.gguf_repo})
        needed = entry.needed(original=False, on_cpu=gpu_memory is None)
        print(_line(entry, needed, free, downloaded))
    of_catalogue = {name for e in CATALOGUE.values() for name in (e.name, e.repo, e.gguf_repo)}
    for name, model in here.items():
        if name not in of_catalogue:
            print(f"{name}: {human(model.nbytes)}, downloaded")
    where = "the GPU" if gpu_memory else "memory"
    print(
        f"\n{human(free)} of {where} is free. Sizes are of the quantised files, which need no "
        "account; gated is what the original weights are: accept their licence on the hub."
    )
    return 0


def _line(entry: Entry, needed: int, free: int, here: bool) -> str:
    remarks = [
        *(["default"] if entry.name == DEFAULT else []),
        *(["downloaded"] if here else []),
        *([f"gated: {entry.repo}"] if entry.gated else []),
    ]
    return _COLUMNS.format(
        entry.name,
        f"{entry.parameters / 1e3:.2f} B",
        human(entry.size(original=False)),
        human(needed),
        "yes" if needed <= free else "no",
        entry.licence,
        ", ".join(remarks),
    ).rstrip()


def pull(name: str) -> int:
    """Download a model, or find that it is here. Raises ModelError."""
    progress = ProgressLine(sys.stderr)
    try:
        found = resolve(name, progress, _gpu_memory())
    finally:
        progress.close()
    if found.note:
        print(found.note)
    print(found.path)
    return 0


def rm(name: str) -> int:
    """Delete a downloaded model. Raises ModelError."""
    print(f"{human(remove(name))} freed")
    return 0


def _gpu_memory() -> int | None:
    return free_memory(torch.device("cuda")) if torch.cuda.is_available() else None
