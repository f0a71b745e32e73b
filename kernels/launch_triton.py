"""What launches depend on, asked of a device once."""

from __future__ import annotations

import functools

import torch


@functools.cache
def has_dependent_launch(device: torch.device) -> bool:
    """Whether a kernel can start while the one in front of it drains (launch_pdl)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


@functools.cache
def has_wgmma(device: torch.device) -> bool:
    """Whether tensor cores take operands by the warp group: only compute capability 9 does."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == 9


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """1 for a device that only interprets kernels."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
