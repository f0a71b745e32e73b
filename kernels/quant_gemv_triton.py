"""Quantised matrix times a few vectors, at the speed of reading the matrix.

A program owns ROWS output rows and walks their units; a thread takes whole units, so that scale and
bias are applied once per unit, to the sums of x * q and of x.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,assignment"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .launch_triton import has_dependent_launch, multiprocessors
from .quant_formats import Planes
from .quant_tiles_triton import field, field_at, group_scales, split_words


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
    low_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    num_x,
    out_features,
    out_stride,
    TYPE: tl.constexpr,
    FIELD: tl.constexpr,
    HIGH: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RAGGED: tl.constexpr,
    NUM_X: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[m, n] = sum_k w[n, k] * x[m, k] (+ bias[n]) for the num_x <= NUM_X vectors.

    RAGGED: out_features is no multiple of ROWS. UNITS: of a row, in one step of the walk.
    """
    SLOTS: tl.constexpr = 32 // FIELD
    HALVES: tl.constexpr = 2 if TYPE == "Q6_K" else 1
    WIDTH_UNITS: tl.constexpr = WIDTH // (4 * SLOTS)
    WHOLE: tl.constexpr = WIDTH_UNITS % UNITS == 0
    if PDL:
        gdc_launch_dependents()
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = (tl.minimum(n, out_features - 1) if RAGGED else n).to(tl.int64)[None, :]
    totals = ()
    for _ in tl.static_range(NUM_X):
        totals += (tl.zeros([UNITS, ROWS], tl.float32),)
    for step in range(0, tl.cdiv(WIDTH_UNITS, UNITS)):
        word = step * (4 * UNITS) + tl.arange(0, 4 * UNITS)[:, None]
        word_ok = (word < 4 * WIDTH_UNITS) | WHOLE  # folds to no mask
        at = row * (4 * WIDTH_UNITS) + word
        low = tl.load(low_ptr + at, mask=word_ok, other=0)
        l0, l1, l2, l3 = split_words(low)
        h0, h1, h2, h3 = l0, l1, l2, l3
        if HIGH > 0:
            high_at = tl.multiple_of(high_ptr + at, (4 * HIGH, 1))
            high = tl.load(high_at, mask=word_ok, other=0).to(tl.int32)
            h0, h1, h2, h3 = split_words(high)
        x_at = x_ptr + word // 4 * (4 * SLOTS) + word % 4
        for half in tl.static_range(HALVES):
            scale, bias = group_scales(
                scales_ptr, supers_ptr, row, step * UNITS, UNITS, half, TYPE, WIDTH
            )
            if PDL:
                gdc_wait()  # x comes from the kernel before, the matrix does not
            products = ()
            x_sums = ()
            for _ in tl.static_range(NUM_X):
                products += (tl.zeros([UNITS, ROWS], tl.float32),)
                x_sums += (tl.zeros([UNITS, 1], tl.float32),)
            for slot in tl.static_range(half * SLOTS // HALVES, (half + 1) * SLOTS // HALVES):
                q0 = field(l0, h0, slot, FIELD, HIGH)
                q1 = field(l1, h1, slot, FIELD, HIGH)
                q2 = field(l2, h2, slot, FIELD, HIGH)
                q3 = field(l3, h3, slot, FIELD, HIGH)
                new_products = ()
                new_sums = ()
                for m in tl.static_range(NUM_X):
                    x_ok = word_ok & (m < num_x) if NUM_X > 1 else word_ok
                    x = tl.load(x_at + m * WIDTH + 4 * slot, mask=x_ok, other=0.0).to(tl.float32)
                    x0, x1, x2, x3 = split_words(x)
                    new_sums += (x_sums[m] + ((x0 + x1) + (x2 + x3)),)
                    x0, x1, x2, x3 = split_words(x * 2.0 ** (100 - field_at(slot, FIELD)))
                    new_products += (products[m] + q0 * x0 + q1 * x1 + q2 * x2 + q3 * x3,)
                products = new_products
                x_sums = new_sums
            new_totals = ()
            for m in tl.static_range(NUM_X):
                # Fields are subnormal: x was raised by 2**(100 - at), its products are too small.
                total = totals[m] + (scale * 2.0**49) * products[m]
                new_totals += (total + bias * x_sums[m],)
            totals = new_totals
    for m in tl.static_range(NUM_X):
        result = tl.sum(totals[m], axis=0)
        if HAS_BIAS:
            result += tl.load(bias_ptr + n, mask=n < out_features, other=0.0).to(tl.float32)
        mask = (n < out_features) & (m < num_x)
        tl.store(out_ptr + m * out_stride + n, result.to(out_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class GemvConfig:
    """rows: output features per program. warps: all side by side along a row, 32 units each."""

    rows: int
    warps: int


def gemv_config(planes: Planes) -> GemvConfig:
    """What was fastest on an H200 at Llama-3-8B's shapes (benchmarks/h200-quantised-matmul.md).

    A matrix of many rows keeps every multiprocessor busy with one warp a program, which needs no
    sums across warps; one of few rows is read by more warps at once.
    """
    sms, units = multiprocessors(planes.low.device), planes.in_features // planes.type.unit
    if planes.rows >= 64 * sms:
        return GemvConfig(rows=8, warps=1)
    wide = planes.type.high_bits > 0  # more registers a row
    warps = 2 if wide and units > 128 else 4
    warps = min(warps, triton.next_power_of_2(triton.cdiv(units, 32)))
    return GemvConfig(rows=4 if wide or planes.rows < 16 * sms else 8, warps=warps)


def gemv(
    planes: Planes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    config: GemvConfig | None = None,
) -> None:
    """x: [N, in_features], contiguous, N small; out: [N, rows], any row stride and float dtype.

    bias: [rows].
    """
    config = config or gemv_config(planes)
    kind, num_x = planes.type, x.shape[0]
    pdl = has_dependent_launch(x.device)
    gemv_kernel[(triton.cdiv(planes.rows, config.rows),)](
        x,
        out,
        x if bias is None else bias,
        *planes.tensors(),
        num_x,
        planes.rows,
        out.stride(0),
        TYPE=kind.name,
        FIELD=kind.field_bits,
        HIGH=kind.high_bits,
        WIDTH=planes.in_features,
        HAS_BIAS=bias is not None,
        RAGGED=planes.rows % config.rows != 0,
        NUM_X=triton.next_power_of_2(num_x),
        ROWS=config.rows,
        UNITS=32 * config.warps,
        PDL=pdl,
        num_warps=config.warps,
        launch_pdl=pdl,
    )
