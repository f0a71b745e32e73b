"""Each row of x times the matrices of the experts chosen for it, read in place.

The choice stays on the device: the grid depends only on how many rows there are, so that a CUDA
graph can hold the launch. A matrix is read once for each row that chose it.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch_triton import launch
from .quant_formats import Planes
from .quant_tiles_triton import field_bits, load_units, weight_pairs
from .tile_config import power_of_two

_ROWS = 4  # of a matrix, per program
_BLOCK = 512  # weights of a row that are loaded at once


@triton.jit
def _expert_rows(chosen_ptr, out_features, ROWS: tl.constexpr):
    """Output features of this program [ROWS], and their rows [1, ROWS] int64 in the stack."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.load(chosen_ptr + tl.program_id(1))
    row = expert * out_features + tl.minimum(n, out_features - 1)
    return n, row.to(tl.int64)[None, :]


@triton.jit
def _store(out_ptr, out_stride, n, result, out_features):
    at = out_ptr + tl.program_id(1).to(tl.int64) * out_stride + n
    tl.store(at, result.to(out_ptr.dtype.element_ty), mask=n < out_features)


@triton.jit
def dense_kernel(
    x_ptr,
    out_ptr,
    chosen_ptr,
    weight_ptr,
    out_features,
    out_stride,
    PER_X: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[p] = weight[chosen[p]] @ x[p // PER_X] for every pair p = program_id(1)."""
    n, row = _expert_rows(chosen_ptr, out_features, ROWS)
    x_ptr += tl.program_id(1) // PER_X * WIDTH
    k = tl.arange(0, BLOCK)[:, None]
    total = tl.zeros([BLOCK, ROWS], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        mask = k < WIDTH - start
        w = tl.load(weight_ptr + row * WIDTH + start + k, mask=mask, other=0.0)
        x = tl.load(x_ptr + start + k, mask=mask, other=0.0)
        total += w.to(tl.float32) * x.to(tl.float32)
    _store(out_ptr, out_stride, n, tl.sum(total, axis=0), out_features)


@triton.jit
def quantised_kernel(
    x_ptr,
    out_ptr,
    chosen_ptr,
    low_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    out_features,
    out_stride,
    TYPE: tl.constexpr,
    PER_X: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
):
    """``dense_kernel`` over planes; see quant_formats."""
    FIELD: tl.constexpr = field_bits(TYPE)
    UNIT: tl.constexpr = 128 // FIELD
    WHOLE: tl.constexpr = WIDTH // UNIT % UNITS == 0
    planes = (low_ptr, high_ptr, scales_ptr, supers_ptr)
    n, row = _expert_rows(chosen_ptr, out_features, ROWS)
    x_ptr += tl.program_id(1) // PER_X * WIDTH
    word = tl.arange(0, 4 * UNITS)[:, None, None]
    field = tl.arange(0, 32 // FIELD)[None, None, :]
    k = word // 4 * UNIT + field % (16 // FIELD) * 8 + word % 4 * 2 + field // (16 // FIELD)
    total = tl.zeros([4 * UNITS, ROWS], tl.float32)
    for unit in range(0, WIDTH // UNIT, UNITS):
        units = load_units(planes, row, unit, UNITS, TYPE, WIDTH, WHOLE)
        w = weight_pairs(units, unit, TYPE, tl.float32, 64, False)
        w = tl.reshape(w, [4 * UNITS, ROWS, 32 // FIELD])
        x = tl.load(x_ptr + unit * UNIT + k, mask=k < WIDTH - unit * UNIT, other=0.0)
        total += tl.sum(w * x.to(tl.float32), axis=2)
    _store(out_ptr, out_stride, n, tl.sum(total, axis=0) * 2.0**64, out_features)


def routed_dense(
    weight: torch.Tensor, x: torch.Tensor, chosen: torch.Tensor, out: torch.Tensor
) -> None:
    """weight: [experts, rows, width], contiguous; x: [N, width], contiguous; chosen: [N, k] int64,
    contiguous; out: [N * k, rows], any row stride.
    """
    _, rows, width = weight.shape
    launch(
        dense_kernel,
        (-(-rows // _ROWS), chosen.numel()),
        x,
        out,
        chosen,
        weight,
        rows,
        out.stride(0),
        PER_X=chosen.shape[1],
        WIDTH=width,
        ROWS=_ROWS,
        BLOCK=min(_BLOCK, power_of_two(width)),
    )


def routed_quantised(
    planes: Planes, x: torch.Tensor, chosen: torch.Tensor, out: torch.Tensor
) -> None:
    """planes: of all experts, one above the other. The rest: see ``routed_dense``."""
    kind, rows = planes.type, out.shape[1]
    units = power_of_two(planes.in_features // kind.unit)
    launch(
        quantised_kernel,
        (-(-rows // _ROWS), chosen.numel()),
        x,
        out,
        chosen,
        *planes.tensors(),
        rows,
        out.stride(0),
        TYPE=kind.name,
        PER_X=chosen.shape[1],
        WIDTH=planes.in_features,
        ROWS=_ROWS,
        UNITS=min(_BLOCK // kind.unit, units),
    )
