"""The compact workqueue in torch: one list of non-empty tasks over the whole ragged batch.

All tasks are gathered and attended to at once, whatever rows they come from; their partial states
lie side by side and a segmented merge follows. workqueue_triton is the CUDA form.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .attend import attend
from .batch import AttentionShape, DecodeBatch, LayerSpec
from .gather import Gather, Scratch
from .merge import merge_segments
from .tasks import workqueue_tasks


@dataclass(frozen=True)
class _Queue:
    """The tasks of one step: their pages, and each task's row ([T] int64)."""

    gather: Gather
    rows: torch.Tensor


class Workqueue:
    """Best with many rows: the number of operations does not depend on the batch."""

    name = "workqueue"
    capturable = False

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._scratch = Scratch()
        self._batch: DecodeBatch | None = None
        self._num_splits = 1
        self._queues: dict[int, _Queue] = {}  # by window

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        self._batch = batch
        self._num_splits = num_splits
        self._queues.clear()

    def _build(self, batch: DecodeBatch, window: int) -> _Queue:
        shape, table = self.shape, batch.block_table
        tasks, _ = workqueue_tasks(batch.lengths, window, shape.page_size, self._num_splits)
        gather = Gather(shape, table, batch.lengths, tasks, self._scratch)
        return _Queue(gather, torch.tensor([task.row for task in tasks], device=table.device))

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        shape, batch, window = self.shape, self._batch, spec.window
        assert batch is not None, "plan() comes first"
        if window not in self._queues:
            self._queues[window] = self._build(batch, window)
        queue = self._queues[window]
        k, v = queue.gather(kv_layer)
        size = (len(batch), shape.num_kv_heads, shape.group_size, shape.head_dim)
        query, out = q.view(size).to(k.dtype), out.view(size)
        if queue.gather.num_tasks == len(batch):
            partial, _ = attend(query, k, v, spec, queue.gather.mask)
            out.copy_(partial)
        else:
            partial, lse = attend(query[queue.rows], k, v, spec, queue.gather.mask)
            out.copy_(merge_segments(partial, lse, queue.rows, len(batch)))
