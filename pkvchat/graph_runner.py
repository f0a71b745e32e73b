"""Decode steps as CUDA graphs: one launch where the model has hundreds.

A graph serves every step of its number of rows and its strategy: whatever changes from step to step
lies in static buffers that it reads, and a strategy plans outside it. Steps with a strategy that
cannot be captured run as they would without graphs.
"""

from __future__ import annotations

import numpy as np
import torch

from pkvchat.kernels.batch import AttentionShape, DecodeBatch
from pkvchat.kernels.step import StepAttention
from pkvchat.kernels.strategy import Strategy
from pkvchat.models.causal_lm import CausalLM

from .sequence import Sequence

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # rows a graph is made for; others are padded


class _Inputs:
    """What one bucket's graphs read, on the device."""

    def __init__(self, rows: int, max_pages: int, device: torch.device) -> None:
        size = 4, rows + rows % 2  # each vector begins at 16 bytes, as kernels like it
        self._numbers = torch.zeros(size, dtype=torch.int64, device=device)
        self._pinned = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._host = self._pinned.numpy()
        self._host_lens = self._host[3].view(np.int32)[:rows]
        self._written: list[list[int]] = [[] for _ in range(rows)]  # pages of the table's rows
        self.token_ids, self.positions, slot_mapping, lengths = self._numbers[:, :rows]
        self.logit_rows = torch.arange(rows, device=device)
        self.batch = DecodeBatch(
            block_table=torch.zeros(rows, max_pages, dtype=torch.int32, device=device),
            seq_lens=lengths.view(torch.int32)[:rows],  # so that one copy brings all four
            slot_mapping=slot_mapping,
            lengths=(0,) * rows,
            static=True,
        )

    def write(self, sequences: list[Sequence], page_size: int) -> None:
        """Rows past the last are empty, and write to the scratch page.

        The pinned copy may be overwritten: a step's tokens are read before the next one begins.
        """
        lengths = [0] * len(self._written)
        self._host[:3, len(sequences) :] = 0
        for row, seq in enumerate(sequences):
            position = seq.num_cached
            page, offset = divmod(position, page_size)
            slot = seq.pages[page] * page_size + offset
            self._host[:3, row] = seq.tokens[position], position, slot
            lengths[row] = len(seq.tokens)
        self._host_lens[:] = lengths
        self._numbers.copy_(self._pinned, non_blocking=True)
        self.batch.lengths = tuple(lengths)
        for row, seq in enumerate(sequences):
            self._write_pages(row, seq.pages)

    def _write_pages(self, row: int, pages: list[int]) -> None:
        """Most steps have no new page, and of one that grows only the new ones are written."""
        written = self._written[row]
        if written == pages:
            return
        start = len(written) if written == pages[: len(written)] else 0
        new = torch.tensor(pages[start:], dtype=torch.int32)
        self.batch.block_table[row, start : len(pages)] = new.to(self.batch.block_table.device)
        self._written[row] = list(pages)


class DecodeGraphs:
    """Captures each (bucket, strategy) after its first step, which runs as it is."""

    def __init__(
        self,
        model: CausalLM,
        shape: AttentionShape,
        kv_layers: list[torch.Tensor],
        max_pages: int,
    ) -> None:
        """max_pages: of one sequence, at most."""
        self.model, self.shape, self.kv_layers = model, shape, kv_layers
        self._max_pages = max_pages
        self._pool = torch.cuda.graph_pool_handle()
        self._inputs: dict[int, _Inputs] = {}
        self._graphs: dict[tuple[int, str], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self.enabled = model.config.experts is None  # routing reads its choice back on the host

    def covers(self, strategy: Strategy, num_rows: int) -> bool:
        return self.enabled and strategy.capturable and num_rows <= BUCKETS[-1]

    def run(self, sequences: list[Sequence], strategy: Strategy, num_splits: int) -> torch.Tensor:
        """One decode step that ``covers`` allows; returns logits [sequences, vocab] float32.

        The next step overwrites them.
        """
        bucket = next(size for size in BUCKETS if size >= len(sequences))
        if bucket not in self._inputs:
            self._inputs[bucket] = _Inputs(bucket, self._max_pages, self.shape.device)
        inputs = self._inputs[bucket]
        inputs.write(sequences, self.shape.page_size)
        strategy.plan(inputs.batch, num_splits)
        key = bucket, strategy.name
        if key in self._graphs:
            graph, logits = self._graphs[key]
            graph.replay()
        else:
            logits = self._forward(inputs, strategy)
            self._capture(key, inputs, strategy, num_splits)
        return logits[: len(sequences)]

    def _capture(
        self, key: tuple[int, str], inputs: _Inputs, strategy: Strategy, num_splits: int
    ) -> None:
        torch.cuda.synchronize(self.shape.device)
        strategy.plan(inputs.batch, num_splits)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                logits = self._forward(inputs, strategy)
        except torch.OutOfMemoryError:
            self.enabled = False
            return
        self._graphs[key] = graph, logits

    def _forward(self, inputs: _Inputs, strategy: Strategy) -> torch.Tensor:
        attend = StepAttention(
            self.kv_layers,
            self.model.layer_specs,
            inputs.batch.slot_mapping,
            inputs.batch,
            strategy,
        )
        return self.model.forward(inputs.token_ids, inputs.positions, attend, inputs.logit_rows)
