"""Decode steps as CUDA graphs: one launch where the model has hundreds.

A graph serves every step of its number of rows and its strategy: whatever changes from step to step
lies in static buffers that it reads. Only strategies whose plan comes from those buffers alone can
be captured; the rest of the steps run as they would without graphs.
"""

from __future__ import annotations

import torch

from pkvchat.kernels.batch import AttentionShape, DecodeBatch
from pkvchat.kernels.step import StepAttention
from pkvchat.kernels.strategy import Strategy
from pkvchat.models.causal_lm import CausalLM

from .sequence import Sequence

CAPTURABLE = ("split", "workqueue")
BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # rows a graph is made for; others are padded


class _Inputs:
    """What one bucket's graphs read, on the device."""

    def __init__(self, rows: int, max_pages: int, device: torch.device) -> None:
        self._numbers = torch.zeros(4, rows, dtype=torch.int64, device=device)
        self._host = torch.zeros(4, rows, dtype=torch.int64, pin_memory=True)
        self._written: list[list[int]] = [[]] * rows  # pages of each row of the table
        self.token_ids, self.positions, slot_mapping, self._lengths = self._numbers
        self.logit_rows = torch.arange(rows, device=device)
        self.batch = DecodeBatch(
            block_table=torch.zeros(rows, max_pages, dtype=torch.int32, device=device),
            seq_lens=torch.zeros(rows, dtype=torch.int32, device=device),
            slot_mapping=slot_mapping,
            lengths=(0,) * rows,
        )

    def write(self, sequences: list[Sequence], page_size: int) -> None:
        """Rows past the last are empty, and write to the scratch page.

        The pinned copy may be overwritten: a step's tokens are read before the next one begins.
        """
        columns = []
        for seq in sequences:
            page, offset = divmod(seq.num_cached, page_size)
            slot = seq.pages[page] * page_size + offset
            columns.append((seq.tokens[seq.num_cached], seq.num_cached, slot, len(seq.tokens)))
        columns += [(0, 0, 0, 0)] * (len(self._written) - len(sequences))
        self._host.copy_(torch.tensor(columns).T)
        self._numbers.copy_(self._host, non_blocking=True)
        self.batch.seq_lens.copy_(self._lengths)
        self.batch.lengths = tuple(column[3] for column in columns)
        for row, seq in enumerate(sequences):
            if self._written[row] != seq.pages:
                pages = torch.tensor(seq.pages, dtype=torch.int32)
                self.batch.block_table[row, : len(pages)] = pages.to(self.logit_rows.device)
                self._written[row] = list(seq.pages)


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
        return self.enabled and strategy.name in CAPTURABLE and num_rows <= BUCKETS[-1]

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
