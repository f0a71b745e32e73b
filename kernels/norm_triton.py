"""The residual sum and its RMS norm in one kernel; ``norm`` has the definitions."""

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
    residual_ptr,
    weight_ptr,
    out_ptr,
    sum_ptr,
    x_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < WIDTH
    weight = tl.load(weight_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    x = tl.load(x_ptr + row * x_stride + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
        # What is normed is what later layers will see: the sum as it is stored.
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * WIDTH + at, total, mask=mask)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + eps)
    tl.store(
        out_ptr + row * WIDTH + at, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask
    )


def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See norm.rms_norm."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(x, None, weight, out, out, eps)
    return out


def add_rms_norm_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See norm.add_rms_norm."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    dtype = torch.promote_types(x.dtype, residual.dtype)
    total = torch.empty_like(out, dtype=dtype)
    _launch(x, residual.contiguous(), weight, out, total, eps)
    return out, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    eps: float,
) -> None:
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    num_rows = rows.shape[0]
    if not num_rows:
        return
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    pdl, block = has_dependent_launch(x.device), power_of_two(width)
    launch(
        _kernel,
        (num_rows,),
        rows,
        rows if residual is None else residual,
        weight,
        out,
        total,
        rows.stride(0),
        eps,
        WIDTH=width,
        BLOCK=block,
        HAS_RESIDUAL=residual is not None,
        PDL=pdl,
        num_warps=max(1, min(16, block // 256)),
        launch_pdl=pdl,
    )
