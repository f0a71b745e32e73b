"""Quantised matrix times one vector, at the speed of reading the matrix.

A program owns ROWS output rows and walks their units; a thread takes whole units, so that scale and
bias are applied once per unit, to the sums of x * q and of x.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .quant_formats import Planes
from .quant_tiles_triton import field, group_scales

# Fields are subnormal floats: x is raised by 2**(100 - at), its products are 2**-49 too small.
LOWER = tl.constexpr(2.0**49)


@triton.jit
def lifted_by(SLOT: tl.constexpr, FIELD: tl.constexpr):
    AT: tl.constexpr = FIELD * (SLOT % (16 // FIELD))
    return 2.0 ** (100 - AT)


@triton.jit
def _over_words(x):
    """Sum over the four words of each unit: [4 * U, R] to [U, R]."""
    return tl.sum(tl.reshape(x, [x.shape[0] // 4, 4, x.shape[1]]), axis=1)


# Without the planes' alignment, the compiler divides their loads as it divides the words: one unit
# per thread. With it, it would load more per thread and shuffle through shared memory.
@triton.jit(do_not_specialize_on_alignment=["high_ptr", "scales_ptr", "minima_ptr", "supers_ptr"])
def gemv_kernel(
    x_ptr,
    out_ptr,
    bias_ptr,
    low_ptr,
    high_ptr,
    scales_ptr,
    minima_ptr,
    supers_ptr,
    out_features,
    TYPE: tl.constexpr,
    FIELD: tl.constexpr,
    HIGH: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """out[n] = sum_k w[n, k] * x[k] (+ bias[n]). UNITS: of a row, in one step of the walk."""
    SLOTS: tl.constexpr = 32 // FIELD
    HALVES: tl.constexpr = 2 if TYPE == "Q6_K" else 1
    WIDTH_UNITS: tl.constexpr = WIDTH // (4 * SLOTS)
    WHOLE: tl.constexpr = WIDTH_UNITS % UNITS == 0
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[None, :]
    row = tl.minimum(row, out_features - 1)
    total = tl.zeros([UNITS, ROWS], tl.float32)
    for step in tl.range(0, tl.cdiv(WIDTH_UNITS, UNITS), num_stages=STAGES):
        word = step * (4 * UNITS) + tl.arange(0, 4 * UNITS)[:, None]
        unit = step * UNITS + tl.arange(0, UNITS)[:, None]
        word_ok = (word < 4 * WIDTH_UNITS) | WHOLE  # folds to no mask
        unit_ok = (unit < WIDTH_UNITS) | WHOLE
        at = row * (4 * WIDTH_UNITS) + word
        low = tl.load(low_ptr + at, mask=word_ok, other=0)
        high = low
        if HIGH > 0:
            high_at = tl.multiple_of(high_ptr + at, (4 * HIGH, 1))
            high = tl.load(high_at, mask=word_ok, other=0).to(tl.int32)
        x_at = x_ptr + word // 4 * (4 * SLOTS) + word % 4
        for half in tl.static_range(HALVES):
            products = tl.zeros([4 * UNITS, ROWS], tl.float32)
            x_sum = tl.zeros([4 * UNITS, 1], tl.float32)
            for slot in tl.static_range(half * SLOTS // HALVES, (half + 1) * SLOTS // HALVES):
                x = tl.load(x_at + 4 * slot, mask=word_ok, other=0.0).to(tl.float32)
                x_sum += x
                products += field(low, high, slot, FIELD, HIGH) * (x * lifted_by(slot, FIELD))
            scale, bias = group_scales(
                scales_ptr, minima_ptr, supers_ptr, row, unit, unit_ok, half, TYPE, WIDTH
            )
            total += (scale * LOWER) * _over_words(products) + bias * _over_words(x_sum)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    result = tl.sum(total, axis=0)
    if HAS_BIAS:
        result += tl.load(bias_ptr + n, mask=n < out_features, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, result.to(out_ptr.dtype.element_ty), mask=n < out_features)


@dataclass(frozen=True)
class GemvConfig:
    """rows: output features per program. warps: all side by side along a row, 32 units each."""

    rows: int = 8
    warps: int = 4
    stages: int = 1


def gemv(
    planes: Planes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    config: GemvConfig | None = None,
) -> None:
    """x: [in_features]; out: [rows], contiguous, any float dtype; bias: [rows]."""
    config = config or GemvConfig()
    kind = planes.type
    gemv_kernel[(triton.cdiv(planes.rows, config.rows),)](
        x,
        out,
        x if bias is None else bias,
        *planes.tensors(),
        planes.rows,
        TYPE=kind.name,
        FIELD=kind.field_bits,
        HIGH=kind.high_bits,
        WIDTH=planes.in_features,
        HAS_BIAS=bias is not None,
        ROWS=config.rows,
        UNITS=32 * config.warps,
        STAGES=config.stages,
        num_warps=config.warps,
    )
