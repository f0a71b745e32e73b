"""The compact workqueue in torch: one list of non-empty tasks over the whole ragged batch.

All tasks are gathered and attended to at once, whatever rows they come from; their partial states
lie side by side and a segmented merge follows. workqueue_triton is the CUDA form.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .attend import attend
from .batch import DecodeBatch, LayerSpec
from .gather import Gather
from .merge import merge_segments, with_sinks
from .tasks import workqueue_tasks
from .torch_strategy import TorchStrategy


@dataclass(frozen=True)
class _Queue:
    """The tasks of one step: their pages, and each task's row ([T] int64)."""

    gather: Gather
    rows: torch.Tensor
    batch_size: int


class Workqueue(TorchStrategy[_Queue]):
    """Best with many rows: the number of operations does not depend on the batch."""

    name = "workqueue"

    def _gather(self, batch: DecodeBatch, window: int) -> _Queue:
        shape, table = self.shape, batch.block_table
        tasks, _ = workqueue_tasks(batch.lengths, window, shape.page_size, self._num_splits)
        gather = Gather(shape, table, batch.lengths, tasks, self._scratch)
        rows = torch.tensor([task.row for task in tasks], device=table.device)
        return _Queue(gather, rows, len(batch))

    def _attend(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        queue, shape = self._gathers_for(spec.window), self.shape
        k, v = queue.gather(kv_layer)
        size = (queue.batch_size, shape.num_kv_heads, shape.group_size, shape.head_dim)
        query, out = q.view(size).to(k.dtype), out.view(size)
        if queue.gather.num_tasks == queue.batch_size:
            result, lse = attend(query, k, v, spec, queue.gather.mask)
        else:
            result, lse = attend(query[queue.rows], k, v, spec, queue.gather.mask)
            result, lse = merge_segments(result, lse, queue.rows, queue.batch_size)
        out.copy_(with_sinks(result, lse, self._sinks(spec)))
