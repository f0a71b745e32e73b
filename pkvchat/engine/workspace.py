"""What a model's steps take of a device beside weights and KV: measured, by running some.

It also compiles the kernels that answers would otherwise wait for.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, PrefillChunk
from pkvchat.kernels.attention.kv import allocate_kv
from pkvchat.kernels.attention.qkv import HeadNorm, Rotation
from pkvchat.kernels.attention.step import StepAttention
from pkvchat.kernels.attention.strategy import Strategy
from pkvchat.models.causal_lm import CausalLM

from .attention_kernels import AttentionKernels
from .graph_runner import BUCKETS

CHUNKS = (4096, 2048, 1024, 512, 256, 128)  # prompt tokens in a step, the most to choose first
CHUNK_PART = 10  # of the free memory, that reading one may take
_ROWS = (1, 2, 4, 8, 16, 32, 64, CHUNKS[-1])  # between two of them, products have one kernel


class Workspace:
    """Runs steps whose KV all lies in one page, on CUDA. What they compute means nothing."""

    def __init__(
        self, model: CausalLM, shape: AttentionShape, kernels: AttentionKernels, context: int
    ) -> None:
        self.model, self.shape, self.kernels, self.context = model, shape, kernels, context
        self._kv_layers = allocate_kv(model.config.num_layers, 1, shape)

    def compile(self) -> None:
        """Compile all that steps need; what was compiled once is found on disk.

        The compiler works in several threads. Raises torch.OutOfMemoryError.
        """
        work = [partial(self._multiply, rows) for rows in _ROWS]
        work += [partial(self._decode_any, each) for each in self.kernels.strategies.values()]
        with ThreadPoolExecutor(len(work)) as pool:
            for done in [pool.submit(part) for part in work]:
                done.result()

    def choose_chunk(self, free: int) -> tuple[int, int]:
        """The largest of CHUNKS that leaves enough of ``free`` bytes, and the bytes that it takes.

        Two small ones are run, and tell what a token takes. Raises torch.OutOfMemoryError.
        """
        small, large = CHUNKS[-1], CHUNKS[-2]
        base = self.prefill(small)
        per_token = max(0, self.prefill(large) - base) / (large - small)
        for chunk in CHUNKS:
            nbytes = int(base + per_token * (chunk - small))
            if nbytes <= free // CHUNK_PART or chunk == small:
                break
        return chunk, nbytes

    def prefill(self, num_tokens: int) -> int:
        """Bytes that the last chunk of a full context takes at most."""
        num_tokens = min(num_tokens, self.context)
        pages = self._zeros(-(-self.context // self.shape.page_size), torch.int32)
        chunk = PrefillChunk(pages, self.context, num_tokens)
        return self._run(num_tokens, None, None, [chunk])

    def decode(self, strategy: Strategy) -> int:
        """Bytes that a step of one row takes at most."""
        batch = self._batch(1)
        strategy.plan(batch, 1)
        return self._run(1, batch, strategy, [])

    @torch.inference_mode()
    def _multiply(self, num_rows: int) -> None:
        """Run the model without attention, whose plans no two threads could share."""
        num_heads = self.shape.num_qo_heads

        def attend(
            layer: int,  # noqa: ARG001
            qkv: torch.Tensor,
            rotation: Rotation | None,  # noqa: ARG001
            norm: HeadNorm | None,  # noqa: ARG001
        ) -> torch.Tensor:
            return qkv[:, :num_heads].contiguous()

        torch.cuda.set_device(self.shape.device)  # each thread has its own
        ids = self._zeros(num_rows)
        self.model.forward(ids, ids, attend, torch.arange(num_rows, device=self.shape.device))

    @torch.inference_mode()
    def _decode_any(self, strategy: Strategy) -> None:
        """Attention alone, over each number of rows that a graph may have."""
        shape = self.shape
        torch.cuda.set_device(shape.device)
        for rows in BUCKETS:
            strategy.plan(self._batch(rows), 1)
            size = rows, shape.num_qo_heads, shape.head_dim
            q = torch.zeros(size, dtype=self.model.dtype, device=shape.device)
            for spec in dict.fromkeys(self.model.layer_specs):
                for _ in range(2):  # a first layer may be launched in another way
                    strategy.run(q, self._kv_layers[0], torch.empty_like(q), spec)

    def _batch(self, rows: int) -> DecodeBatch:
        """Of sequences of one token."""
        ones = self._zeros(rows, torch.int32) + 1
        table = self._zeros(rows, torch.int32)[:, None]
        return DecodeBatch(table, ones, self._zeros(rows), (1,) * rows)

    @torch.inference_mode()
    def _run(
        self,
        num_tokens: int,
        decode: DecodeBatch | None,
        strategy: Strategy | None,
        chunks: list[PrefillChunk],
    ) -> int:
        device = self.shape.device
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        ids, last = self._zeros(num_tokens), self._zeros(1)
        attend = StepAttention(
            self._kv_layers,
            self.model.layer_specs,
            ids,
            decode,
            strategy,
            *self.kernels.planned(chunks),
        )
        self.model.forward(ids, ids, attend, last)
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before

    def _zeros(self, count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype, device=self.shape.device)
