"""``pkvchat models``, ``pull`` and ``rm``: the models there are to choose from, and those here."""

from __future__ import annotations

import shutil
import sys
import textwrap
from contextlib import closing

import torch

from pkvchat.models.catalogue import CATALOGUE, DEFAULT, FIRST_CONTEXT, SPARE, Entry
from pkvchat.models.library import installed, remove
from pkvchat.models.resolve import resolve, takes_original

from .clean import one_line, visible
from .engine.memory import CPU_SHARE, free_memory, human
from .progress_line import ProgressLine

_COLUMNS = "{:<14} {:>7}  {:<7} {:>9} {:>9}  {:<4} {:>8}  {:<11} {}"


def list_models() -> int:
    """Print the catalogue, with what fits this machine's memory, and what else is downloaded."""
    gpu_memory = _gpu_memory()
    free = gpu_memory or free_memory(torch.device("cpu"))
    here = {model.name: model for model in installed()}
    heads = ("name", "params", "weights", "download", "memory", "fits", "context", "licence", "")
    print(_COLUMNS.format(*heads).rstrip())
    for entry in CATALOGUE.values():
        downloaded = bool(here.keys() & {entry.name, entry.repo, entry.gguf_repo})
        print(_line(entry, free, gpu_memory, downloaded))
    of_catalogue = {name for e in CATALOGUE.values() for name in (e.name, e.repo, e.gguf_repo)}
    for name, model in here.items():
        if name not in of_catalogue:
            print(f"{one_line(name)}: {human(model.nbytes)}, downloaded")
    where = "the GPU's memory" if gpu_memory else "memory"
    legend = (
        f"{human(free)} of {where} is free. memory: for a model and {FIRST_CONTEXT} tokens of chat."
        " context: the tokens that fit. gated: the original weights need an account on the hub that"
        " has accepted their licence; the quantised ones don't."
    )
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
    print(f"\n{textwrap.fill(legend, max(width, 20))}")
    return 0


def _line(entry: Entry, free: int, gpu_memory: int | None, here: bool) -> str:
    """One model, as ``resolve`` would choose its weights."""
    original, on_cpu = takes_original(entry, gpu_memory), gpu_memory is None
    needed = entry.needed(original=original, on_cpu=on_cpu)
    room = free - entry.size(original=original, on_cpu=on_cpu) - SPARE
    context = min(entry.context, int(room * CPU_SHARE if on_cpu else room) // entry.kv_bytes)
    remarks = [
        *(["default"] if entry.name == DEFAULT else []),
        *(["downloaded"] if here else []),
        *([f"gated: {entry.repo}"] if entry.gated else []),
    ]
    return _COLUMNS.format(
        entry.name,
        f"{entry.parameters / 1e3:.2f} B",
        "bf16" if original else entry.quant,
        human(entry.size(original=original)),
        human(needed),
        "yes" if needed <= free else "no",
        context if needed <= free else "-",
        entry.licence,
        ", ".join(remarks),
    ).rstrip()


def pull(name: str) -> int:
    """Download a model, or find that it is here. Raises ModelError."""
    with closing(ProgressLine(sys.stderr)) as progress:
        found = resolve(name, progress, _gpu_memory())
    if found.note:
        print(one_line(found.note))
    print(visible(str(found.path)) if sys.stdout.isatty() else found.path)
    return 0


def rm(name: str) -> int:
    """Delete a downloaded model. Raises ModelError."""
    print(f"{human(remove(name))} freed")
    return 0


def _gpu_memory() -> int | None:
    return free_memory(torch.device("cuda", 0)) if torch.cuda.is_available() else None
