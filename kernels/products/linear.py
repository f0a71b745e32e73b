"""Matrix products whose weights are kept in one dtype and multiplied in another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from ..activation import gated


@dataclass(frozen=True)
class LinearTypes:
    """How a device multiplies matrices fast.

    weight: the dtype weights are kept in. few_rows: the product's dtype for at most ``few_limit``
    rows of x (decode, bound by memory); many_rows: for more (prefill, bound by arithmetic).
    packed_bits: a checkpoint's quantised weights of up to so many bits stay packed (see
    ``packed``); 0 dequantises them all. dense: beside them, on CPU, keep a dense copy for many
    rows; without it prefill is slower and the weights take a quarter of the memory.
    """

    weight: torch.dtype
    few_rows: torch.dtype
    many_rows: torch.dtype
    few_limit: int = 8
    packed_bits: int = 0
    dense: bool = True

    @classmethod
    def uniform(cls, dtype: torch.dtype) -> LinearTypes:
        """One dtype for everything."""
        return cls(weight=dtype, few_rows=dtype, many_rows=dtype)

    def without_float16(self) -> LinearTypes:
        """For models whose activations pass float16's largest value, 65504."""
        instead = {torch.float16: torch.float32}
        return replace(
            self,
            weight=torch.bfloat16 if self.weight == torch.float16 else self.weight,
            few_rows=instead.get(self.few_rows, self.few_rows),
            many_rows=instead.get(self.many_rows, self.many_rows),
        )


class Linear:
    """``y = x @ weight.T + bias``, in the product dtype that suits the number of rows."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, types: LinearTypes
    ) -> None:
        """weight: [out, in]; bias: [out]. Both are converted to ``types.weight``."""
        self.weight = weight.to(types.weight)
        self.bias = None if bias is None else bias.to(types.weight)
        self.types = types
        self.gemv_rows = 0  # up to which, on CUDA, our own kernel multiplies (measure_products)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, in]; returns [N, out] in x's dtype."""
        if 0 < x.shape[0] <= self.gemv_rows:
            return self._few(x, "")
        types = self.types
        dtype = types.few_rows if x.shape[0] <= types.few_limit else types.many_rows
        bias = None if self.bias is None else self.bias.to(dtype)
        return F.linear(x.to(dtype), self.weight.to(dtype), bias).to(x.dtype)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``activation.gated`` of the product, [N, out / 2]."""
        if 0 < x.shape[0] <= self.gemv_rows:
            return self._few(x, activation)
        return gated(self(x), activation)

    def _few(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        from .gemv_triton import gemv

        out = x.new_empty(x.shape[0], len(self.weight) // (2 if activation else 1))
        gemv(self.weight, x.contiguous(), out, self.bias, activation)
        return out

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of the weight, as an embedding table. ids: [N] int64; returns [N, in]."""
        return F.embedding(ids, self.weight).to(dtype)

    def nbytes(self) -> int:
        """Bytes of weight and bias held."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)
