"""Decode steps as CUDA graphs: one launch where the model has hundreds.

A graph serves every step of its number of rows and its strategy: whatever changes from step to step
lies in static buffers that it reads, and a strategy plans outside it. Each graph has memory of its
own, so that dropping it gives that back. Steps that have no graph run as they would without any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from pkvchat.kernels.batch import AttentionShape, DecodeBatch
from pkvchat.kernels.routed import FEW_ROWS
from pkvchat.kernels.step import StepAttention
from pkvchat.kernels.strategy import Strategy
from pkvchat.models.causal_lm import CausalLM

from .in_flight import Sampled
from .memory import graph_memory, human
from .sequence import Sequence
from .upload import upload

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # rows a graph is made for; others are padded
_IN_USE = 256  # steps since a graph's last one, within which no other takes its memory


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

    def write(
        self, sequences: list[Sequence], page_size: int, former: Sampled | None = None
    ) -> None:
        """Rows past the last are empty, and write to the scratch page.

        former: where pending tokens are. The device must have got the inputs of the step before.
        """
        lengths = [0] * len(self._written)
        self._host[:3, len(sequences) :] = 0
        for row, seq in enumerate(sequences):
            position = seq.num_cached
            page, offset = divmod(position, page_size)
            slot = seq.pages[page] * page_size + offset
            token = 0 if seq.num_pending else seq.tokens[position]
            self._host[:3, row] = token, position, slot
            lengths[row] = seq.num_tokens
        self._host_lens[:] = lengths
        self._numbers.copy_(self._pinned, non_blocking=True)
        if former is not None:
            former.fill(self.token_ids, sequences)
        self.batch.lengths = tuple(lengths)
        for row, seq in enumerate(sequences):
            self._write_pages(row, seq.pages)

    def _write_pages(self, row: int, pages: list[int]) -> None:
        """Most steps have no new page, and of one that grows only the new ones are written."""
        written = self._written[row]
        if written == pages:
            return
        start = len(written) if written == pages[: len(written)] else 0
        table = self.batch.block_table
        table[row, start : len(pages)] = upload(pages[start:], table.device, torch.int32)
        self._written[row] = list(pages)


@dataclass
class _Graph:
    """logits: what a replay computes. nbytes: what it holds. last_step: when it ran."""

    replay: torch.cuda.CUDAGraph
    logits: torch.Tensor
    nbytes: int
    last_step: int


class DecodeGraphs:
    """Captures each (bucket, strategy) after its first step, which runs as it is."""

    def __init__(
        self,
        model: CausalLM,
        shape: AttentionShape,
        kv_layers: list[torch.Tensor],
        max_pages: int,
        notify: Callable[[str], None],
    ) -> None:
        """max_pages: of one sequence, at most. notify: takes a line that a person should know."""
        self.model, self.shape, self.kv_layers = model, shape, kv_layers
        self.budget = graph_memory(shape.device)
        self._max_pages = max_pages
        self._notify = notify
        self._inputs: dict[int, _Inputs] = {}
        self._graphs: dict[tuple[int, str], _Graph] = {}
        self._without: set[tuple[int, str]] = set()  # there was no memory for these
        self._steps = 0
        # Experts for more rows are called by the host, which must know which.
        self._most_rows = FEW_ROWS if model.config.experts else BUCKETS[-1]

    def __len__(self) -> int:
        return len(self._graphs)

    def covers(self, strategy: Strategy, num_rows: int) -> bool:
        return strategy.capturable and num_rows <= self._most_rows

    def clear(self) -> None:
        """Give all memory back; nothing is captured any more."""
        self._most_rows = 0
        self._graphs.clear()
        self._inputs.clear()

    def prepare(
        self,
        sequences: list[Sequence],
        strategy: Strategy,
        num_splits: int,
        former: Sampled | None = None,
    ) -> Callable[[], torch.Tensor]:
        """Bring the inputs of a decode step that ``covers`` allows to the device.

        What is returned enqueues it and gives its logits, [sequences, vocab] float32, which the
        next step overwrites. former: where pending tokens are.
        """
        bucket = next(size for size in BUCKETS if size >= len(sequences))
        if bucket not in self._inputs:
            self._inputs[bucket] = _Inputs(bucket, self._max_pages, self.shape.device)
        inputs = self._inputs[bucket]
        inputs.write(sequences, self.shape.page_size, former)
        strategy.plan(inputs.batch, num_splits)
        self._steps += 1

        def forward() -> torch.Tensor:
            return self._run((bucket, strategy.name), inputs, strategy, num_splits)[
                : len(sequences)
            ]

        return forward

    def _run(
        self, key: tuple[int, str], inputs: _Inputs, strategy: Strategy, num_splits: int
    ) -> torch.Tensor:
        graph = self._graphs.get(key)
        if graph is not None:
            graph.last_step = self._steps
            graph.replay.replay()
            return graph.logits
        logits = self._forward(inputs, strategy)
        if key not in self._without:
            self._capture(key, inputs, strategy, num_splits)
        return logits

    def _capture(
        self, key: tuple[int, str], inputs: _Inputs, strategy: Strategy, num_splits: int
    ) -> None:
        device = self.shape.device
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        strategy.plan(inputs.batch, num_splits)
        free, _ = torch.cuda.mem_get_info(device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                logits = self._forward(inputs, strategy)
        except torch.OutOfMemoryError:
            self._go_without(key, "there is no memory left; a smaller --kv-memory leaves more")
            return
        nbytes = max(0, free - torch.cuda.mem_get_info(device)[0])
        if self._make_room(nbytes):
            self._graphs[key] = _Graph(graph, logits, nbytes, self._steps)
        else:
            self._go_without(key, f"others fill the {human(self.budget)} that graphs may take")

    def _make_room(self, nbytes: int) -> bool:
        """Drop graphs, least recently used first, until the budget has room for ``nbytes``."""
        while sum(graph.nbytes for graph in self._graphs.values()) + nbytes > self.budget:
            key = min(self._graphs, key=lambda key: self._graphs[key].last_step, default=None)
            if key is None or self._steps - self._graphs[key].last_step < _IN_USE:
                return False
            del self._graphs[key]
        return True

    def _go_without(self, key: tuple[int, str], why: str) -> None:
        self._without.add(key)
        rows, strategy = key
        self._notify(f"{rows} rows with {strategy} run without a CUDA graph, more slowly: {why}")

    def _forward(self, inputs: _Inputs, strategy: Strategy) -> torch.Tensor:
        attend = StepAttention(
            self.kv_layers,
            self.model.layer_specs,
            inputs.batch.slot_mapping,
            inputs.batch,
            strategy,
        )
        return self.model.forward(inputs.token_ids, inputs.positions, attend, inputs.logit_rows)
