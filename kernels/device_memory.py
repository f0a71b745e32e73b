"""How much of a CUDA device's memory this process may have."""

from __future__ import annotations

import torch


def unreserved_memory(device: torch.device) -> int:
    """Bytes that this process may still take for its allocator, beside what that holds."""
    free, _ = torch.cuda.mem_get_info(device)
    return max(0, min(free, usable_memory(device) - torch.cuda.memory_reserved(device)))


def usable_memory(device: torch.device) -> int:
    """Bytes that this process may allocate, what it has allocated included."""
    total = torch.cuda.get_device_properties(device).total_memory
    with torch.cuda.device(device):  # which may be called "cuda" only
        return int(total * torch.cuda.get_per_process_memory_fraction())
