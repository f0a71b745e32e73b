"""Norms, rotation and the write of K and V in one kernel; ``qkv`` has the definitions."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch_triton import has_dependent_launch, launch
from .kv_triton import layer_constants, store_rows
from .tile_config import power_of_two

if TYPE_CHECKING:
    from .qkv import HeadNorm, Rotation

_HEADS = 8  # per program


@triton.jit
def _kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_ptr,
    kv_ptr,
    rows_ptr,
    row_stride,
    eps,
    QO_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    QUANT_MAX: tl.constexpr,
):
    """One program: some heads of one token. HALF: rotary_dim / 2, 0 without rotation."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)[:, None]
    dim = tl.arange(0, DIM_BLOCK)[None, :]
    mask = (head < QO_HEADS + 2 * KV_HEADS) & (dim < HEAD_DIM)
    is_qk = head < QO_HEADS + KV_HEADS
    source = qkv_ptr + token * row_stride + head * HEAD_DIM
    x = tl.load(source + dim, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        inverse = tl.rsqrt(tl.sum(x * x, axis=1)[:, None] / HEAD_DIM + eps)
        weights = tl.where(head < QO_HEADS, q_norm_ptr, k_norm_ptr)
        weight = tl.load(weights + dim, mask=mask & is_qk, other=0.0).to(tl.float32)
        x = tl.where(is_qk, x * inverse * weight, x)
    if HALF > 0:
        rotated = is_qk & (dim < 2 * HALF)
        partner = tl.where(dim < HALF, dim + HALF, dim - HALF)
        y = tl.load(source + partner, mask=mask & rotated, other=0.0).to(tl.float32)
        if HAS_NORM:
            weight = tl.load(weights + partner, mask=mask & rotated, other=0.0)
            y *= inverse * weight.to(tl.float32)
        angle = token * HALF + dim % HALF
        cos = tl.load(cos_ptr + angle, mask=rotated, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=rotated, other=0.0).to(tl.float32)
        x = x * cos + tl.where(dim < HALF, -y, y) * sin
    at = q_ptr + (token * QO_HEADS + head) * HEAD_DIM + dim
    tl.store(at, x.to(q_ptr.dtype.element_ty), mask=mask & (head < QO_HEADS))
    is_kv = (head >= QO_HEADS) & (head < QO_HEADS + 2 * KV_HEADS)
    slot = token * (2 * KV_HEADS) + head - QO_HEADS
    row = tl.load(rows_ptr + slot, mask=is_kv, other=0)
    store_rows(kv_ptr, row, x, is_kv, HEAD_DIM, PAGE_SIZE, PAGE_ROWS, QUANT_MAX)


def store_qkv_triton(
    qkv: torch.Tensor,
    rotation: Rotation | None,
    norm: HeadNorm | None,
    kv_layer: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """See qkv.store_qkv."""
    num_tokens, num_heads, head_dim = qkv.shape
    num_kv_heads = kv_layer.shape[2]
    q = qkv.new_empty(num_tokens, num_heads - 2 * num_kv_heads, head_dim)
    if not num_tokens:
        return q
    qkv = qkv if qkv.stride()[1:] == (head_dim, 1) else qkv.contiguous()
    cos, sin = (rows, rows) if rotation is None else (part.contiguous() for part in rotation)
    pdl = has_dependent_launch(qkv.device)
    launch(
        _kernel,
        (num_tokens, -(-num_heads // _HEADS)),
        qkv,
        cos,
        sin,
        qkv if norm is None else norm.q,
        qkv if norm is None else norm.k,
        q,
        kv_layer,
        rows,
        qkv.stride(0),
        0.0 if norm is None else norm.eps,
        QO_HEADS=q.shape[1],
        KV_HEADS=num_kv_heads,
        HALF=0 if rotation is None else cos.shape[1],
        HAS_NORM=norm is not None,
        HEAD_BLOCK=_HEADS,
        DIM_BLOCK=power_of_two(head_dim),
        PDL=pdl,
        **layer_constants(kv_layer),
        launch_pdl=pdl,
    )
    return q
