"""The strategies by name. Modules are imported when asked for: some need Triton or FlashInfer."""

from __future__ import annotations

from importlib import import_module

from .batch import AttentionShape
from .strategy import Strategy, StrategyUnavailable

# In the order a tie between them is decided.
STRATEGIES = ("flashinfer", "split", "workqueue", "sdpa")

_CLASSES = {
    "flashinfer": "FlashInfer",
    "split": "Split",
    "workqueue": "Workqueue",
    "sdpa": "Sdpa",
}


def create_strategy(name: str, shape: AttentionShape) -> Strategy:
    """Raises ValueError for an unknown name, StrategyUnavailable where it cannot run."""
    if name not in _CLASSES:
        raise ValueError(f"unknown strategy {name!r}; choose one of {', '.join(STRATEGIES)}")
    try:
        module = import_module(f".{name}", __package__)
    except ImportError as error:
        raise StrategyUnavailable(f"{name} cannot be imported here: {error}") from error
    strategy: Strategy = getattr(module, _CLASSES[name])(shape)
    return strategy


def why_unavailable(name: str, shape: AttentionShape) -> str:
    """ "" if the strategy can run for ``shape``, else the reason."""
    try:
        create_strategy(name, shape)
    except StrategyUnavailable as error:
        return str(error)
    return ""
