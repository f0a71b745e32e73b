"""FlashInfer as its own users call it: what others are measured against.

The strategy of that name makes FlashInfer's inputs from a block table in each step. Here they lie
ready, so that FlashInfer's time is that of its own plan() and run() and of nothing else.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, LayerSpec
from pkvchat.kernels.attention.flashinfer import FlashInfer

_WORKSPACE_BYTES = 128 << 20  # FlashInfer's own recommendation


class FlashInferAlone:
    """BatchDecodeWithPagedKVCacheWrapper on one of its paths; implements Strategy."""

    name = "flashinfer"
    capturable = True

    def __init__(self, shape: AttentionShape, tensor_cores: bool) -> None:
        """Raises StrategyUnavailable."""
        FlashInfer(shape, tensor_cores)  # builds the path's kernels, or says why it cannot
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        self._shape, self._tensor_cores = shape, tensor_cores
        self._wrapper_class: Any = BatchDecodeWithPagedKVCacheWrapper
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=shape.device)
        self._wrappers: dict[torch.Size | None, Any] = {}  # by a static batch's size
        self._wrapper: Any = None
        self._batch: DecodeBatch | None = None
        self._inputs: tuple[torch.Tensor, ...] = ()

    def prepare(self, batch: DecodeBatch) -> None:
        """kv_indptr and kv_last_page_len on the host, as plan() wants them, kv_indices there."""
        page_size, table = self._shape.page_size, batch.block_table
        pages = [-(-length // page_size) for length in batch.lengths]
        last = [(length - 1) % page_size + 1 for length in batch.lengths]
        self._inputs = (
            torch.tensor([0, *accumulate(pages)], dtype=torch.int32),
            torch.cat([table[row, :count] for row, count in enumerate(pages)]),
            torch.tensor(last, dtype=torch.int32),
        )
        size = table.shape if batch.static else None
        if size not in self._wrappers:
            self._wrappers[size] = self._new_wrapper(size)
        self._wrapper, self._batch = self._wrappers[size], batch

    def _new_wrapper(self, static: torch.Size | None) -> Any:
        """static: of the block table that a graph's wrapper has room for."""
        buffers: dict[str, Any] = {}
        if static is not None:
            rows, numel = static[0], static.numel()
            names = {"indptr": rows + 1, "indices": numel, "last_page_len": rows}
            buffers = {
                f"paged_kv_{name}_buffer": torch.zeros(
                    count, dtype=torch.int32, device=self._shape.device
                )
                for name, count in names.items()
            }
        return self._wrapper_class(
            self._workspace,
            "HND",
            use_cuda_graph=static is not None,
            use_tensor_cores=self._tensor_cores,
            **buffers,
        )

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """A batch whose contents have changed in place must have been prepared again."""
        if batch is not self._batch:
            self.prepare(batch)
        shape = self._shape
        self._wrapper.plan(
            *self._inputs,
            shape.num_qo_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.page_size,
            q_data_type=shape.dtype,
            kv_data_type=shape.dtype,
        )

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        """spec.scale: 1 / sqrt(head_dim), which is FlashInfer's own."""
        self._wrapper.run(q, kv_layer, out=out)
