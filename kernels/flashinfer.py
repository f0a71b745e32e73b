"""FlashInfer's paged decode as a strategy: planned on the host once per step, run per layer."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec
from .strategy import StrategyUnavailable

_HEAD_DIMS = (64, 128, 256)
_WORKSPACE_BYTES = 128 * 1024 * 1024  # FlashInfer's own recommendation


class FlashInfer:
    """BatchDecodeWithPagedKVCacheWrapper over HND pages; tensor cores from 4 query heads a group.

    FlashInfer compiles its kernels when first used and caches them, so the first construction
    for a new shape can take a minute. ``num_splits`` is ignored: FlashInfer chooses.
    """

    name = "flashinfer"

    def __init__(self, shape: AttentionShape, tensor_cores: bool | None = None) -> None:
        if shape.dtype not in (torch.float16, torch.bfloat16):
            raise StrategyUnavailable(f"flashinfer takes float16 or bfloat16, not {shape.dtype}")
        if shape.head_dim not in _HEAD_DIMS:
            raise StrategyUnavailable(
                f"flashinfer takes head_dim {', '.join(map(str, _HEAD_DIMS))}, not {shape.head_dim}"
            )
        try:
            from flashinfer import BatchDecodeWithPagedKVCacheWrapper
        except ImportError as error:
            raise StrategyUnavailable(
                f"flashinfer cannot be imported ({error}); pip install flashinfer-python"
            ) from error
        self.shape = shape
        self._tensor_cores = shape.group_size >= 4 if tensor_cores is None else tensor_cores
        self._wrapper_class: Any = BatchDecodeWithPagedKVCacheWrapper
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=shape.device)
        self._wrappers: dict[LayerSpec, Any] = {}
        self._planned: set[LayerSpec] = set()
        # kv_indptr, kv_indices, last_page_len of the planned batch; the indices alone on the device
        self._pages: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._probe()

    def _probe(self) -> None:
        """Build the kernels and run them once on one token."""
        shape = self.shape
        size = (1, 2, shape.num_kv_heads, shape.page_size, shape.head_dim)
        kv_layer = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        query = kv_layer.new_zeros(1, shape.num_qo_heads, shape.head_dim)
        zero = torch.zeros(1, 1, dtype=torch.int32, device=shape.device)
        try:
            self.plan(DecodeBatch(zero, zero[0] + 1, zero[0].long(), (1,)), 1)
            self.run(query, kv_layer, torch.empty_like(query), LayerSpec(scale=1.0))
            torch.cuda.synchronize(shape.device)
        except Exception as error:  # the compiler's, the linker's or the loader's own
            reason = (str(error) or repr(error)).splitlines()[0]
            raise StrategyUnavailable(
                f"flashinfer cannot build its kernels ({reason}); install the CUDA toolkit "
                "(nvcc), ninja and a C++ compiler, or the flashinfer-jit-cache package"
            ) from error

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """Lay out the batch's pages; each layer spec is planned at its first layer."""
        page_size, table = self.shape.page_size, batch.block_table
        pages = [-(-length // page_size) for length in batch.lengths]
        last = [(length - 1) % page_size + 1 if length else 0 for length in batch.lengths]
        self._pages = (
            torch.tensor([0, *accumulate(pages)], dtype=torch.int32),
            torch.cat([table[row, :n] for row, n in enumerate(pages)]),
            torch.tensor(last, dtype=torch.int32),
        )
        self._planned.clear()

    def _wrapper(self, spec: LayerSpec) -> Any:
        if spec in self._planned:
            return self._wrappers[spec]
        assert self._pages is not None, "plan() comes first"
        shape = self.shape
        if spec not in self._wrappers:
            self._wrappers[spec] = self._wrapper_class(
                self._workspace, "HND", use_tensor_cores=self._tensor_cores
            )
        self._wrappers[spec].plan(
            *self._pages,
            shape.num_qo_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.page_size,
            window_left=spec.window - 1,  # keys to the left of the query's own; -1 means all
            logits_soft_cap=spec.softcap,
            q_data_type=shape.dtype,
            kv_data_type=shape.dtype,
            sm_scale=spec.scale,
        )
        self._planned.add(spec)
        return self._wrappers[spec]

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        self._wrapper(spec).run(q, kv_layer, out=out)
