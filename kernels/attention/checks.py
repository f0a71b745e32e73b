"""What strategies may be given. Each ValueError names the argument, its value and what is allowed.

Shapes are checked before every launch, in full where they differ from those before. What the block
table and the lengths hold, for which the device must be asked, is checked by strategies that are
made while PKVCHAT_CHECK_CONTENTS=1 is in the environment: the tests and ``--debug`` set it.
"""

from __future__ import annotations

import os
from typing import TypeAlias

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec

Facts: TypeAlias = tuple[object, ...]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_ALIGNMENT = 16  # bytes: of the widest copies


def contents_wanted() -> bool:
    return os.environ.get("PKVCHAT_CHECK_CONTENTS") == "1"


class ArgumentChecks:
    """Of one strategy. What is like the last that was right, as most layers are, is right too."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._batch: Facts = ()
        self._layer: Facts = ()

    def batch(self, batch: DecodeBatch, num_splits: int) -> None:
        """What ``plan`` is given. Raises ValueError."""
        table, lengths = batch.block_table, batch.lengths
        facts: Facts = len(lengths), num_splits > 0, table.stride(), _facts(table)
        facts += _facts(batch.seq_lens), _facts(batch.slot_mapping)
        if facts != self._batch:
            _check_batch(batch, num_splits, self._shape)
            self._batch = facts
        capacity = table.shape[1] * self._shape.page_size
        if min(lengths) < 0 or max(lengths) > capacity:
            row = next(i for i, length in enumerate(lengths) if not 0 <= length <= capacity)
            raise ValueError(
                f"lengths[{row}] is {lengths[row]}: a block table of {table.shape[1]} pages holds "
                f"0 to {capacity} tokens"
            )

    def layer(
        self,
        q: torch.Tensor,
        kv_layer: torch.Tensor,
        out: torch.Tensor,
        spec: LayerSpec,
        rows: int,
    ) -> None:
        """What ``run`` is given, for a batch of ``rows``. Raises ValueError."""
        sinks = None if spec.sinks is None else _facts(spec.sinks)
        facts: Facts = rows, _facts(q), _facts(kv_layer), _facts(out), sinks
        if facts != self._layer or spec.window < 0 or spec.softcap < 0:
            _check_layer(q, kv_layer, out, spec, rows, self._shape)
            self._layer = facts


def _facts(x: torch.Tensor) -> Facts:
    """All that is checked of a tensor."""
    return x.shape, x.dtype, x.device, x.is_contiguous(), x.data_ptr() % _ALIGNMENT


def _check_batch(batch: DecodeBatch, num_splits: int, shape: AttentionShape) -> None:
    """All but the lengths."""
    rows, table = len(batch), batch.block_table
    if rows == 0:
        raise ValueError("lengths is (): a decode batch has at least one row")
    if num_splits < 1:
        raise ValueError(f"num_splits is {num_splits}, and must be at least 1")
    if table.dim() != 2 or len(table) != rows:
        raise ValueError(f"block_table has shape {tuple(table.shape)}, and must have {rows} rows")
    _check_tensor("block_table", table, shape, torch.int32)
    if table.stride(1) != 1:
        raise ValueError(f"block_table has strides {table.stride()}: its rows must be contiguous")
    for name, vector, dtype in (
        ("seq_lens", batch.seq_lens, torch.int32),
        ("slot_mapping", batch.slot_mapping, torch.int64),
    ):
        _check_tensor(name, vector, shape, dtype, (rows,))


def _check_layer(
    q: torch.Tensor,
    kv_layer: torch.Tensor,
    out: torch.Tensor,
    spec: LayerSpec,
    rows: int,
    shape: AttentionShape,
) -> None:
    size = (rows, shape.num_qo_heads, shape.head_dim)
    for name, x in (("q", q), ("out", out)):
        if x.dtype not in _FLOATS:
            raise ValueError(f"{name} is {x.dtype}, and must be {_either(_FLOATS)}")
        _check_tensor(name, x, shape, q.dtype, size)
        _check_placed(name, x)
    page = (2, shape.num_kv_heads, shape.page_rows, shape.head_dim)
    if tuple(kv_layer.shape[1:]) != page:
        allowed = ", ".join(map(str, page))
        raise ValueError(
            f"kv_layer has shape {tuple(kv_layer.shape)}, and must be (num_pages, {allowed})"
        )
    _check_tensor("kv_layer", kv_layer, shape, shape.kv_dtype)
    _check_placed("kv_layer", kv_layer)
    if spec.window < 0:
        raise ValueError(f"window is {spec.window}, and must be at least 0 (all tokens)")
    if spec.softcap < 0:
        raise ValueError(f"softcap is {spec.softcap}, and must be at least 0 (none)")
    if spec.sinks is not None:
        _check_tensor("sinks", spec.sinks, shape, torch.float32, (shape.num_qo_heads,))
        _check_placed("sinks", spec.sinks)


def check_contents(batch: DecodeBatch, num_pages: int, shape: AttentionShape) -> None:
    """What the tensors of a batch hold; waits for the device. num_pages: of the KV cache."""
    lengths, table = batch.seq_lens.tolist(), batch.block_table.cpu()
    for row, (length, expected) in enumerate(zip(lengths, batch.lengths, strict=True)):
        if length != expected:
            raise ValueError(
                f"seq_lens[{row}] is {length}, and lengths[{row}] {expected}: they must be equal"
            )
        pages = table[row, : -(-length // shape.page_size)]
        wrong = ((pages < 0) | (pages >= num_pages)).nonzero()
        if len(wrong):
            at = int(wrong[0])
            raise ValueError(
                f"block_table[{row}, {at}] is {int(pages[at])}: the pool's pages are 0 to "
                f"{num_pages - 1}"
            )


def _check_tensor(
    name: str,
    x: torch.Tensor,
    shape: AttentionShape,
    dtype: torch.dtype,
    size: tuple[int, ...] | None = None,
) -> None:
    """size: None for what the caller has checked."""
    if size is not None and tuple(x.shape) != size:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, and must have {size}")
    if x.dtype != dtype:
        raise ValueError(f"{name} is {x.dtype}, and must be {dtype}")
    device = shape.device
    if x.device.type != device.type or (device.index not in (None, x.device.index)):
        raise ValueError(f"{name} is on {x.device}, and must be on {device}")


def _check_placed(name: str, x: torch.Tensor) -> None:
    if not x.is_contiguous():
        raise ValueError(f"{name} has strides {x.stride()} and must be contiguous")
    if x.is_cuda and x.data_ptr() % _ALIGNMENT:
        raise ValueError(
            f"{name} begins {x.data_ptr() % _ALIGNMENT} bytes past a multiple of {_ALIGNMENT}, and "
            "must begin at one"
        )


def _either(values: tuple[torch.dtype, ...]) -> str:
    return " or ".join(map(str, values))
