"""The strategies by name. Modules are imported when asked for: some need Triton or FlashInfer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .strategy import Strategy, StrategyUnavailable

if TYPE_CHECKING:  # the command line lists the names, and does not wait for torch
    from .batch import AttentionShape

# In the order in which a tie between them is decided.
STRATEGIES = ("flashinfer", "split", "workqueue", "sdpa")

_ON_CUDA = {
    "flashinfer": ("flashinfer", "FlashInfer"),
    "split": ("split_triton", "SplitTriton"),
    "workqueue": ("workqueue_triton", "WorkqueueTriton"),
    "sdpa": ("sdpa", "Sdpa"),
}
_ON_CPU = {
    "split": ("split", "Split"),
    "workqueue": ("workqueue", "Workqueue"),
    "sdpa": ("sdpa", "Sdpa"),
}


def create_strategy(name: str, shape: AttentionShape) -> Strategy:
    """Raises ValueError for an unknown name, StrategyUnavailable where it cannot run."""
    module, cls = implementation(name, shape.device.type)
    try:
        strategy: Strategy = getattr(import_module(f".{module}", __package__), cls)(shape)
    except ImportError as error:
        raise StrategyUnavailable(
            f"{name} cannot be imported ({error}); install pkvchat[cuda]"
        ) from error
    return strategy


def implementation(name: str, device: str) -> tuple[str, str]:
    """The module and the class for a type of device, "cpu" or "cuda".

    Raises ValueError for an unknown name, StrategyUnavailable where there is none for ``device``.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; choose one of {', '.join(STRATEGIES)}")
    implementations = _ON_CUDA if device == "cuda" else _ON_CPU
    if name not in implementations:
        others = ", ".join(implementations)
        raise StrategyUnavailable(f"{name} needs a CUDA device; {device} has {others}")
    return implementations[name]


def why_unavailable(name: str, shape: AttentionShape) -> str:
    """ "" if the strategy can run for ``shape``, else the reason."""
    try:
        create_strategy(name, shape)
    except StrategyUnavailable as error:
        return str(error)
    return ""
