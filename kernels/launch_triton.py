"""Launches of Triton kernels: a short way to what is compiled, and what they ask of a device.

Triton's own dispatcher looks at every argument and option of each launch, at the environment and at
hooks, which takes several times as long as the launch itself. A kernel here is bound to what stays
the same, and asks of the rest only what it may have been compiled for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import JITFunction, driver

# What Triton's launchers take, as JITFunction.run calls them; some name the first ones only.
_FIRST = ["gridX", "gridY", "gridZ", "stream", "function"]
_MORE = ["kernel_metadata", "launch_metadata", "launch_enter_hook", "launch_exit_hook"]


class BoundKernel:
    """A Triton kernel with some of its parameters bound; called with a grid and with the others.

    Where it has been compiled for such arguments before, it is launched directly: on the current
    device and stream, as by Triton. Launches that hooks watch, and those that this Triton or this
    device makes in another way, are left to Triton. What changes in Triton's environment is not
    seen once a kernel is compiled.
    """

    def __init__(self, kernel: Any, **bound: Any) -> None:
        """kernel: decorated with triton.jit. bound: parameters, of which tensors stay where they
        are, and options such as num_warps."""
        self._kernel, self._bound = kernel, bound
        self._compiles = isinstance(kernel, JITFunction)  # and is not interpreted
        self._free = [name for name in kernel.arg_names if name not in bound]
        given = [name for name in kernel.arg_names if name in bound]
        self._given = tuple(_address(bound[name]) for name in given)
        self._in_order = itemgetter(*map([*self._free, *given].index, kernel.arg_names))
        self._launchers: dict[tuple[object, ...], tuple[Any, ...] | None] = {}

    def __call__(self, grid: tuple[int, ...], *args: Any) -> None:
        """grid: one to three sizes. args: in the kernel's order. Raises TypeError for one that is
        no tensor, int, float, bool, None or tuple of these."""
        if not self._compiles:
            self._leave_to_triton(grid, args)
            return
        active = driver.active
        device = active.get_current_device()
        key = device, *specialisation(args)
        launcher = self._launchers.get(key)
        if launcher is None or _watched() or self._kernel.pre_run_hooks:
            compiled = self._leave_to_triton(grid, args)
            if key not in self._launchers:
                self._launchers[key] = _launcher(compiled)
            return
        run, function, metadata = launcher
        x, y, z = (*grid, 1, 1)[:3]
        stream = active.get_current_stream(device)
        everything = self._in_order((*args, *self._given))
        run(x, y, z, stream, function, metadata, None, None, None, *everything)

    def _leave_to_triton(self, grid: tuple[int, ...], args: tuple[Any, ...]) -> Any:
        free = dict(zip(self._free, args, strict=True))
        return self._kernel[grid](**free, **self._bound)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **static: Any) -> None:
    """``kernel[grid](*args, **static)``; static: compile-time parameters and options."""
    _bind(kernel, **static)(grid, *args)


_bind = functools.lru_cache(maxsize=None, typed=True)(BoundKernel)


def specialisation(args: Iterable[object]) -> tuple[object, ...]:
    """Of arguments, what Triton may compile a kernel for: no less than Triton itself asks."""
    key: list[object] = []
    for x in args:
        if isinstance(x, Tensor):
            key += x.dtype, x.data_ptr() % 16
        elif type(x) is int:
            narrow = -0x80000000 <= x < 0x80000000
            key.append("i32" if narrow else "i64" if x < 1 << 63 else "u64")
            key.append(-1 if x == 1 else x % 16 == 0)
        elif x is None or isinstance(x, (bool, float)):
            key.append(type(x))
        elif isinstance(x, tuple):
            key.append(specialisation(x))
        else:
            raise TypeError(f"{x!r}: a kernel takes tensors, numbers, None and tuples of these")
    return tuple(key)


def _address(x: Any) -> Any:
    """What a kernel gets of a bound argument: the addresses of tensors, found once."""
    if isinstance(x, tuple):
        return tuple(map(_address, x))
    return x.data_ptr() if isinstance(x, Tensor) else x


def _launcher(compiled: Any) -> tuple[Any, ...] | None:
    """What launches a compiled kernel, and what it takes; None where it isn't as known here."""
    try:
        takes = list(inspect.signature(compiled.run).parameters)
        known = takes in ([*_FIRST, "args"], [*_FIRST, *_MORE, "args"])
        if known and compiled.metadata.target.backend == "cuda":  # others specialise by more
            return compiled.run, compiled.function, compiled.packed_metadata
    except AttributeError:
        pass
    return None


def _watched() -> bool:
    """Whether somebody, such as a profiler, has hooks on launches."""
    first, last = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(first, "calls", first) or getattr(last, "calls", last))


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
