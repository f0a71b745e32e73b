"""Which dense products of a few rows our own kernel computes, and which the vendor's library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..products.linear import Linear
from .graph_timing import captured, replay_us
from .records import Store, device_key

ROWS = (1, 2)
_GAIN = 0.98  # what is slower than this share of the library's time is not worth a choice
_MAX_CALLS = 32  # of one shape in a timing: a layer each, so that all are cold in L2


def choose_products(linears: Sequence[Linear], store: Store | None = None) -> None:
    """Set ``gemv_rows`` of CUDA products: from the device's record, else measured and recorded.

    A record keeps a model's greedy text the same from start to start.
    """
    store = store or Store()
    by_shape: dict[str, list[Linear]] = {}
    for linear in linears:
        out, width = linear.weight.shape
        by_shape.setdefault(f"{out}x{width} {linear.weight.dtype}", []).append(linear)
    if not by_shape:
        return
    key = device_key(linears[0].weight.device)
    known = store.load("products", key, _parse) or {}
    new = {name: _limit(same) for name, same in by_shape.items() if name not in known}
    if new:
        known = known | new
        store.save("products", key, known)
    for name, same in by_shape.items():
        for linear in same:
            linear.gemv_rows = known[name]


def _parse(data: dict[str, Any]) -> dict[str, int]:
    for name, limit in data.items():
        if limit not in (0, *ROWS):
            raise ValueError(f"{name} {limit!r}")
    return data


def _limit(linears: Sequence[Linear]) -> int:
    """The most rows up to which our kernel is faster."""
    limit = 0
    for rows in ROWS:
        ours, theirs = (_time(linears, rows, gemv_rows) for gemv_rows in (rows, 0))
        if ours > _GAIN * theirs:
            break
        limit = rows
    return limit


def _time(linears: Sequence[Linear], rows: int, gemv_rows: int) -> float:
    """Microseconds of the products of ``rows`` rows, in one graph."""
    x = torch.ones_like(linears[0].weight[:1]).expand(rows, -1).contiguous()
    linears = linears[:_MAX_CALLS]
    for linear in linears:
        linear.gemv_rows = gemv_rows

    def body() -> None:
        for linear in linears:
            linear(x)

    body()  # compiles what a graph cannot
    return replay_us(captured(body))
