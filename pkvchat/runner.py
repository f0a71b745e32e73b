"""Turns a schedule into tensors, runs the model once, returns the logits rows to sample from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pkvchat.kernels.batch import AttentionShape, DecodeBatch, PrefillChunk
from pkvchat.kernels.kv import allocate_kv, copy_pages
from pkvchat.kernels.policy import Decision, Policy
from pkvchat.kernels.registry import create_strategy
from pkvchat.kernels.step import StepAttention
from pkvchat.kernels.strategy import Strategy
from pkvchat.models.causal_lm import CausalLM

from .graph_runner import DecodeGraphs
from .scheduler import Schedule
from .sequence import Sequence


@dataclass
class StepResult:
    """logits: [R, vocab_size] float32, a row for each of ``sampled``; decision: for the decodes."""

    logits: torch.Tensor
    sampled: list[Sequence]
    decision: Decision | None


class ModelRunner:
    """Owns the KV cache and the strategies; keeps no state of any sequence."""

    def __init__(
        self, model: CausalLM, shape: AttentionShape, num_pages: int, policy: Policy
    ) -> None:
        self.model = model
        self.shape = shape
        self.policy = policy
        self.kv_layers = allocate_kv(model.config.num_layers, num_pages, shape)
        self._strategies: dict[str, Strategy] = {}
        longest = -(-model.config.context_length // shape.page_size)
        self._graphs = (
            DecodeGraphs(model, shape, self.kv_layers, min(num_pages, longest))
            if shape.device.type == "cuda"
            else None
        )

    @torch.inference_mode()
    def run(self, schedule: Schedule) -> StepResult:
        """One forward pass; the sequences' ``num_cached`` is the caller's to advance."""
        decision = self._choose(schedule.decodes)
        if self._graphs and decision and not schedule.prefills:
            strategy = self._strategy(decision.strategy)
            if self._graphs.covers(strategy, len(schedule.decodes)):
                logits = self._graphs.run(schedule.decodes, strategy, decision.num_splits)
                return StepResult(logits, schedule.decodes, decision)
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        sampled: list[Sequence] = []
        work = [(seq, 1) for seq in schedule.decodes] + schedule.prefills
        for seq, count in work:
            start, end = seq.num_cached, seq.num_cached + count
            tokens += seq.tokens[start:end]
            positions += range(start, end)
            slots += self._slots(seq, start, end)
            if end == len(seq.tokens):
                logit_rows.append(len(tokens) - 1)
                sampled.append(seq)
        slot_mapping = self._tensor(slots)
        decode = self._plan(schedule.decodes, decision, slot_mapping) if decision else None
        attend = StepAttention(
            self.kv_layers,
            self.model.layer_specs,
            slot_mapping,
            decode,
            self._strategy(decision.strategy) if decision else None,
            [self._chunk(seq, count) for seq, count in schedule.prefills],
        )
        logits = self.model.forward(
            self._tensor(tokens), self._tensor(positions), attend, self._tensor(logit_rows)
        )
        return StepResult(logits, sampled, decision)

    def copy_page(self, source: int, target: int) -> None:
        copy_pages(self.kv_layers, [source], [target])

    def _choose(self, decodes: list[Sequence]) -> Decision | None:
        return self.policy.choose(tuple(len(seq.tokens) for seq in decodes)) if decodes else None

    def _plan(
        self, decodes: list[Sequence], decision: Decision, slot_mapping: torch.Tensor
    ) -> DecodeBatch:
        lengths = tuple(len(seq.tokens) for seq in decodes)
        width = max(len(seq.pages) for seq in decodes)
        table = [seq.pages + [0] * (width - len(seq.pages)) for seq in decodes]
        batch = DecodeBatch(
            block_table=self._tensor(table, torch.int32),
            seq_lens=self._tensor(lengths, torch.int32),
            slot_mapping=slot_mapping[: len(decodes)],
            lengths=lengths,
        )
        self._strategy(decision.strategy).plan(batch, decision.num_splits)
        return batch

    def _chunk(self, seq: Sequence, count: int) -> PrefillChunk:
        end = seq.num_cached + count
        num_pages = -(-end // self.shape.page_size)
        return PrefillChunk(self._tensor(seq.pages[:num_pages], torch.int32), end, count)

    def _slots(self, seq: Sequence, start: int, end: int) -> list[int]:
        size = self.shape.page_size
        return [seq.pages[i // size] * size + i % size for i in range(start, end)]

    def _strategy(self, name: str) -> Strategy:
        if name not in self._strategies:
            self._strategies[name] = create_strategy(name, self.shape)
        return self._strategies[name]

    def _tensor(self, values: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.shape.device)
