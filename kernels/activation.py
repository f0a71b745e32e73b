"""Gated activations of feed-forward blocks (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """``activation(gate) * up``. gate_up: [N, 2F], gate first; returns [N, F].

    activation: "silu" (SwiGLU), or "gelu_tanh" (GeGLU with the tanh form of GELU).
    """
    if gate_up.device.type == "cuda":
        from .activation_triton import gated_triton

        return gated_triton(gate_up, activation)
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up
