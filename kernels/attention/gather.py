"""Copies of a batch's pages side by side, so that torch's dense operations can attend to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .batch import AttentionShape, DecodeBatch
from .kv import dequantise
from .tasks import Task, split_tasks


class Scratch:
    """Memory that a strategy keeps from step to step and only ever grows."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def take(self, size: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """An uninitialised tensor of ``size`` with the dtype and device of ``like``."""
        count = 1
        for extent in size:
            count *= extent
        buffer = self._buffer
        if buffer is None or buffer.numel() < count or buffer.dtype != like.dtype:
            buffer = torch.empty(count + count // 4, dtype=like.dtype, device=like.device)
            self._buffer = buffer
        return buffer[:count].view(*size)


class Gather:
    """The K and V of some tasks, padded to the longest of them.

    Everything that does not depend on the layer is computed here, once per step: one flat index
    of heads' pages, the mask of padding, and the slots to clear, since memory past a sequence's end
    may hold anything, NaN included. Several tasks need the CPU.
    """

    def __init__(
        self,
        shape: AttentionShape,
        block_table: torch.Tensor,
        lengths: Sequence[int],
        tasks: Sequence[Task],
        scratch: Scratch,
    ) -> None:
        """block_table: [B, max_pages] int32; lengths: of its B rows."""
        page_size = shape.page_size
        self._shape, self._scratch = shape, scratch
        self.num_tasks = len(tasks)
        self.num_pages = max(-(-t.end // page_size) - t.first_tile for t in tasks)
        self.mask: torch.Tensor | None = None  # [num_tasks, 1, 1, keys] fp32, to add to scores
        self._stale: torch.Tensor | None = None
        if self.num_tasks == 1:
            (task,) = tasks
            pages = block_table[task.row : task.row + 1, task.first_tile :][:, : self.num_pages]
            offset = task.first_tile * page_size
            self._keys = slice(task.begin - offset, task.end - offset)
        else:
            pages = self._pad(block_table, lengths, tasks)
            self._keys = slice(0, self.num_pages * page_size)
        lanes = torch.arange(2 * shape.num_kv_heads, device=pages.device)
        self._index = (pages.long().unsqueeze(1) * len(lanes) + lanes.view(2, 1, -1, 1)).flatten()

    def _pad(
        self, block_table: torch.Tensor, lengths: Sequence[int], tasks: Sequence[Task]
    ) -> torch.Tensor:
        """Pages of all tasks, [num_tasks, num_pages]; padding repeats a task's first page."""
        page_size, heads = self._shape.page_size, self._shape.num_kv_heads
        rows, first, begin, end = np.array(tasks).T[..., None]
        tiles = first + np.arange(self.num_pages)
        tiles = np.where(tiles * page_size < end, tiles, first)
        positions = first * page_size + np.arange(self.num_pages * page_size)
        hidden = (positions < begin) | (positions >= end)
        if hidden.any():
            mask = np.where(hidden, np.float32("-inf"), np.float32(0))
            self.mask = torch.from_numpy(mask)[:, None, None]
            source = (tiles[..., None] * page_size + np.arange(page_size)).reshape(hidden.shape)
            task, slot = np.nonzero(source >= np.array(lengths)[rows])
            lanes = np.arange(2)[:, None, None] * self.num_tasks + task[:, None]
            stale = (lanes * heads + np.arange(heads)) * hidden.shape[1] + slot[:, None]
            self._stale = torch.from_numpy(stale.reshape(-1))
        return torch.from_numpy(block_table.numpy()[rows, tiles])

    def __call__(self, kv_layer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V, each [num_tasks, num_kv_heads, keys, head_dim]; valid until the next call.

        Of the layer's dtype; of a quantised layer the values, in the shape's dtype.
        """
        shape = self._shape
        width = shape.page_rows * shape.head_dim
        # Float8 moves as bytes: not every operation knows it.
        pages = (kv_layer.view(torch.int8) if shape.quantised else kv_layer).view(-1, width)
        kv = self._scratch.take((self._index.numel(), width), pages)
        torch.index_select(pages, 0, self._index, out=kv)
        if shape.quantised:
            kv = dequantise(kv.view(shape.kv_dtype), shape.page_size, shape.head_dim, shape.dtype)
        if self._stale is not None:
            kv.view(-1, shape.head_dim).index_fill_(0, self._stale, 0)
        kv = kv.view(2, self.num_tasks, shape.num_kv_heads, -1, shape.head_dim)
        k, v = kv[:, :, :, self._keys].unbind()
        return k, v


def gather_rows(
    shape: AttentionShape, batch: DecodeBatch, window: int, num_splits: int, scratch: Scratch
) -> list[Gather]:
    """One Gather per row, of its splits; they share ``scratch``, one after another."""
    return [
        Gather(
            shape,
            batch.block_table,
            batch.lengths,
            split_tasks(row, length, window, shape.page_size, num_splits),
            scratch,
        )
        for row, length in enumerate(batch.lengths)
    ]
