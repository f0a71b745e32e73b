"""Rows of a quantised matrix as 16-bit or float32 numbers, for large products and embeddings."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..launch_triton import launch
from .quant_formats import Planes
from .quant_tiles_triton import load_units, unit_size, weight_pairs

_UNITS = 16  # of a row, per program


@triton.jit(
    do_not_specialize=["first_row", "num_rows"],
    do_not_specialize_on_alignment=["high_ptr", "scales_ptr", "supers_ptr"],
)
def dequantise_kernel(
    out_ptr,
    ids_ptr,
    low_ptr,
    high_ptr,
    scales_ptr,
    supers_ptr,
    first_row,
    num_rows,
    TYPE: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_IDS: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
):
    """out[i] = row ids[i] of the matrix, or row first_row + i."""
    UNIT: tl.constexpr = unit_size(TYPE)
    WHOLE: tl.constexpr = WIDTH // UNIT % UNITS == 0
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]
    if HAS_IDS:
        row = tl.load(ids_ptr + i, mask=i < num_rows, other=0)
    else:
        row = first_row + tl.minimum(i, num_rows - 1)
    planes = (low_ptr, high_ptr, scales_ptr, supers_ptr)
    first = tl.program_id(1) * UNITS
    units = load_units(planes, row.to(tl.int64), first, UNITS, TYPE, WIDTH, WHOLE)
    w = weight_pairs(units, first, TYPE, out_ptr.dtype.element_ty, 0, False)
    w = tl.reshape(w, [UNITS, 4, ROWS, 2, UNIT // 8])
    w = tl.reshape(tl.permute(w, [0, 4, 1, 3, 2]), [UNITS * UNIT, ROWS])
    k = first * UNIT + tl.arange(0, UNITS * UNIT)[:, None]
    tl.store(out_ptr + i.to(tl.int64) * WIDTH + k, w, mask=(i < num_rows) & (k < WIDTH))


def dequantise_rows(planes: Planes, first: int, out: torch.Tensor) -> None:
    """Rows ``first`` onwards into out: [n, in_features], contiguous, any float dtype."""
    _launch(planes, out, None, first)


def lookup_rows(planes: Planes, ids: torch.Tensor, out: torch.Tensor) -> None:
    """Rows ``ids`` [n] int64 into out: [n, in_features] of any float dtype; both contiguous."""
    _launch(planes, out, ids, 0)


def _launch(planes: Planes, out: torch.Tensor, ids: torch.Tensor | None, first: int) -> None:
    num_rows = out.shape[0]
    rows = 16 if num_rows >= 16 else 1
    grid = (-(-num_rows // rows), -(-planes.low.shape[1] // (4 * _UNITS)))
    launch(
        dequantise_kernel,
        grid,
        out,
        out if ids is None else ids,
        *planes.tensors(),
        first,
        num_rows,
        TYPE=planes.type.name,
        WIDTH=planes.in_features,
        HAS_IDS=ids is not None,
        ROWS=rows,
        UNITS=_UNITS,
    )
