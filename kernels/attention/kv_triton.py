"""The write of new tokens' K/V in one kernel; ``kv`` has the definition."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch_triton import has_dependent_launch, launch
from .batch import QUANT_MAX
from .kv import MIN_MAGNITUDE as _MIN_MAGNITUDE
from .kv import tokens_per_page
from .tile_config import power_of_two

MIN_MAGNITUDE = tl.constexpr(_MIN_MAGNITUDE)


def layer_constants(kv_layer: torch.Tensor) -> dict[str, int | float]:
    """The compile-time arguments that store_rows needs of its kernel."""
    return {
        "HEAD_DIM": kv_layer.shape[4],
        "PAGE_SIZE": tokens_per_page(kv_layer),
        "PAGE_ROWS": kv_layer.shape[3],
        "QUANT_MAX": QUANT_MAX.get(kv_layer.dtype, 0.0),
    }


@triton.jit
def store_rows(
    kv_ptr,
    rows,
    x,
    mask,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    QUANT_MAX: tl.constexpr,
):
    """Store K or V of one head of one token in each row of x, as kv.write_kv does.

    x: [R, D], zeros past HEAD_DIM. rows, mask: [R, 1], where to (see kv.kv_rows), and whether.
    """
    dim = tl.arange(0, x.shape[1])[None, :]
    if PAGE_ROWS > PAGE_SIZE:
        x = x.to(tl.float32)
        largest = tl.max(tl.abs(x), axis=1, keep_dims=True)
        scale = tl.maximum(largest, MIN_MAGNITUDE) / QUANT_MAX
        x = x / scale
        if kv_ptr.dtype.element_ty == tl.int8:
            x = tl.floor(x + 0.5)
        scales_ptr = kv_ptr.to(tl.pointer_type(tl.float32))
        first = (rows // PAGE_ROWS * PAGE_ROWS + PAGE_SIZE) * (HEAD_DIM // 4)
        tl.store(scales_ptr + first + rows % PAGE_ROWS, scale, mask=mask)
    x = x.to(kv_ptr.dtype.element_ty)
    tl.store(kv_ptr + rows * HEAD_DIM + dim, x, mask=mask & (dim < HEAD_DIM))


@triton.jit
def _kernel(
    kv_ptr,
    rows_ptr,
    k_ptr,
    v_ptr,
    k_stride,
    v_stride,
    HEADS: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    QUANT_MAX: tl.constexpr,
):
    """One program: K and V of one head of one token."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    one = tl.arange(0, 1)[:, None]
    dim = tl.arange(0, DIM_BLOCK)[None, :]
    mask = dim < HEAD_DIM
    k_row = tl.load(rows_ptr + token * (2 * HEADS) + head + one)
    v_row = tl.load(rows_ptr + token * (2 * HEADS) + HEADS + head + one)
    k = tl.load(k_ptr + token * k_stride + head * HEAD_DIM + dim, mask=mask, other=0.0)
    v = tl.load(v_ptr + token * v_stride + head * HEAD_DIM + dim, mask=mask, other=0.0)
    store_rows(kv_ptr, k_row, k, one == 0, HEAD_DIM, PAGE_SIZE, PAGE_ROWS, QUANT_MAX)
    store_rows(kv_ptr, v_row, v, one == 0, HEAD_DIM, PAGE_SIZE, PAGE_ROWS, QUANT_MAX)


def write_kv_triton(
    kv_layer: torch.Tensor, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """See kv.write_kv. k's and v's heads may be part of wider rows."""
    num_tokens, heads, head_dim = k.shape
    if not num_tokens:
        return
    k, v = _heads_together(k), _heads_together(v)
    pdl = has_dependent_launch(k.device)
    launch(
        _kernel,
        (num_tokens, heads),
        kv_layer,
        rows,
        k,
        v,
        k.stride(0),
        v.stride(0),
        HEADS=heads,
        DIM_BLOCK=power_of_two(head_dim),
        PDL=pdl,
        **layer_constants(kv_layer),
        num_warps=1,
        launch_pdl=pdl,
    )


def _heads_together(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
