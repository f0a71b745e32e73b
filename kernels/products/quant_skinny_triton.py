"""Quantised matrix times a few rows of x on tensor cores, at the speed of reading the matrix.

As in quant_gemm_triton, weights reach the tensor cores from the registers they are dequantised in,
with k and rows numbered as mma.sync's operand lies. Here x is loaded as the other operand lies,
too, and the warps of a program share the walk over k, each with sums of its own, so that nothing
passes through shared memory, and no warp waits for another, until the walk has ended.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,assignment"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_triton import gate
from ..launch_triton import has_dependent_launch, launch, multiprocessors
from .gemv_triton import issue_loads, own_rows
from .quant_formats import Planes
from .quant_tiles_triton import load_units, unit_size, weight_pairs


# Alignment: see quant_gemv_triton.
@triton.jit(
    do_not_specialize=["num_x"],
    do_not_specialize_on_alignment=["high_ptr", "scales_ptr", "supers_ptr"],
)
def skinny_kernel(
    x_ptr,
    out_ptr,
    bias_ptr,
    low_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    num_x,
    out_features,
    out_stride,
    TYPE: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RAGGED: tl.constexpr,
    ROWS: tl.constexpr,
    WARPS: tl.constexpr,
    NATIVE: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[m, n] = sum_k w[n, k] * x[m, k] (+ bias[n]) for the num_x <= 8 rows of x.

    ACTIVATION, RAGGED: see gemv_triton. NATIVE: see weight_pairs. In one step of the walk, each
    warp multiplies four units of every row.
    """
    UNIT: tl.constexpr = unit_size(TYPE)
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    LOWER: tl.constexpr = 64 if tl.float16 != DTYPE else 0
    GATED: tl.constexpr = ACTIVATION != ""
    TILE: tl.constexpr = 2 * ROWS if GATED else ROWS
    STEP: tl.constexpr = 4 * WARPS  # units
    WHOLE: tl.constexpr = WIDTH // UNIT % STEP == 0
    # Places: 8 rows for a warp's lanes, the warps, and what is left of the tile for registers.
    place = tl.arange(0, TILE * WARPS)
    unit = (place // 8 % WARPS * 4)[None, :]
    row = own_rows(place // (8 * WARPS) * 8 + place % 8, out_features, ROWS, RAGGED, GATED)
    row = row[None, :]
    planes = (low_ptr, high_ptr, scales_ptr, supers_ptr)
    units = load_units(planes, row, unit, 4, TYPE, WIDTH, WHOLE)
    if PDL:
        gdc_wait()  # x comes from the kernel in front, the matrix does not
    # And of x: a unit for each of 4 lanes, 8 rows for the lanes, the warps.
    place = tl.arange(0, 32 * WARPS)[None, :]
    m = tl.minimum(place // 4 % 8, num_x - 1)
    k = (place // 32 * 4 + place % 4) * UNIT + tl.arange(0, 8)[:, None]
    x_ptr += m * WIDTH + k
    acc = tl.zeros([WARPS, TILE, 8], tl.float32)
    for step in tl.range(0, WIDTH // UNIT, STEP, num_stages=1, loop_unroll_factor=2):
        ahead = load_units(planes, row, unit + step + STEP, 4, TYPE, WIDTH, False)
        issue_loads(step, NATIVE)
        x = _operand(x_ptr + step * UNIT, WIDTH - step * UNIT - k, UNIT, WHOLE)
        x = tl.reshape(x, [2, 2, 2, WARPS, 8, 4, UNIT // 8])
        x = tl.reshape(tl.permute(x, [3, 6, 1, 5, 0, 2, 4]), [WARPS, 4 * UNIT, 8])
        w = weight_pairs(units, unit + step, TYPE, DTYPE, LOWER, NATIVE)
        w = tl.reshape(w, [4, 2, 2, TILE // 8, WARPS, 8, 2, UNIT // 8])
        w = tl.reshape(tl.permute(w, [4, 3, 5, 7, 2, 0, 1, 6]), [WARPS, TILE, 4 * UNIT])
        if not NATIVE:  # the interpreter multiplies no bfloat16
            w, x = w.to(tl.float32), x.to(tl.float32)
        acc = tl.dot(w, x, acc, input_precision="ieee")
        units = ahead
    if PDL:
        # Not before: with the next kernel's programs among these, a layer's products took 4 us
        # longer on an H200.
        gdc_launch_dependents()
    result = tl.sum(acc, axis=0) * 2.0**LOWER
    if HAS_BIAS:
        row = own_rows(tl.arange(0, TILE), out_features, ROWS, RAGGED, GATED)
        result += tl.load(bias_ptr + row).to(tl.float32)[:, None]
    if GATED:
        result = tl.permute(tl.reshape(result, [2, ROWS, 8]), [1, 2, 0])
        gates, ups = tl.split(result)
        result = gate(gates, ups, ACTIVATION)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    m = tl.arange(0, 8)[None, :]
    mask = (n < out_features) & (m < num_x)
    tl.store(out_ptr + m * out_stride + n, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _operand(x_ptr, left, UNIT: tl.constexpr, WHOLE: tl.constexpr):
    """x of a unit in each place, in eights as wide loads bring them: [8, places, ...2].

    left: of a row, from each pointer on.
    """
    x0 = tl.load(x_ptr, mask=(left > 0) | WHOLE, other=0.0)
    x1 = tl.load(x_ptr + 8, mask=(left > 8) | WHOLE, other=0.0)
    if UNIT == 16:
        x = tl.join(x0, x1)
    else:
        x2 = tl.load(x_ptr + 16, mask=(left > 16) | WHOLE, other=0.0)
        x3 = tl.load(x_ptr + 24, mask=(left > 24) | WHOLE, other=0.0)
        x = tl.join(tl.join(x0, x2), tl.join(x1, x3))
    return x


@dataclass(frozen=True)
class SkinnyConfig:
    """rows: of a program's tile, 16 or more. warps: side by side along k. Powers of two."""

    rows: int
    warps: int


SKINNY_LIMIT = 8
"""Rows of x at most."""


def skinny_config(planes: Planes) -> SkinnyConfig:
    """What was fastest on an H200 at Llama-3-8B's shapes (benchmarks/h200-quantised-matmul.md).

    Large tiles of a matrix of many rows, as each tile reads x again; of one of few rows so many
    warps in all that each multiprocessor has 16, while a row has a step for each. Where that leaves
    two small programs to a multiprocessor, each soon done, one of twice the rows.
    """
    sms, kind = multiprocessors(planes.low.device), planes.type
    steps = -(-planes.in_features // (4 * kind.unit))
    if planes.rows >= 64 * sms:  # high bits take registers
        return SkinnyConfig(rows=32 if kind.high_bits else 64, warps=min(2, steps))
    warps = max(1, min(16, steps, 16 * sms // -(-planes.rows // 16)))
    warps = 1 << (warps.bit_length() - 1)
    double = warps == 8 and steps <= 4 * warps and not kind.high_bits
    return SkinnyConfig(rows=32 if double else 16, warps=warps)


def skinny(
    planes: Planes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "",
    config: SkinnyConfig | None = None,
) -> None:
    """x: [N, in_features] of 16 bits, contiguous, N at most SKINNY_LIMIT; out: [N, rows], any row
    stride; bias: [rows]. activation: see gemv_triton.gemv.
    """
    rows, num_x = out.shape[1], x.shape[0]
    config = config or skinny_config(planes)
    tile = config.rows // 2 if activation else config.rows
    pdl = has_dependent_launch(x.device)
    launch(
        skinny_kernel,
        (-(-rows // tile),),
        x,
        out,
        x if bias is None else bias,
        *planes.tensors(),
        num_x,
        rows,
        out.stride(0),
        TYPE=planes.type.name,
        WIDTH=planes.in_features,
        HAS_BIAS=bias is not None,
        ACTIVATION=activation,
        RAGGED=rows % tile != 0,
        ROWS=tile,
        WARPS=config.warps,
        NATIVE=x.is_cuda,
        PDL=pdl,
        num_warps=config.warps,
        launch_pdl=pdl,
    )
