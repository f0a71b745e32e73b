"""FlashInfer's paged decode as a strategy: planned on the host once per step, run per layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from .batch import AttentionShape, DecodeBatch, LayerSpec
from .merge import with_sinks
from .paged_strategy import PagedStrategy
from .strategy import StrategyUnavailable

_HEAD_DIMS = (64, 128, 256)
_WORKSPACE_BYTES = 128 * 1024 * 1024  # FlashInfer's own recommendation


@dataclass
class _Pages:
    """A batch as FlashInfer takes it: [B + 1] and [B] int32 on the host, the indices on the device.

    static: the size of the batch's block table where a CUDA graph may read it, else None.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor
    static: torch.Size | None


def load_flashinfer(shape: AttentionShape) -> Any:
    """The library. Raises StrategyUnavailable where it is not there or not for ``shape``."""
    if shape.dtype not in (torch.float16, torch.bfloat16):
        raise StrategyUnavailable(f"flashinfer takes float16 or bfloat16, not {shape.dtype}")
    if shape.quantised:
        raise StrategyUnavailable(
            f"flashinfer has no scale for each token and head, which {shape.kv_dtype} KV needs"
        )
    if shape.head_dim not in _HEAD_DIMS:
        raise StrategyUnavailable(
            f"flashinfer takes head_dim {', '.join(map(str, _HEAD_DIMS))}, not {shape.head_dim}"
        )
    try:
        import flashinfer
    except ImportError as error:
        raise StrategyUnavailable(
            f"flashinfer cannot be imported ({error}); pip install flashinfer-python"
        ) from error
    return flashinfer


def why_not_built(error: Exception) -> StrategyUnavailable:
    """error: the compiler's, the linker's or the loader's own."""
    reason = (str(error) or repr(error)).splitlines()[0]
    return StrategyUnavailable(
        f"flashinfer cannot build its kernels ({reason}); install the CUDA toolkit "
        "(nvcc), ninja and a C++ compiler, or the flashinfer-jit-cache package"
    )


class FlashInfer(PagedStrategy):
    """BatchDecodeWithPagedKVCacheWrapper over HND pages; tensor cores from 4 query heads a group.

    FlashInfer compiles its kernels when first used and caches them, so the first construction
    for a new shape can take a minute. ``num_splits`` is ignored: FlashInfer chooses.
    What comes out for a row of length 0 means nothing.
    """

    name = "flashinfer"
    capturable = True

    def __init__(self, shape: AttentionShape, tensor_cores: bool | None = None) -> None:
        library = load_flashinfer(shape)
        super().__init__(shape)
        self._tensor_cores = shape.group_size >= 4 if tensor_cores is None else tensor_cores
        self._wrapper_class: Any = library.BatchDecodeWithPagedKVCacheWrapper
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=shape.device)
        # A graph's wrapper keeps to one size, and its buffers to their place.
        self._wrappers: dict[tuple[torch.Size | None, LayerSpec], Any] = {}
        self._planned: set[LayerSpec] = set()
        self._pages: _Pages | None = None
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
        except Exception as error:
            raise why_not_built(error) from error

    def _plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """Lay out the batch's pages; each layer spec is planned at its first layer.

        Those that a graph may have captured are planned here: its replays call nothing else.
        """
        page_size, table = self.shape.page_size, batch.block_table
        lengths = [max(1, length) for length in batch.lengths]  # FlashInfer knows no empty rows
        pages = [-(-length // page_size) for length in lengths]
        self._pages = _Pages(
            torch.tensor([0, *accumulate(pages)], dtype=torch.int32),
            torch.cat([table[row, :n] for row, n in enumerate(pages)]),
            torch.tensor([(n - 1) % page_size + 1 for n in lengths], dtype=torch.int32),
            table.shape if batch.static else None,
        )
        self._planned.clear()
        if batch.static:
            for size, spec in list(self._wrappers):
                if size == table.shape:
                    self._wrapper(spec)

    def _wrapper(self, spec: LayerSpec) -> Any:
        shape, pages = self.shape, self._pages
        assert pages is not None, "plan() comes first"
        key = pages.static, spec
        if spec in self._planned:
            return self._wrappers[key]
        if key not in self._wrappers:
            self._wrappers[key] = self._wrapper_class(
                self._workspace,
                "HND",
                use_tensor_cores=self._tensor_cores,
                **self._buffers(pages.static),
            )
        self._wrappers[key].plan(
            pages.indptr,
            pages.indices,
            pages.last_page_len,
            shape.num_qo_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.page_size,
            window_left=spec.window - 1,  # keys to the left of the query's own; -1 means all
            logits_soft_cap=spec.softcap,
            q_data_type=shape.dtype,
            kv_data_type=shape.kv_dtype,
            sm_scale=spec.scale,
        )
        self._planned.add(spec)
        return self._wrappers[key]

    def _buffers(self, table_size: torch.Size | None) -> dict[str, Any]:
        """What a wrapper needs to be captured: where it keeps a batch of this size at most."""
        if table_size is None:
            return {}

        def buffer(numel: int) -> torch.Tensor:
            return torch.zeros(numel, dtype=torch.int32, device=self.shape.device)

        return {
            "use_cuda_graph": True,
            "paged_kv_indptr_buffer": buffer(table_size[0] + 1),
            "paged_kv_indices_buffer": buffer(table_size.numel()),
            "paged_kv_last_page_len_buffer": buffer(table_size[0]),
        }

    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        wrapper, query = self._wrapper(spec), q.to(self.shape.dtype)
        result = out if out.dtype == query.dtype else torch.empty_like(query)
        if spec.sinks is None:
            wrapper.run(query, kv_layer, out=result)
        else:
            _, lse = wrapper.run(query, kv_layer, out=result, return_lse=True)  # in base 2
            result = with_sinks(result, lse * math.log(2), spec.sinks)
        if result is not out:
            out.copy_(result)
