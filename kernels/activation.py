"""Gated activations of feed-forward blocks (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SwiGLU: ``silu(gate) * up``. gate_up: [N, 2F], gate first; returns [N, F]."""
    if gate_up.device.type == "cuda":
        from .activation_triton import gated_triton

        return gated_triton(gate_up, gelu=False)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """GeGLU with the tanh form of GELU. gate_up: [N, 2F], gate first; returns [N, F]."""
    if gate_up.device.type == "cuda":
        from .activation_triton import gated_triton

        return gated_triton(gate_up, gelu=True)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
