"""Rotary embedding in one kernel; ``rope`` has the definition."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .attention.tile_config import power_of_two
from .launch_triton import has_dependent_launch, launch


@triton.jit
def _kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    row_stride,
    head_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: some heads of one row. HALF: rotary_dim / 2."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)[:, None]
    dim = tl.arange(0, DIM_BLOCK)[None, :]
    mask = (head < HEADS) & (dim < HEAD_DIM)
    source = x_ptr + row * row_stride + head * head_stride
    x = tl.load(source + dim, mask=mask, other=0.0).to(tl.float32)
    rotated = dim < 2 * HALF
    partner = tl.where(dim < HALF, dim + HALF, dim - HALF)
    y = tl.load(source + partner, mask=mask & rotated, other=0.0).to(tl.float32)
    angle = row * HALF + dim % HALF
    cos = tl.load(cos_ptr + angle, mask=rotated, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, mask=rotated, other=0.0).to(tl.float32)
    out = x * cos + tl.where(dim < HALF, -y, y) * sin
    at = out_ptr + (row * HEADS + head) * HEAD_DIM + dim
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=mask)


def apply_rope_triton(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See rope.apply_rope. x's heads may be part of a wider row."""
    num_rows, heads, head_dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    pdl, head_block = has_dependent_launch(x.device), 8
    launch(
        _kernel,
        (num_rows, -(-heads // head_block)),
        x if x.stride(2) == 1 else x.contiguous(),
        cos.contiguous(),
        sin.contiguous(),
        out,
        x.stride(0) if x.stride(2) == 1 else heads * head_dim,
        x.stride(1) if x.stride(2) == 1 else head_dim,
        HEADS=heads,
        HEAD_DIM=head_dim,
        HALF=cos.shape[1],
        HEAD_BLOCK=head_block,
        DIM_BLOCK=power_of_two(head_dim),
        PDL=pdl,
        launch_pdl=pdl,
    )
    return out
