"""A matrix product whose weights stay quantised in GPU memory, callable like ``linear.Linear``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from ..activation import gated
from .quant_dequantise_triton import dequantise_rows, lookup_rows
from .quant_formats import Planes, pack, stack
from .quant_gemm_triton import gemm, gemm_config
from .quant_gemv_triton import gemv
from .quant_skinny_triton import SKINNY_LIMIT, skinny

# Rows of x up to which each way of multiplying is fastest (benchmarks/h200-quantised-matmul.md).
GEMV_LIMIT = 1
GEMV_LIMIT_FLOAT32 = 2  # which skinny programs don't take
GEMM_LIMIT = 64
SCRATCH_BYTES = 128 << 20  # of weights written out at a time


class QuantLinear:
    """``y = x @ weight.T + bias``; the weight is GGUF matrices one above the other."""

    def __init__(
        self,
        parts: Sequence[tuple[str, torch.Tensor]],
        in_features: int,
        bias: torch.Tensor | None = None,
    ) -> None:
        """parts: quant type and raw rows [out, row_bytes] uint8 of each matrix, on its device.

        bias: [sum of out]. Raises ValueError for a type without kernels or rows of another width.
        """
        packed = [pack(name, raw) for name, raw in parts]
        for planes in packed:
            if planes.in_features != in_features:
                raise ValueError(
                    f"{planes.type.name} rows of {planes.in_features} weights, not {in_features}"
                )
        # Neighbours of one type go in one launch.
        self.parts = [stack(list(run)) for _, run in groupby(packed, key=lambda p: p.type)]
        self.in_features = in_features
        self.out_features = sum(planes.rows for planes in self.parts)
        self.bias = bias

    @classmethod
    def of_planes(cls, planes: Planes) -> QuantLinear:
        """Without a copy."""
        linear = cls([], planes.in_features)
        linear.parts, linear.out_features = [planes], planes.rows
        return linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, in_features] fp16, bf16 or fp32; returns [N, out_features] in x's dtype."""
        x = x.contiguous()
        out = x.new_empty(x.shape[0], self.out_features)
        start = 0
        for planes in self.parts:
            part = slice(start, start + planes.rows)
            bias = None if self.bias is None else self.bias[part]
            _multiply(planes, x, out[:, part], bias)
            start += planes.rows
        return out

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``activation.gated`` of the product, [N, out_features / 2]."""
        if len(self.parts) > 1 or not 0 < x.shape[0] <= _most_rows(x):
            return gated(self(x), activation)
        out = x.new_empty(x.shape[0], self.out_features // 2)
        _multiply(self.parts[0], x.contiguous(), out, self.bias, activation)
        return out

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of the weight, as an embedding table. ids: [N] int64; returns [N, in_features]."""
        (planes,) = self.parts
        out = torch.empty(len(ids), self.in_features, dtype=dtype, device=ids.device)
        lookup_rows(planes, ids.contiguous(), out)
        return out

    def nbytes(self) -> int:
        """Bytes of weight and bias held."""
        bias = 0 if self.bias is None else self.bias.nbytes
        return bias + sum(planes.nbytes() for planes in self.parts)


def _most_rows(x: torch.Tensor) -> int:
    """For tiles; in float32, larger ones take more shared memory than most devices have."""
    return GEMM_LIMIT if x.itemsize <= 2 else 8


def _multiply(
    planes: Planes,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str = "",
) -> None:
    """activation: for at most ``_most_rows``."""
    num_rows = x.shape[0]
    if num_rows == 0:
        return
    narrow = x.itemsize == 2
    if num_rows <= (GEMV_LIMIT if narrow else GEMV_LIMIT_FLOAT32):
        gemv(planes, x, out, bias, activation=activation)
    elif num_rows <= SKINNY_LIMIT and narrow:
        skinny(planes, x, out, bias, activation)
    elif num_rows <= _most_rows(x):
        gemm(planes, x, out, bias, gemm_config(planes, num_rows), activation)
    else:
        multiply_written_out(planes, x, out, bias)


def multiply_written_out(
    planes: Planes, x: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """Slices of the weight go to memory in x's dtype, and from there to the vendor's product."""
    step = max(1, SCRATCH_BYTES // (planes.in_features * x.itemsize))
    scratch = x.new_empty(min(step, planes.rows), planes.in_features)
    for start in range(0, planes.rows, step):
        part = slice(start, min(start + step, planes.rows))
        weight = scratch[: part.stop - start]
        dequantise_rows(planes, start, weight)
        if bias is None:
            torch.mm(x, weight.T, out=out[:, part])
        else:
            torch.addmm(bias[part].to(x.dtype), x, weight.T, out=out[:, part])
