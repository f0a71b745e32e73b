"""Steps as CUDA graphs: one launch where the model has hundreds.

A graph serves every step of its kind: whatever changes from step to step lies in static buffers
that it reads, and attention is planned outside it. Steps that have no graph run as they would
without any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.flashinfer_prefill import (
    FlashInferPrefill,
    PagedPrefill,
    StaticPrefill,
)
from pkvchat.kernels.attention.step import StepAttention
from pkvchat.kernels.attention.strategy import Strategy
from pkvchat.kernels.products.routed import FEW_ROWS
from pkvchat.models.causal_lm import CausalLM

from .graph_inputs import Prompt, StepInputs
from .graph_pool import Graph, GraphPool
from .in_flight import Sampled
from .memory import human
from .sequence import Sequence

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # decode rows; other numbers are padded
SIZES = (16, 32, 64, 128, 256, 512)  # all rows of a step with a prompt, padded likewise
_IN_USE = 256  # steps, within which graphs are taken to be needed again


@dataclass(frozen=True)
class Kind:
    """The steps that one graph serves.

    rows: that decode, 0 for none. strategy: theirs. chunk: prompt tokens, 0 for none.
    """

    rows: int
    strategy: Strategy | None
    chunk: int

    @property
    def size(self) -> int:
        """All rows."""
        return self.rows + self.chunk


class StepGraphs:
    """Captures each kind of step at its second one; the first runs as it is, and loads kernels.

    That one token is 10 to 25 ms late. Not in a thread beside the steps: a strategy holds one plan,
    which the next step would change between two layers of a capture, and both want Python's lock.
    """

    def __init__(
        self,
        model: CausalLM,
        shape: AttentionShape,
        kv_layers: list[torch.Tensor],
        max_pages: int,
        notify: Callable[[str], None],
        prefill: FlashInferPrefill | None = None,
    ) -> None:
        """max_pages: of one sequence, at most. notify: takes a line that a person should know.

        prefill: reads prompts; None leaves steps with a prompt to others.
        """
        self.model, self.shape, self.kv_layers = model, shape, kv_layers
        self.pool = GraphPool(shape.device)
        self._max_pages = max_pages
        self._notify = notify
        self._prefill = prefill
        self._static_prefills: dict[int, StaticPrefill] = {}  # by size
        self._inputs: dict[tuple[int, int], StepInputs] = {}  # by decode rows and chunk
        self._graphs: dict[Kind, Graph] = {}
        self._seen: set[Kind] = set()
        self._without: set[Kind] = set()  # there was no memory for these
        self._steps = 0
        self._dropped = 0  # the step at which all graphs were
        # Experts for more rows are called by the host, which must know which.
        self._most_rows = FEW_ROWS if model.config.experts else SIZES[-1]

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def most_rows(self) -> int:
        """Of a step that reads a prompt; 0 where no graph does."""
        return self._most_rows if self._prefill is not None else 0

    def kind(self, strategy: Strategy | None, num_decodes: int, num_tokens: int = 0) -> Kind | None:
        """Of a step with so many decode rows and tokens of one prompt.

        None where it can have no graph.
        """
        if num_decodes > min(BUCKETS[-1], self._most_rows):
            return None
        if strategy is not None and not strategy.capturable:
            return None
        rows = padded(num_decodes) if num_decodes else 0
        if not num_tokens:
            return Kind(rows, strategy, 0)
        size = next((size for size in SIZES if size >= rows + num_tokens), 0)
        return Kind(rows, strategy, size - rows) if 0 < size <= self.most_rows else None

    def is_new(self, kind: Kind) -> bool:
        """No step of it has been prepared yet."""
        return kind not in self._seen

    def clear(self) -> None:
        """Give all memory back; nothing is captured any more."""
        self._most_rows = 0
        self._drop()
        self._inputs.clear()
        self._static_prefills.clear()

    def prepare(
        self,
        kind: Kind,
        decodes: list[Sequence],
        num_splits: int = 1,
        former: Sampled | None = None,
        prompt: Prompt | None = None,
    ) -> Callable[[], torch.Tensor]:
        """Bring the inputs of a step of this kind to the device.

        What is returned enqueues it and gives its logits, float32, which the next step overwrites:
        [decodes, vocab] and, last, those after the prompt's last token. former: where pending
        tokens are.
        """
        self._steps += 1
        key = kind.rows, kind.chunk
        if key not in self._inputs:
            self._inputs[key] = StepInputs(*key, self._max_pages, self.shape.device)
        inputs = self._inputs[key]
        chunk = inputs.write(decodes, prompt, self.shape.page_size, former)
        graph = self._graph(kind, inputs, num_splits)
        prefill: PagedPrefill | None = None
        num_rows = kind.rows
        if chunk is not None:
            prefill = self._prefill if graph is None else self._static_prefill(kind)
            assert prefill is not None, "without it, no prompt is covered"
            prefill.plan([chunk])
            num_rows += chunk.num_tokens
        num_logits = len(decodes) + (chunk is not None)

        def forward() -> torch.Tensor:
            if graph is None:
                return self._forward(inputs, kind.strategy, prefill, num_rows)[:num_logits]
            graph.replay()
            return graph.result[:num_logits]

        return forward

    def _graph(self, kind: Kind, inputs: StepInputs, num_splits: int) -> Graph | None:
        """Have the strategy plan. None where the step has no graph yet, or never will."""

        def plan() -> None:
            if kind.strategy is not None and inputs.batch is not None:
                kind.strategy.plan(inputs.batch, num_splits)

        plan()
        if kind not in self._graphs and kind in self._seen - self._without:
            self._capture(kind, inputs)
            if kind not in self._graphs:
                plan()  # what a capture that failed has planned was never run
        self._seen.add(kind)
        return self._graphs.get(kind)

    def _capture(self, kind: Kind, inputs: StepInputs) -> None:
        """Where others have filled the budget, all begin anew with those that are in use now."""
        prefill = None
        if kind.chunk:
            prefill = self._static_prefill(kind)
            prefill.rehearse(kind.chunk)
        forward = partial(self._forward, inputs, kind.strategy, prefill, kind.size)
        try:
            graph = self.pool.capture(forward)
        except torch.OutOfMemoryError:
            self._go_without(kind, "there is no memory left; a smaller --kv-memory leaves more")
            return
        if graph is not None:
            self._graphs[kind] = graph
        elif self._graphs and self._steps - self._dropped > _IN_USE:
            self._drop()
        else:
            why = f"others fill the {human(self.pool.budget)} that graphs may take"
            self._go_without(kind, why)

    def _drop(self) -> None:
        self._graphs.clear()
        torch.cuda.empty_cache()
        self._dropped = self._steps

    def _go_without(self, kind: Kind, why: str) -> None:
        self._without.add(kind)
        if kind.strategy is not None and not kind.chunk:  # else nobody would notice
            self._notify(
                f"{kind.rows} rows with {kind.strategy.name} run without a CUDA graph, more "
                f"slowly: {why}"
            )

    def _static_prefill(self, kind: Kind) -> StaticPrefill:
        """One for all kinds of a size: they differ in how much of it is the chunk."""
        assert self._prefill is not None, "without it, no prompt is covered"
        if kind.size not in self._static_prefills:
            self._static_prefills[kind.size] = self._prefill.static(kind.size, self._max_pages)
        return self._static_prefills[kind.size]

    def _forward(
        self,
        inputs: StepInputs,
        strategy: Strategy | None,
        prefill: PagedPrefill | None,
        num_rows: int,
    ) -> torch.Tensor:
        """Of the first ``num_rows`` rows. prefill: has planned for the chunk."""
        attend = StepAttention(
            self.kv_layers,
            self.model.layer_specs,
            inputs.slot_mapping[:num_rows],
            inputs.batch,
            strategy,
            paged=prefill,
        )
        token_ids, positions = inputs.token_ids[:num_rows], inputs.positions[:num_rows]
        return self.model.forward(token_ids, positions, attend, inputs.logit_rows)


def padded(num_rows: int) -> int:
    """Decode rows that a graph for ``num_rows`` has, where there is one."""
    return next((size for size in BUCKETS if size >= num_rows), num_rows)
