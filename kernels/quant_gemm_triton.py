"""Quantised matrix times several rows: tiles are dequantised in registers and go to tensor cores.

Weights should reach the tensor cores from the registers they are dequantised in. In a warp's
operand of the matrix instruction (rows x 16 of k), lane l holds rows l / 4 and l / 4 + 8 at
k = 2 * (l % 4) + {0, 1, 8, 9}. Here lane l holds unit l % 4 of four units, rows l / 4 onwards. Any
order of k will do if x has the same, and any order of rows if the output has: so the four words
of a slot are declared to be that operand's k = {0, 1, 8, 9}, and rows are numbered to match.
PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16".
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .launch_triton import has_dependent_launch, multiprocessors
from .quant_formats import Planes
from .quant_tiles_triton import weight_slots


# Alignment: see quant_gemv_triton. The rest varies from step to step and must not recompile.
@triton.jit(
    do_not_specialize=["num_rows", "part_units"],
    do_not_specialize_on_alignment=["high_ptr", "scales_ptr", "supers_ptr"],
)
def gemm_kernel(
    x_ptr,
    out_ptr,
    bias_ptr,
    low_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    num_rows,
    out_features,
    out_stride,
    part_stride,
    part_units,
    TYPE: tl.constexpr,
    FIELD: tl.constexpr,
    HIGH: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RAGGED: tl.constexpr,
    ROWS: tl.constexpr,
    X_ROWS: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[part, m, n] = sum over the part's k of x[m, k] * w[n, k] (+ bias[n]).

    Grid: tiles of ROWS output features, tiles of X_ROWS rows of x, parts of ``part_units`` units.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    UNIT: tl.constexpr = 128 // FIELD
    SLOTS: tl.constexpr = 32 // FIELD
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    LOWER: tl.constexpr = 64 if tl.float16 != DTYPE else 0
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m = tl.program_id(1) * X_ROWS + tl.arange(0, X_ROWS)
    part = tl.program_id(2)
    row = (tl.minimum(n, out_features - 1) if RAGGED else n).to(tl.int64)[None, :]
    # Place j of the products' k holds weight ``k`` of four units.
    j = tl.arange(0, 4 * UNIT)
    k = j // 2 % 4 * UNIT + j // 16 * 4 + j // 8 % 2 * 2 + j % 2
    acc = tl.zeros([ROWS, X_ROWS], tl.float32)
    first = part * part_units
    last = tl.minimum(first + part_units, WIDTH // UNIT)
    for unit in tl.range(first, last, 4, num_stages=STAGES):
        w = weight_slots(
            low_ptr,
            high_ptr,
            scales_ptr,
            supers_ptr,
            row,
            unit,
            TYPE,
            FIELD,
            HIGH,
            WIDTH,
            4,
            DTYPE,
            LOWER,
        )
        w = tl.reshape(w, [4, 2, 2, ROWS // (16 * WARPS), 2, WARPS, 8, SLOTS])
        w = tl.permute(w, [7, 1, 0, 2, 3, 5, 4, 6])
        w = tl.reshape(w, [4 * UNIT, ROWS])
        k_of_x = (unit * UNIT + k)[None, :]
        x_ok = (m < num_rows)[:, None] & ((k_of_x < WIDTH) | (WIDTH % (4 * UNIT) == 0))
        x = tl.load(x_ptr + m.to(tl.int64)[:, None] * WIDTH + k_of_x, mask=x_ok, other=0.0)
        acc = tl.dot(tl.trans(w), tl.trans(x), acc, input_precision="ieee")
    acc *= 2.0**LOWER
    n = tl.reshape(n, [ROWS // (16 * WARPS), 2, WARPS, 8])
    n = tl.reshape(tl.permute(n, [0, 2, 1, 3]), [ROWS])
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < out_features, other=0.0).to(tl.float32)[:, None]
    at = part * part_stride + m[None, :] * out_stride + n[:, None]
    mask = (m < num_rows)[None, :] & (n < out_features)[:, None]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=mask)


MAX_PARTS = 8


@triton.jit(do_not_specialize=["num_parts"])
def _sum_parts_kernel(
    parts_ptr,
    out_ptr,
    bias_ptr,
    num_parts,
    part_stride,
    out_features,
    out_stride,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[m, n] = sum over parts, in order, of parts[part, m, n] (+ bias[n])."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    m = tl.program_id(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = n < out_features
    at = parts_ptr + m * out_features + n
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(num_parts):
        total += tl.load(at + part * part_stride, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + n, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + m * out_stride + n, total.to(out_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class GemmConfig:
    """rows: output features of a tile, a multiple of 16 * warps. x_rows: rows of x of a tile.

    Both powers of two, x_rows at least 8. parts: programs that share a tile's sum over k.
    """

    rows: int
    x_rows: int
    parts: int = 1
    warps: int = 4
    stages: int = 3


def gemm_config(planes: Planes, num_rows: int) -> GemmConfig:
    """What was fastest on an H200 at Llama-3-8B's shapes (benchmarks/h200-quantised-matmul.md)."""
    if num_rows > 32:
        rows, x_rows, programs_per_sm = 128, 64, 2
    else:
        rows, x_rows, programs_per_sm = 64, max(16, triton.next_power_of_2(num_rows)), 7
        if num_rows <= 8 and planes.type.high_bits:
            x_rows = 8  # leaves more registers
    programs = programs_per_sm * multiprocessors(planes.low.device)
    parts = max(1, programs // triton.cdiv(planes.rows, rows))
    return GemmConfig(rows, x_rows, parts=min(MAX_PARTS, 1 << (parts.bit_length() - 1)))


def gemm(
    planes: Planes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    config: GemmConfig,
) -> None:
    """x: [N, in_features], contiguous; out: [N, rows], any row stride; bias: [rows].

    Partial sums of ``config.parts`` > 1 go through memory and are added in a fixed order.
    """
    kind, (num_rows, width) = planes.type, x.shape
    row_units = width // kind.unit
    part_units = triton.cdiv(row_units, 4 * config.parts) * 4
    parts = triton.cdiv(row_units, part_units)
    split, pdl = parts > 1, has_dependent_launch(x.device)
    target = out
    if split:
        target = x.new_empty(parts, num_rows, planes.rows, dtype=torch.float32)
    grid = (triton.cdiv(planes.rows, config.rows), triton.cdiv(num_rows, config.x_rows), parts)
    gemm_kernel[grid](
        x,
        target,
        x if bias is None else bias,
        *planes.tensors(),
        num_rows,
        planes.rows,
        target.stride(-2),
        target.stride(0) if split else 0,
        part_units,
        TYPE=kind.name,
        FIELD=kind.field_bits,
        HIGH=kind.high_bits,
        WIDTH=width,
        HAS_BIAS=bias is not None and not split,
        RAGGED=planes.rows % config.rows != 0,
        ROWS=config.rows,
        X_ROWS=config.x_rows,
        WARPS=config.warps,
        STAGES=config.stages,
        PDL=pdl,
        num_warps=config.warps,
        launch_pdl=pdl,
    )
    if split:
        _sum_parts_kernel[(triton.cdiv(planes.rows, 512), num_rows)](
            target,
            out,
            x if bias is None else bias,
            parts,
            target.stride(0),
            planes.rows,
            out.stride(0),
            HAS_BIAS=bias is not None,
            BLOCK=512,
            PDL=pdl,
            launch_pdl=pdl,
        )
