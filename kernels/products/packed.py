"""A matrix product whose GGUF weights stay as 4-bit codes in memory, on CPU.

A decode step reads every weight once, so fewer bytes are more tokens/s. torch's int4 kernel takes
bfloat16 rows, and codes in groups of 32 with an affine map. Codes of 5 to 8 bits are two planes of
4. quant_linear is the CUDA form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..activation import gated
from .linear import Linear, LinearTypes
from .quant_formats import Planes, dequantise, fields, pack, scales_and_biases

BITS = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_K": 8, "Q8_0": 8}
"""The types that can stay packed, and the bits that one weight of each takes."""

_GROUP = 32
_LANES = 16  # the kernel takes output rows by the 16

_pack_int4 = torch.ops.aten._convert_weight_to_int4pack_for_cpu
_multiply = torch.ops.aten._weight_int4pack_mm_for_cpu


class PackedLinear:
    """``y = x @ weight.T + bias``; the weight is GGUF matrices one above the other.

    Products of many rows, which arithmetic binds, go to a dense copy of 16 bits a weight, unless
    ``types.dense`` forbids it. Scales are rounded to bfloat16.
    """

    def __init__(
        self,
        parts: Sequence[tuple[str, torch.Tensor]],
        bias: torch.Tensor | None = None,
        *,
        types: LinearTypes,
    ) -> None:
        """parts: quant type, one of BITS, and raw rows [out, row_bytes] uint8 of each matrix.

        bias: [sum of out].
        """
        packed = [pack(name, raw) for name, raw in parts]
        self.out_features = sum(planes.rows for planes in packed)
        self.planes = _int4_planes(packed)
        self.bias = bias
        self.few_limit = types.few_limit
        self.dense: Linear | None = None
        if types.dense:
            copy = dense_types(types.many_rows)
            weight = torch.cat([dequantise(planes).to(copy.weight) for planes in packed])
            self.dense = Linear(weight, bias, types=copy)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, in]; returns [N, out] in x's dtype."""
        if self.dense is not None and x.shape[0] > self.few_limit:
            return self.dense(x)
        rows = x.to(torch.bfloat16)
        packed, affine = self.planes[0]
        y: torch.Tensor = _multiply(rows, packed, _GROUP, affine)
        for packed, affine in self.planes[1:]:
            y += _multiply(rows, packed, _GROUP, affine)
        if y.shape[1] != self.out_features:
            y = y[:, : self.out_features]
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``activation.gated`` of the product, [N, out / 2]."""
        return gated(self(x), activation)

    def nbytes(self) -> int:
        """Bytes held, the dense copy included."""
        tensors = [tensor for plane in self.planes for tensor in plane]
        dense = 0 if self.dense is None else self.dense.nbytes()
        return dense + sum(tensor.nbytes for tensor in tensors)


def packed_nbytes(types: Sequence[str], elements: int, *, dense: bool) -> int:
    """About what a PackedLinear of matrices in ``types``, all ``elements`` together, holds."""
    planes = 2 if any(BITS[name] > 4 for name in types) else 1
    bits = planes * (4 + 2 * 16 / _GROUP) + dense * 16
    return int(elements * bits) // 8


def dense_types(many_rows: torch.dtype) -> LinearTypes:
    """Of the dense copy: 16 bits in memory, multiplied in ``many_rows``."""
    weight = torch.float16 if many_rows == torch.float32 else many_rows
    return LinearTypes(weight, many_rows, many_rows)


def _int4_planes(parts: Sequence[Planes]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(packed codes, affine map [in / 32, out, 2]) per plane, of all parts."""
    wide = any(BITS[planes.type.name] > 4 for planes in parts)
    by_plane = zip(*(_nibbles(planes, wide) for planes in parts), strict=True)
    return [_pack_plane(*map(torch.cat, zip(*plane, strict=True))) for plane in by_plane]


def _nibbles(planes: Planes, wide: bool) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(codes, scale, zero) of a low plane and, if ``wide``, a high one: (code - 8) * scale + zero.

    Codes are counted from the middle of their range, where weights are zero or nearly so: what is
    added per group is then small, and so is what its rounding costs.
    """
    codes = fields(planes)
    scale, bias = scales_and_biases(planes)
    middle = 1 << (planes.type.field_bits + planes.type.high_bits - 1)
    centre = bias + middle * scale
    if middle == 8:
        empty = (torch.full_like(codes, 8), torch.zeros_like(scale), torch.zeros_like(scale))
        return [(codes, scale, centre)] + [empty] * wide
    high = (codes >> 4) + (8 - middle // 16)
    return [(codes & 15, scale, 8 * scale), (high, 16 * scale, centre)]


def _pack_plane(
    codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    padding = (0, 0, 0, -len(codes) % _LANES)
    packed = _pack_int4(F.pad(codes, padding), 1)
    affine = torch.stack((F.pad(scale, padding).T, F.pad(zero, padding).T), dim=-1)
    return packed, affine.bfloat16().contiguous()
