"""What a benchmark's figures are of: the device, and the versions of what ran on it."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .counted import counted


def device_name(device: torch.device) -> str:
    """The GPU's or the CPU's name as it calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def device_and_threads(device: torch.device) -> str:
    """``device_name``; of a CPU, on how many threads torch computes there, too."""
    if device.type == "cuda":
        return device_name(device)
    return f"{device_name(device)}, {counted(torch.get_num_threads(), 'thread')}"


def versions() -> dict[str, str]:
    """Of the packages that speed depends on, those that are installed."""
    found = {}
    for name in ("pkvchat", "torch", "triton", "flashinfer-python"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
