"""The interface between an architecture and the runner."""

from __future__ import annotations

from typing import Protocol

import torch

from pkvchat.kernels.attention.batch import LayerSpec
from pkvchat.kernels.attention.qkv import HeadNorm, Rotation

from .config import ModelConfig


class Attend(Protocol):
    """Norms and rotates Q and K, writes this layer's new K/V into the cache and attends.

    qkv: [N, num_qo_heads + 2 * num_kv_heads, head_dim]; rotation, norm: see kernels' ``qkv``, None
    for a layer without; returns [N, num_qo_heads, head_dim].
    """

    def __call__(
        self,
        layer: int,
        qkv: torch.Tensor,
        rotation: Rotation | None,
        norm: HeadNorm | None,
    ) -> torch.Tensor: ...


class CausalLM(Protocol):
    """A decoder over flat tokens: decode rows first, then prefill chunks, no padding."""

    config: ModelConfig
    layer_specs: list[LayerSpec]
    device: torch.device
    dtype: torch.dtype  # of activations entering attention, and so of the KV cache by default

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """token_ids, positions: [N] int64; logit_rows: [R] int64, the rows to project.

        Returns logits [R, vocab_size] float32.
        """

    def nbytes(self) -> int:
        """Bytes of weights held."""

    def step_nbytes(self) -> int:
        """Bytes of weights that a step for one token reads: all but a table of which it takes a
        row, and of experts those that one token chooses.
        """
