"""How much memory there is, and how many KV pages to make of it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.kv import page_bytes
from pkvchat.kernels.device_memory import unreserved_memory, usable_memory

from ..options import EngineOptions

CUDA_MARGIN = 256 << 20  # bytes left for what allocations waste, and for other programs
GRAPH_PART, GRAPH_BYTES = 25, 1 << 30  # of a device's memory, and bytes, that graphs may take
CPU_SHARE = 0.5  # of the memory that is free
CPU_CONTEXTS = 4  # full contexts a CPU cache has room for at most, unless asked for more


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated on ``device`` now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading a model has left behind
        return unreserved_memory(device)
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def graph_memory(device: torch.device) -> int:
    """Bytes that CUDA graphs may take."""
    return min(usable_memory(device) // GRAPH_PART, GRAPH_BYTES)


def limit_memory(device: torch.device, limit: int) -> None:
    """Have this process allocate no more than ``limit`` bytes of a CUDA device.

    Raises ValueError where there is none, or it is smaller.
    """
    if device.type != "cuda":
        raise ValueError(f"--memory-limit is for a CUDA device, and this is {device}: leave it out")
    total = torch.cuda.get_device_properties(device).total_memory
    if limit > total:
        raise ValueError(
            f"--memory-limit {human(limit)}: the device has {human(total)}; give no more than that"
        )
    with torch.cuda.device(device):  # which may be called "cuda" only
        torch.cuda.set_per_process_memory_fraction(limit / total)


def kv_budget(device: torch.device, kv_memory: int | None, workspace: int = 0) -> int:
    """Bytes that a KV cache may take: what the user said, or a part of what is free.

    workspace: bytes that a step takes.
    """
    free = free_memory(device)
    if device.type == "cuda":
        free = max(free - workspace - graph_memory(device) - CUDA_MARGIN, 0)
    if kv_memory is not None and kv_memory > free:
        raise ValueError(
            f"--kv-memory {human(kv_memory)} is more than the {human(free)} that the "
            "device has left after the model: give no more than that, or leave it out"
        )
    if kv_memory is not None:
        return kv_memory
    return free if device.type == "cuda" else int(free * CPU_SHARE)


def largest_context(
    num_layers: int, shape: AttentionShape, kv_memory: int | None, workspace: int = 0
) -> int:
    """Tokens of the longest context that a KV cache made now could hold."""
    budget = kv_budget(shape.device, kv_memory, workspace)
    return max(budget // page_bytes(num_layers, shape) - 1, 0) * shape.page_size


def size_cache(
    num_layers: int, shape: AttentionShape, limit: int, options: EngineOptions, workspace: int = 0
) -> tuple[int, int, str]:
    """How many pages, the scratch page among them, and the context they allow.

    limit: tokens that the model can take. workspace: bytes that a step takes. Returns (num_pages,
    context, note), the note "" or one line about a context that had to be smaller. Raises
    ValueError where too little is left.
    """
    asked, kv_memory = options.context, options.kv_memory
    per_page = page_bytes(num_layers, shape)
    wanted = asked or limit
    budget = kv_budget(shape.device, kv_memory, workspace)
    if kv_memory is None and shape.device.type == "cpu":
        full = -(-wanted // shape.page_size) * per_page * CPU_CONTEXTS
        budget = min(full + per_page, budget)
    num_pages = budget // per_page
    fits = (num_pages - 1) * shape.page_size
    source = "--kv-memory" if kv_memory is not None else "the free memory"
    room = f"{source} of {human(budget)} holds {max(fits, 0)} tokens of KV"
    if fits < shape.page_size:
        raise ValueError(
            f"{room}; two pages of {shape.page_size}, one of them for scratch, need "
            f"{human(2 * per_page)}"
        )
    if fits >= wanted:
        return num_pages, wanted, ""
    if asked:
        need = (-(-asked // shape.page_size) + 1) * per_page
        more = f", or give --kv-memory {human(need)}" if need <= free_memory(shape.device) else ""
        flag = options.context_flag
        raise ValueError(f"{room}, fewer than the {asked} that {flag} needs: lower {flag}{more}")
    return num_pages, fits, f"{room}: the context is {fits} instead of the model's {limit}"


def human(num_bytes: int) -> str:
    """Bytes as a person writes them, rounded up: "512 KiB", "1.5 GiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            tenths = -(-num_bytes * 10 // size)
            return f"{tenths / 10:.12g} {unit}"
    return f"{num_bytes} bytes"
