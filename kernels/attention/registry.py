"""The strategies by name. Modules are imported when asked for: some need Triton or FlashInfer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
_LIBRARIES = {"flashinfer": "flashinfer", "split": "triton", "workqueue": "triton"}  # on CUDA


def create_strategy(name: str, shape: AttentionShape) -> Strategy:
    """Raises ValueError for an unknown name, StrategyUnavailable where it cannot run."""
    module, cls = _implementation(name, shape.device.type)
    with _import_errors(name):
        strategy: Strategy = getattr(import_module(f".{module}", __package__), cls)(shape)
    return strategy


def check_installed(name: str, device: str) -> None:
    """What can be known before there is a shape. device: its type, "cpu" or "cuda".

    Raises ValueError for an unknown name, StrategyUnavailable where there is none for ``device`` or
    the library that it needs cannot be imported.
    """
    _implementation(name, device)
    if device == "cuda" and name in _LIBRARIES:
        with _import_errors(name):
            import_module(_LIBRARIES[name])


@contextmanager
def _import_errors(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise StrategyUnavailable(
            f"{name} cannot be imported ({error}); install pkvchat[cuda]"
        ) from error


def _implementation(name: str, device: str) -> tuple[str, str]:
    """The module and the class."""
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
