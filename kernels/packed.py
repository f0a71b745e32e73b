"""Matrix products whose weights stay as 4-bit codes in memory, on CPU.

A decode step reads every weight once, so fewer bytes are more tokens/s. torch's int4 kernel takes
bfloat16 rows and groups of codes with an affine map; codes of 5 to 8 bits are two such planes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

GROUP = 32  # codes that share a scale and a zero
_LANES = 16  # the kernel takes output rows by the 16

_pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
_multiply = torch.ops.aten._weight_int4pack_mm_for_cpu


@dataclass(frozen=True)
class Codes:
    """A quantised weight [out, in]: code * scale + zero, in groups of 32 along a row.

    codes: [out, in] uint8, below 2 ** bits; scale, zero: [out, in / 32] float32.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    bits: int

    def dequantise(self) -> torch.Tensor:
        """[out, in] float32."""
        rows, width = self.codes.shape
        groups = self.codes.view(rows, -1, GROUP).float()
        weight = groups * self.scale.unsqueeze(-1) + self.zero.unsqueeze(-1)
        return weight.view(rows, width)


class PackedLinear:
    """``y = x @ weight.T + bias`` on 4-bit planes; many rows go to a dense bfloat16 copy if kept.

    The affine maps are rounded to bfloat16, as the kernel needs them.
    """

    def __init__(
        self,
        weight: Codes,
        bias: torch.Tensor | None = None,
        *,
        few_limit: int,
        dense: torch.Tensor | None = None,
    ) -> None:
        """dense: [out, in] bfloat16, for products of more than ``few_limit`` rows."""
        self.out_features = weight.codes.shape[0]
        self.planes = _planes(weight)
        self.bias = None if bias is None else bias.bfloat16()
        self.few_limit, self.dense = few_limit, dense

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, in]; returns [N, out] in x's dtype."""
        rows = x.to(torch.bfloat16)
        if self.dense is not None and x.shape[0] > self.few_limit:
            return F.linear(rows, self.dense, self.bias).to(x.dtype)
        packed, affine = self.planes[0]
        y: torch.Tensor = _multiply(rows, packed, GROUP, affine)
        for packed, affine in self.planes[1:]:
            y += _multiply(rows, packed, GROUP, affine)
        if y.shape[1] != self.out_features:
            y = y[:, : self.out_features]
        if self.bias is not None:
            y += self.bias
        return y.to(x.dtype)

    def nbytes(self) -> int:
        """Bytes held, the dense copy included."""
        tensors = [tensor for plane in self.planes for tensor in plane]
        tensors += [tensor for tensor in (self.bias, self.dense) if tensor is not None]
        return sum(tensor.nbytes for tensor in tensors)


def _planes(weight: Codes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(packed codes, affine map [in / 32, out, 2]) per plane; the kernel's codes are -8 to 7."""
    codes, scale, zero = weight.codes, weight.scale, weight.zero
    if weight.bits <= 4:
        return [_plane(codes, scale, zero + 8 * scale)]
    # The high plane takes the zero, which it turns into nothing for symmetric formats.
    high, low = codes >> 4, codes & 15
    return [_plane(high, 16 * scale, zero + 128 * scale), _plane(low, scale, 8 * scale)]


def _plane(
    codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    padding = (0, 0, 0, -len(codes) % _LANES)
    packed = _pack(F.pad(codes, padding).int(), 1)
    affine = torch.stack((F.pad(scale, padding).T, F.pad(zero, padding).T), dim=-1)
    return packed, affine.bfloat16().contiguous()
