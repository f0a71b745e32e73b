"""Quantised matrix times a few vectors, at the speed of reading the matrix.

A program owns ROWS output rows and walks their units; a thread takes whole units, so that scale and
bias are applied once per unit, to the sums of x * q and of x.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,assignment,var-annotated"

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..attention.tile_config import power_of_two
from ..launch_triton import has_dependent_launch, launch, multiprocessors
from .gemv_triton import chosen_matrix, own_rows, store_rows
from .quant_formats import Planes
from .quant_tiles_triton import (
    field,
    field_at,
    field_bits,
    high_bits,
    load_units,
    split_pairs,
    split_words,
    unit_scales,
)


@triton.jit
def _raised(x, BY: tl.constexpr):
    return x[0] * BY, x[1] * BY, x[2] * BY, x[3] * BY


# Without the planes' alignment, the compiler divides their loads as it divides the words: one unit
# per thread. With it, it would load more per thread and shuffle through shared memory.
@triton.jit(
    do_not_specialize=["num_x"],
    do_not_specialize_on_alignment=["high_ptr", "scales_ptr", "supers_ptr"],
)
def gemv_kernel(
    x_ptr,
    out_ptr,
    bias_ptr,
    chosen_ptr,
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
    CHOICES: tl.constexpr,
    NUM_X: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[m, n] = sum_k w[n, k] * x[m, k] (+ bias[n]) for the num_x <= NUM_X vectors.

    ACTIVATION, RAGGED, CHOICES: see gemv_triton. UNITS: of a row, in one step of the walk.
    """
    FIELD: tl.constexpr = field_bits(TYPE)
    HIGH: tl.constexpr = high_bits(TYPE)
    UNIT: tl.constexpr = 128 // FIELD
    PLACES: tl.constexpr = 16 // FIELD
    HALVES: tl.constexpr = 2 if TYPE == "Q6_K" else 1
    WIDTH_UNITS: tl.constexpr = WIDTH // UNIT
    WHOLE: tl.constexpr = WIDTH_UNITS % UNITS == 0
    # The last step goes back over units that were in the one before, rather than past the end:
    # masks on the matrix would take the registers of a quarter of the programs.
    OVERLAP: tl.constexpr = not WHOLE and WIDTH_UNITS > UNITS
    if PDL:
        gdc_launch_dependents()
    GATED: tl.constexpr = ACTIVATION != ""
    row = tl.arange(0, 2 * ROWS if GATED else ROWS)[None, :]
    row = own_rows(row, out_features, ROWS, RAGGED, GATED)
    if CHOICES > 0:
        row += chosen_matrix(chosen_ptr, PDL) * out_features
        x_ptr += tl.program_id(1) // CHOICES * WIDTH
        out_ptr += tl.program_id(1) * out_stride
    planes = (low_ptr, high_ptr, scales_ptr, supers_ptr)
    totals = ()
    for _ in tl.static_range(NUM_X):
        totals += (tl.zeros([UNITS, row.shape[1]], tl.float32),)
    for step in range(0, tl.cdiv(WIDTH_UNITS, UNITS)):
        first = step * UNITS
        if OVERLAP:
            first = tl.minimum(first, WIDTH_UNITS - UNITS)
        units = load_units(planes, row, first, UNITS, TYPE, WIDTH, WHOLE or OVERLAP)
        if PDL:
            gdc_wait()  # x comes from the kernel before, the matrix does not
        l0, l1, l2, l3 = split_words(units[0])
        h0, h1, h2, h3 = split_words(units[1])
        k = first * UNIT + tl.arange(0, 8 * UNITS)[:, None] // 8 * UNIT
        k += tl.arange(0, 8 * UNITS)[:, None] % 8
        k_ok = ((k >= step * (UNITS * UNIT)) & (k < WIDTH)) | WHOLE
        for half in tl.static_range(HALVES):
            scale, bias = unit_scales(units, first, half, TYPE)
            products = ()
            x_sums = ()
            for _ in tl.static_range(NUM_X):
                products += (tl.zeros([UNITS, row.shape[1]], tl.float32),)
                x_sums += (tl.zeros([UNITS, 1], tl.float32),)
            for slot in tl.static_range(half * PLACES // HALVES, (half + 1) * PLACES // HALVES):
                new_products = ()
                new_sums = ()
                for m in tl.static_range(NUM_X):
                    x_ok = k_ok & (m < num_x) if NUM_X > 1 else k_ok
                    x = tl.load(x_ptr + m * WIDTH + k + 8 * slot, mask=x_ok, other=0.0)
                    firsts, seconds = split_pairs(x.to(tl.float32))
                    x0, x1, x2, x3 = firsts
                    x_sum = (x0 + x1) + (x2 + x3)
                    # Fields are subnormal: x is raised by 2**(100 - at).
                    x0, x1, x2, x3 = _raised(firsts, 2.0 ** (100 - field_at(slot, FIELD)))
                    product = products[m]
                    product += field(l0, h0, slot, FIELD, HIGH) * x0
                    product += field(l1, h1, slot, FIELD, HIGH) * x1
                    product += field(l2, h2, slot, FIELD, HIGH) * x2
                    product += field(l3, h3, slot, FIELD, HIGH) * x3
                    x0, x1, x2, x3 = seconds
                    x_sum += (x0 + x1) + (x2 + x3)
                    x0, x1, x2, x3 = _raised(seconds, 2.0 ** (100 - field_at(slot + PLACES, FIELD)))
                    product += field(l0, h0, slot + PLACES, FIELD, HIGH) * x0
                    product += field(l1, h1, slot + PLACES, FIELD, HIGH) * x1
                    product += field(l2, h2, slot + PLACES, FIELD, HIGH) * x2
                    product += field(l3, h3, slot + PLACES, FIELD, HIGH) * x3
                    new_products += (product,)
                    new_sums += (x_sums[m] + x_sum,)
                products = new_products
                x_sums = new_sums
            new_totals = ()
            for m in tl.static_range(NUM_X):
                total = totals[m] + (scale * 2.0**49) * products[m]
                new_totals += (total + bias * x_sums[m],)
            totals = new_totals
    for m in tl.static_range(NUM_X):
        result = tl.sum(totals[m], axis=0)
        if HAS_BIAS:
            result += tl.load(bias_ptr + tl.reshape(row, [row.shape[1]])).to(tl.float32)
        if m < num_x:
            store_rows(out_ptr + m * out_stride, result, out_features, ROWS, ACTIVATION)


@dataclass(frozen=True)
class GemvConfig:
    """rows: output features per program. warps: all side by side along a row, 32 units each."""

    rows: int
    warps: int


def gemv_config(planes: Planes, rows: int) -> GemvConfig:
    """What was fastest on an H200 at Llama-3-8B's shapes (benchmarks/h200-quantised-matmul.md).

    A matrix of many rows keeps every multiprocessor busy with one warp a program, which needs no
    sums across warps; one of few rows is read by more warps at once. rows: of all that are
    multiplied by at once.
    """
    sms, units = multiprocessors(planes.low.device), planes.in_features // planes.type.unit
    wide = planes.type.high_bits > 0  # more registers a row
    if rows >= 64 * sms:
        warps = 1
    elif rows >= 40 * sms or (wide and units > 128):
        warps = 2
    else:
        warps = 4
    warps = min(warps, power_of_two(-(-units // 32)))
    return GemvConfig(rows=4 if wide or rows < 16 * sms else 8, warps=warps)


def gemv(
    planes: Planes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    config: GemvConfig | None = None,
    activation: str = "",
    chosen: torch.Tensor | None = None,
) -> None:
    """x: [N, in_features], contiguous, N small; out: [N, rows], any row stride and float dtype.

    bias: [rows]. activation, chosen: see gemv_triton.gemv; planes of a stack lie above each other.
    """
    num_out, rows = out.shape
    num_x = 1 if chosen is not None else len(x)
    if config is None:
        matrix_rows = rows * (2 if activation else 1)
        config = gemv_config(planes, matrix_rows * num_out // num_x)
    if activation:  # half of a program's rows are gates
        config = replace(config, rows=max(1, config.rows // 2))
    pdl = has_dependent_launch(x.device)
    launch(
        gemv_kernel,
        (-(-rows // config.rows), 1 if chosen is None else num_out),
        x,
        out,
        x if bias is None else bias,
        x if chosen is None else chosen,
        *planes.tensors(),
        num_x,
        rows,
        out.stride(0),
        TYPE=planes.type.name,
        WIDTH=planes.in_features,
        HAS_BIAS=bias is not None,
        ACTIVATION=activation,
        RAGGED=rows % config.rows != 0,
        CHOICES=0 if chosen is None else chosen.shape[1],
        NUM_X=power_of_two(num_x),
        ROWS=config.rows,
        UNITS=32 * config.warps,
        PDL=pdl,
        num_warps=config.warps,
        launch_pdl=pdl,
    )
