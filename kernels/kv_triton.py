"""The write of new tokens' K/V in one kernel; ``kv`` has the definition."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .batch import QUANT_MAX
from .kv import MIN_MAGNITUDE as _MIN_MAGNITUDE
from .kv import tokens_per_page
from .launch_triton import has_dependent_launch

MIN_MAGNITUDE = tl.constexpr(_MIN_MAGNITUDE)


@triton.jit
def store_row(
    kv_ptr,
    row,
    x,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    QUANT_MAX: tl.constexpr,
):
    """Store one token's K or V of one head. x: [power of 2 >= HEAD_DIM], zeros past HEAD_DIM.

    row: see kv.kv_rows. QUANT_MAX: the largest value of a quantised layer's dtype.
    """
    dim = tl.arange(0, x.shape[0])
    if PAGE_ROWS > PAGE_SIZE:
        # As kv.quantise does, but for the rounding of ties.
        x = x.to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(x), axis=0), MIN_MAGNITUDE) / QUANT_MAX
        x = x / scale
        if kv_ptr.dtype.element_ty == tl.int8:
            x = tl.floor(x + 0.5)
        scales_ptr = kv_ptr.to(tl.pointer_type(tl.float32))
        first = (row // PAGE_ROWS * PAGE_ROWS + PAGE_SIZE) * (HEAD_DIM // 4)
        tl.store(scales_ptr + first + row % PAGE_ROWS, scale)
    x = x.to(kv_ptr.dtype.element_ty)
    tl.store(kv_ptr + row * HEAD_DIM + dim, x, mask=dim < HEAD_DIM)


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
    PAGE_SIZE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    QUANT_MAX: tl.constexpr,
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
    k = tl.load(k_ptr + token * k_stride + head * HEAD_DIM + dim, mask=mask, other=0.0)
    v = tl.load(v_ptr + token * v_stride + head * HEAD_DIM + dim, mask=mask, other=0.0)
    store_row(kv_ptr, k_row, k, HEAD_DIM, PAGE_SIZE, PAGE_ROWS, QUANT_MAX)
    store_row(kv_ptr, v_row, v, HEAD_DIM, PAGE_SIZE, PAGE_ROWS, QUANT_MAX)


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
        PAGE_SIZE=tokens_per_page(kv_layer),
        PAGE_ROWS=kv_layer.shape[3],
        QUANT_MAX=QUANT_MAX.get(kv_layer.dtype, 0.0),
        PDL=pdl,
        num_warps=1,
        launch_pdl=pdl,
    )


def _heads_together(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
