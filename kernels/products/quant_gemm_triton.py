"""Quantised matrix times several rows: tiles are dequantised in registers and go to tensor cores.

Weights should reach the tensor cores from the registers they are dequantised in. A thread holds the
four words of one unit, and lanes l % 4 four units. Any order of k will do if x has the same, and
any order of rows if the output has; so both are numbered as the matrix instruction's operand lies:
- wgmma: lane l has rows l / 4 and l / 4 + 8 at k = 2 * (l % 4) + {0, 1, 8, 9}; a word's pair of
  neighbours is {0, 1}, two words are {0, 8}.
- mma.sync, as the compiler groups two of it: k = 4 * (l % 4) + {0, 1, 2, 3}.
PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16" and "Matrix fragments for mma.m16n8k16".
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_triton import gate
from ..attention.tile_config import power_of_two
from ..launch_triton import has_dependent_launch, has_wgmma, launch, multiprocessors
from .quant_formats import Planes
from .quant_tiles_triton import load_units, unit_size, weight_pairs


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
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RAGGED: tl.constexpr,
    ROWS: tl.constexpr,
    X_ROWS: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
    WGMMA: tl.constexpr,
    NATIVE: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[part, m, n] = sum over the part's k of x[m, k] * w[n, k] (+ bias[n]).

    Grid: tiles of ROWS output features, tiles of X_ROWS rows of x, parts of ``part_units`` units.
    WGMMA: that the compiler will take; a wrong guess only costs time. NATIVE: see weight_pairs.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    UNIT: tl.constexpr = unit_size(TYPE)
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    LOWER: tl.constexpr = 64 if tl.float16 != DTYPE else 0
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m = tl.program_id(1) * X_ROWS + tl.arange(0, X_ROWS)
    part = tl.program_id(2)
    row = (tl.minimum(n, out_features - 1) if RAGGED else n).to(tl.int64)[None, :]
    planes = (low_ptr, high_ptr, scales_ptr, supers_ptr)
    # Place j of the products' k holds weight ``k`` of four units.
    j = tl.arange(0, 4 * UNIT)
    if WGMMA:
        k = j // 2 % 4 * UNIT + j // 16 * 4 + j // 8 % 2 * 2 + j % 2
    else:
        k = j // 4 % 4 * UNIT + j // 16 * 4 + j % 4
    acc = tl.zeros([ROWS, X_ROWS], tl.float32)
    first = part * part_units
    last = tl.minimum(first + part_units, WIDTH // UNIT)
    for unit in tl.range(first, last, 4, num_stages=STAGES):
        units = load_units(planes, row, unit, 4, TYPE, WIDTH, WIDTH // UNIT % 4 == 0)
        w = weight_pairs(units, unit, TYPE, DTYPE, LOWER, NATIVE)
        w = tl.reshape(w, [4, 2, 2, ROWS // (16 * WARPS), 2, WARPS, 8, 2, UNIT // 8])
        if WGMMA:
            w = tl.permute(w, [8, 1, 2, 0, 7, 3, 5, 4, 6])
            w = tl.trans(tl.reshape(w, [4 * UNIT, ROWS]))
        else:
            w = tl.permute(w, [3, 5, 4, 6, 8, 1, 0, 2, 7])
            w = tl.reshape(w, [ROWS, 4 * UNIT])
        k_of_x = (unit * UNIT + k)[None, :]
        x_ok = (m < num_rows)[:, None] & ((k_of_x < WIDTH) | (WIDTH % (4 * UNIT) == 0))
        x = tl.load(x_ptr + m.to(tl.int64)[:, None] * WIDTH + k_of_x, mask=x_ok, other=0.0)
        if not NATIVE:  # the interpreter multiplies no bfloat16
            w, x = w.to(tl.float32), x.to(tl.float32)
        acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    acc *= 2.0**LOWER
    n = tl.reshape(n, [ROWS // (16 * WARPS), 2, WARPS, 8])
    n = tl.reshape(tl.permute(n, [0, 2, 1, 3]), [ROWS])
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < out_features, other=0.0).to(tl.float32)[:, None]
    at = part * part_stride + m[None, :] * out_stride + n[:, None]
    mask = (m < num_rows)[None, :] & (n < out_features)[:, None]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=mask)


MAX_PARTS = 16


@triton.jit(do_not_specialize=["num_parts"])
def _sum_parts_kernel(
    parts_ptr,
    out_ptr,
    bias_ptr,
    num_parts,
    part_stride,
    row_stride,
    out_features,
    out_stride,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[m, n] = sum over parts, in order, of parts[part, m, n] (+ bias[n]), gated or not."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    m = tl.program_id(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = n < out_features
    at = parts_ptr + m * row_stride + n
    result = _sum_parts(at, bias_ptr + n, mask, num_parts, part_stride, HAS_BIAS)
    if ACTIVATION != "":
        ups = at + out_features
        ups = _sum_parts(ups, bias_ptr + out_features + n, mask, num_parts, part_stride, HAS_BIAS)
        result = gate(result, ups, ACTIVATION)
    tl.store(out_ptr + m * out_stride + n, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sum_parts(at, bias_at, mask, num_parts, part_stride, HAS_BIAS: tl.constexpr):
    total = tl.load(at, mask=mask, other=0.0)
    for part in range(1, num_parts):
        total += tl.load(at + part * part_stride, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_at, mask=mask, other=0.0).to(tl.float32)
    return total


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
    sms = multiprocessors(planes.low.device)
    if num_rows > 32:
        warps = 4 if planes.type.high_bits else 8
        config, programs_per_sm = GemmConfig(rows=128, x_rows=64, warps=warps), 2
    elif num_rows > 8:
        x_rows = max(16, power_of_two(num_rows))
        config, programs_per_sm = GemmConfig(rows=64, x_rows=x_rows), 7
    else:
        config, programs_per_sm = GemmConfig(rows=32, x_rows=8, warps=2), 16
    tiles = -(-planes.rows // config.rows)
    if num_rows <= 8 and tiles > 4 * sms:
        return config
    parts = max(1, programs_per_sm * sms // tiles)
    return replace(config, parts=min(MAX_PARTS, 1 << (parts.bit_length() - 1)))


def gemm(
    planes: Planes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    config: GemmConfig,
    activation: str = "",
) -> None:
    """x: [N, in_features], contiguous; out: [N, rows], any row stride; bias: [rows].

    Partial sums of ``config.parts`` > 1 go through memory and are added in a fixed order, and so
    do sums that are gated. activation: see gemv_triton.gemv.
    """
    kind, (num_rows, width) = planes.type, x.shape
    row_units = width // kind.unit
    part_units = -(-row_units // (4 * config.parts)) * 4
    parts = -(-row_units // part_units)
    split, pdl = parts > 1 or activation != "", has_dependent_launch(x.device)
    target = out
    if split:
        target = x.new_empty(parts, num_rows, planes.rows, dtype=torch.float32)
    grid = (-(-planes.rows // config.rows), -(-num_rows // config.x_rows), parts)
    launch(
        gemm_kernel,
        grid,
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
        WIDTH=width,
        HAS_BIAS=bias is not None and not split,
        RAGGED=planes.rows % config.rows != 0,
        ROWS=config.rows,
        X_ROWS=config.x_rows,
        WARPS=config.warps,
        STAGES=config.stages,
        WGMMA=has_wgmma(x.device) and config.x_rows >= 16 and config.warps % 4 == 0,
        NATIVE=x.is_cuda,
        PDL=pdl,
        num_warps=config.warps,
        launch_pdl=pdl,
    )
    if split:
        launch(
            _sum_parts_kernel,
            (-(-out.shape[1] // 512), num_rows),
            target,
            out,
            x if bias is None else bias,
            parts,
            target.stride(0),
            target.stride(1),
            out.shape[1],
            out.stride(0),
            HAS_BIAS=bias is not None,
            ACTIVATION=activation,
            BLOCK=512,
            PDL=pdl,
            launch_pdl=pdl,
        )
