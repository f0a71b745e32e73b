"""FlashInfer's paged prefill: all chunks of a step in one causal call a layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from .batch import AttentionShape, LayerSpec, PrefillChunk
from .flashinfer import load_flashinfer, why_not_built
from .strategy import StrategyUnavailable

_WORKSPACE_BYTES = 128 << 20  # FlashInfer's own recommendation, which large groups exceed
_PLAN_BYTES = 1 << 20  # of a graph, which is for some hundred rows


class PagedPrefill:
    """BatchPrefillWithPagedKVCacheWrapper over HND pages; planned on the host once per step."""

    def __init__(self, shape: AttentionShape, wrappers: Mapping[LayerSpec, Any]) -> None:
        self.shape = shape
        self._wrappers = wrappers

    def plan(self, chunks: Sequence[PrefillChunk]) -> None:
        """What the layers of a step share."""
        shape, page_size = self.shape, self.shape.page_size
        pages = [-(-chunk.context_len // page_size) for chunk in chunks]
        tables = [chunk.block_table[:n] for chunk, n in zip(chunks, pages, strict=True)]
        indices, kv_indptr = torch.cat(tables), _indptr(pages)
        last = [(chunk.context_len - 1) % page_size + 1 for chunk in chunks]
        last_page_len = torch.tensor(last, dtype=torch.int32)
        qo_indptr = _indptr([chunk.num_tokens for chunk in chunks])
        for spec, wrapper in self._wrappers.items():
            wrapper.plan(
                qo_indptr,
                kv_indptr,
                indices,
                last_page_len,
                shape.num_qo_heads,
                shape.num_kv_heads,
                shape.head_dim,
                page_size,
                causal=True,
                window_left=spec.window - 1,  # keys to the left of the query's own; -1 means all
                logits_soft_cap=spec.softcap,
                q_data_type=shape.dtype,
                kv_data_type=shape.kv_dtype,
                sm_scale=spec.scale,
            )

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        """q, out: [tokens of all chunks, num_qo_heads, head_dim]; kv_layer: see ``batch``."""
        result = out if out.dtype == self.shape.dtype else out.to(self.shape.dtype)
        self._wrappers[spec].run(q.to(self.shape.dtype).contiguous(), kv_layer, out=result)
        if result is not out:
            out.copy_(result)

    def _run_on_scratch(self, num_tokens: int) -> None:
        """Read a chunk whose tokens are all in page 0, which loads the kernels."""
        shape = self.shape
        size = (1, 2, shape.num_kv_heads, shape.page_size, shape.head_dim)
        kv_layer = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        q = kv_layer.new_zeros(num_tokens, shape.num_qo_heads, shape.head_dim)
        self._plan_scratch(num_tokens)
        for spec in self._wrappers:
            self.run(q, kv_layer, torch.empty_like(q), spec)

    def _plan_scratch(self, num_tokens: int) -> None:
        num_pages = -(-num_tokens // self.shape.page_size)
        table = torch.zeros(num_pages, dtype=torch.int32, device=self.shape.device)
        self.plan([PrefillChunk(table, num_tokens, num_tokens)])


class FlashInferPrefill(PagedPrefill):
    """Any number of chunks of any size.

    FlashInfer compiles its kernels when first used and caches them, so the construction for a new
    shape can take a minute. Its FlashAttention-2 kernels are those that decoding with tensor cores
    has compiled anyway; those of FlashAttention-3 took several minutes more.
    """

    def __init__(self, shape: AttentionShape, specs: Iterable[LayerSpec]) -> None:
        """specs: of the layers. Raises StrategyUnavailable."""
        kinds = dict.fromkeys(specs)
        if any(spec.sinks is not None for spec in kinds):
            raise StrategyUnavailable("flashinfer's prefill has no attention sinks")
        self._wrapper: Any = load_flashinfer(shape).BatchPrefillWithPagedKVCacheWrapper
        nbytes = max(_WORKSPACE_BYTES, _partial_bytes(shape))
        self._workspace = torch.empty(nbytes, dtype=torch.uint8, device=shape.device)
        wrappers = {spec: self._wrapper(self._workspace, "HND", backend="fa2") for spec in kinds}
        super().__init__(shape, wrappers)
        try:
            self._run_on_scratch(1)
            torch.cuda.synchronize(shape.device)
        except Exception as error:
            raise why_not_built(error) from error

    def static(self, num_tokens: int, max_pages: int) -> StaticPrefill:
        """For one chunk of up to ``num_tokens``, of a sequence of up to ``max_pages`` pages.

        It takes this one's workspace: both are to run in one stream.
        """
        num_pages = max(max_pages, -(-num_tokens // self.shape.page_size))
        wrappers = {spec: self._static_wrapper(num_pages) for spec in self._wrappers}
        return StaticPrefill(self.shape, wrappers, num_tokens)

    def _static_wrapper(self, num_pages: int) -> Any:
        def buffer(numel: int) -> torch.Tensor:
            return torch.zeros(numel, dtype=torch.int32, device=self.shape.device)

        wrapper = self._wrapper(
            self._workspace,
            "HND",
            backend="fa2",
            use_cuda_graph=True,
            qo_indptr_buf=buffer(2),
            paged_kv_indptr_buf=buffer(2),
            paged_kv_indices_buf=buffer(num_pages),
            paged_kv_last_page_len_buf=buffer(1),
        )
        plan = torch.empty(_PLAN_BYTES, dtype=torch.uint8, device=self.shape.device)
        wrapper.reset_workspace_buffer(self._workspace, plan)
        return wrapper


class StaticPrefill(PagedPrefill):
    """Its ``run`` may be captured into a CUDA graph, and replays follow each later ``plan``.

    It is captured after ``rehearse``. A chunk may be shorter: what comes out for the rows past its
    end means nothing.
    """

    def __init__(
        self, shape: AttentionShape, wrappers: Mapping[LayerSpec, Any], num_tokens: int
    ) -> None:
        """num_tokens: at most; FlashInfer keeps to the size of its first plan."""
        super().__init__(shape, wrappers)
        self._run_on_scratch(num_tokens)

    def rehearse(self, num_tokens: int) -> None:
        """Plan for a chunk of the size that is about to be captured."""
        self._plan_scratch(num_tokens)


def _partial_bytes(shape: AttentionShape) -> int:
    """What FlashInfer's programs, two a multiprocessor, take for partial results at most."""
    sms = torch.cuda.get_device_properties(shape.device).multi_processor_count
    programs = 2 * sms // shape.num_kv_heads
    tile = 128 if shape.head_dim < 256 else 64
    return shape.num_qo_heads * max(1, programs) * tile * (shape.head_dim + 1) * 4 + (1 << 20)


def _indptr(counts: Sequence[int]) -> torch.Tensor:
    """[len(counts) + 1] int32 on the host: where each one's part begins, and the end."""
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)


def create_prefill(shape: AttentionShape, specs: Iterable[LayerSpec]) -> FlashInferPrefill | None:
    """None where FlashInfer cannot run: ``prefill.PrefillAttention`` then reads each chunk."""
    if shape.device.type != "cuda":
        return None
    try:
        return FlashInferPrefill(shape, specs)
    except StrategyUnavailable:
        return None
