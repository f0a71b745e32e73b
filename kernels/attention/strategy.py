"""The decode-attention interface. Each strategy is one module, named as the policy names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the command line knows this error, and does not wait for torch
    import torch

    from .batch import DecodeBatch, LayerSpec


class StrategyUnavailable(RuntimeError):
    """A strategy cannot run here; the message says why and what to install."""


class Strategy(Protocol):
    """Plan once per step, run once per layer.

    A strategy object belongs to one AttentionShape, given to its constructor, which raises
    StrategyUnavailable where the strategy cannot run.

    capturable: ``run`` may be captured into a CUDA graph for a static batch, and its replays follow
    each later ``plan`` of that batch.
    """

    name: str
    capturable: bool

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """Prepare for ``batch``; ``num_splits`` >= 1 is the policy's choice, a hint to some."""

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        """Exact attention of one layer into ``out``.

        q, out: [B, num_qo_heads, head_dim], contiguous. kv_layer: see ``batch``.
        """
