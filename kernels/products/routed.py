"""The matrices of a layer's experts: products one by one, or all that a few rows chose at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .linear import Linear, LinearTypes
from .packed import PackedLinear
from .quant_formats import Planes, pack

FEW_ROWS = 8
"""Rows of x up to which a GPU reads each row's matrices without telling the host which."""


def _one_by_one(_x: torch.Tensor, _choice: torch.Tensor, _out: torch.Tensor) -> None:
    raise ValueError("on a CPU experts are asked one by one")


@dataclass(frozen=True)
class Experts:
    """products: of each expert, x [N, in] to [N, out].

    chosen: called with x [N, in], choice [N, k] int64 (both contiguous) and out [N * k, out]; puts
    x[n] times the matrix of expert choice[n, j] into row n * k + j. On a GPU only.
    """

    products: Sequence[Callable[[torch.Tensor], torch.Tensor]] = ()
    chosen: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] = _one_by_one


def dense_experts(weight: torch.Tensor, types: LinearTypes) -> Experts:
    """weight: [experts, out, in]."""
    products = [Linear(each, types=types) for each in weight]
    if weight.device.type != "cuda":
        return Experts(products)
    from .gemv_triton import gemv

    return Experts(products, lambda x, choice, out: gemv(weight, x, out, chosen=choice))


def packed_experts(name: str, raw: torch.Tensor, rows: int, types: LinearTypes) -> Experts:
    """On CPU. raw: the stored rows of all experts in quant type ``name``, ``rows`` each."""
    return Experts([PackedLinear([(name, each)], types=types) for each in raw.split(rows)])


def quantised_experts(name: str, raw: torch.Tensor, rows: int) -> Experts:
    """On a GPU. See ``packed_experts``."""
    from .quant_gemv_triton import gemv
    from .quant_linear import QuantLinear

    planes = pack(name, raw)
    each = zip(*(plane.split(rows) for plane in planes.tensors()), strict=True)
    products = [QuantLinear.of_planes(Planes(planes.type, *tensors)) for tensors in each]
    return Experts(products, lambda x, choice, out: gemv(planes, x, out, chosen=choice))
