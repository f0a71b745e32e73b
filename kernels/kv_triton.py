"""The write of new tokens' K/V in one kernel; ``kv`` has the definition."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .launch_triton import has_dependent_launch


@triton.jit
def _kernel(
    kv_ptr,
    rows_ptr,
    k_ptr,
    v_ptr,
    k_stride,
    v_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: K and V of one head of one token."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, DIM_BLOCK)
    mask = dim < HEAD_DIM
    k_row = tl.load(rows_ptr + token * (2 * HEADS) + head)
    v_row = tl.load(rows_ptr + token * (2 * HEADS) + HEADS + head)
    k = tl.load(k_ptr + token * k_stride + head * HEAD_DIM + dim, mask=mask)
    v = tl.load(v_ptr + token * v_stride + head * HEAD_DIM + dim, mask=mask)
    tl.store(kv_ptr + k_row * HEAD_DIM + dim, k.to(kv_ptr.dtype.element_ty), mask=mask)
    tl.store(kv_ptr + v_row * HEAD_DIM + dim, v.to(kv_ptr.dtype.element_ty), mask=mask)


def write_kv_triton(
    kv_layer: torch.Tensor, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """See kv.write_kv. k's and v's heads may be part of wider rows."""
    num_tokens, heads, head_dim = k.shape
    if not num_tokens:
        return
    k, v = _heads_together(k), _heads_together(v)
    pdl = has_dependent_launch(k.device)
    _kernel[(num_tokens, heads)](
        kv_layer,
        rows,
        k,
        v,
        k.stride(0),
        v.stride(0),
        HEADS=heads,
        HEAD_DIM=head_dim,
        DIM_BLOCK=triton.next_power_of_2(head_dim),
        PDL=pdl,
        num_warps=1,
        launch_pdl=pdl,
    )


def _heads_together(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
