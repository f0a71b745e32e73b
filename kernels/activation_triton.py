"""Gated activations in one kernel; ``activation`` has the definitions."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .launch_triton import has_dependent_launch, launch

_BLOCK = 512


@triton.jit
def gate(gates, ups, ACTIVATION: tl.constexpr):
    """activation(gates) * ups in float32; ACTIVATION: "silu" or "gelu_tanh"."""
    # gelu(x) = x * (1 + tanh(y)) / 2 = x * sigmoid(2 y), with y = sqrt(2 / pi) (x + 0.044715 x^3)
    y = gates
    if ACTIVATION == "gelu_tanh":
        y = 1.5957691216057308 * (gates + 0.044715 * gates * gates * gates)
    return gates * tl.sigmoid(y) * ups


@triton.jit
def _kernel(
    gate_up_ptr,
    out_ptr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < WIDTH
    source = gate_up_ptr + row * (2 * WIDTH) + at
    gates = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    ups = tl.load(source + WIDTH, mask=mask, other=0.0).to(tl.float32)
    out = gate(gates, ups, ACTIVATION)
    tl.store(out_ptr + row * WIDTH + at, out.to(out_ptr.dtype.element_ty), mask=mask)


def gated_triton(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """See activation.gated."""
    gate_up = gate_up.contiguous()
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_rows, width)
    pdl = has_dependent_launch(out.device)
    if num_rows:
        launch(
            _kernel,
            (num_rows, -(-width // _BLOCK)),
            gate_up,
            out,
            WIDTH=width,
            BLOCK=_BLOCK,
            ACTIVATION=activation,
            PDL=pdl,
            launch_pdl=pdl,
        )
    return out
