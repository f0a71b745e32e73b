"""Turns a schedule into tensors and has the model run once, without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, PrefillChunk
from pkvchat.kernels.attention.kv import allocate_kv, copy_pages
from pkvchat.kernels.attention.step import StepAttention
from pkvchat.kernels.attention.strategy import Strategy
from pkvchat.kernels.policy.policy import Decision, Policy
from pkvchat.models.causal_lm import CausalLM

from .attention_kernels import AttentionKernels
from .graph_runner import StepGraphs, padded
from .in_flight import Sampled
from .mark import Mark
from .pace import MIN_CHUNK
from .scheduler import Schedule
from .sequence import Sequence
from .upload import upload

# A step's inputs on the device: whose logits will be there, what enqueues the model's work and
# returns them, and see InFlight.usual.
_Prepared = tuple[list[Sequence], Callable[[], torch.Tensor], bool]


@dataclass
class StepResult:
    """logits: [R, vocab_size] float32, a row for each of ``sequences``; decision: for the decodes.

    launched, usual: see InFlight.
    """

    logits: torch.Tensor
    sequences: list[Sequence]
    decision: Decision | None
    launched: Mark
    usual: bool


class ModelRunner:
    """Owns the KV cache and the strategies; keeps no state of any sequence."""

    def __init__(
        self,
        model: CausalLM,
        shape: AttentionShape,
        num_pages: int,
        policy: Policy,
        notify: Callable[[str], None],
        kernels: AttentionKernels | None = None,
    ) -> None:
        """notify: takes a line that a person should know. kernels: None makes what is asked for."""
        self.model = model
        self.shape = shape
        self.policy = policy
        self.kv_layers = allocate_kv(model.config.num_layers, num_pages, shape)
        self._kernels = kernels or AttentionKernels()
        self._launched: Mark | None = None  # of the last step
        self.graphs: StepGraphs | None = None
        if shape.device.type == "cuda":
            most = min(num_pages, -(-model.config.context_length // shape.page_size))
            prefill = self._kernels.prefill
            self.graphs = StepGraphs(model, shape, self.kv_layers, most, notify, prefill)

    def room(self, size: int, num_decodes: int) -> tuple[int, int | None]:
        """How many prompt tokens a step of ``size`` rows has room for beside ``num_decodes`` that
        decode, and of how many prompts; None is any number.

        Where such a step may have a graph, they are what fits it. Size 0 has no room.
        """
        most_rows = self.graphs.most_rows if self.graphs is not None else 0
        fits = num_decodes > 0 and size <= most_rows
        tokens = size - (padded(num_decodes) if fits else num_decodes)
        return max(tokens, min(size, MIN_CHUNK)), 1 if fits else None

    @torch.inference_mode()
    def run(self, schedule: Schedule, former: Sampled | None = None) -> StepResult:
        """Enqueue one forward pass; the sequences' ``num_cached`` is the caller's to advance.

        former: where the sequences' pending tokens are.
        """
        if self._launched is not None:
            self._launched.wait()  # the host's copies of the inputs are about to be written over
        decision = self._choose(schedule.decodes)
        sequences, forward, usual = self._prepare_graph(
            schedule, decision, former
        ) or self._prepare(schedule, decision, former)
        self._launched = Mark(self.shape.device)
        return StepResult(forward(), sequences, decision, self._launched, usual)

    def _prepare(
        self, schedule: Schedule, decision: Decision | None, former: Sampled | None
    ) -> _Prepared:
        """Bring the step's inputs to the device."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        sampled: list[Sequence] = []
        for seq, count in [(seq, 1) for seq in schedule.decodes] + schedule.prefills:
            start, end = seq.num_cached, seq.num_cached + count
            tokens += seq.tokens[start:end] or [0]  # one that is pending is filled in below
            positions += range(start, end)
            slots += [seq.slot(i, self.shape.page_size) for i in range(start, end)]
            if end == seq.num_tokens:
                logit_rows.append(len(tokens) - 1)
                sampled.append(seq)
        token_ids, slot_mapping = self._upload(tokens), self._upload(slots)
        if former is not None:
            former.fill(token_ids, schedule.decodes)
        decode = self._plan(schedule.decodes, decision, slot_mapping) if decision else None
        attend = StepAttention(
            self.kv_layers,
            self.model.layer_specs,
            slot_mapping,
            decode,
            self._strategy(decision.strategy) if decision else None,
            *self._kernels.planned([self._chunk(seq, count) for seq, count in schedule.prefills]),
        )
        at, rows = self._upload(positions), self._upload(logit_rows)
        return sampled, lambda: self.model.forward(token_ids, at, attend, rows), True

    def _prepare_graph(
        self, schedule: Schedule, decision: Decision | None, former: Sampled | None
    ) -> _Prepared | None:
        """What ``_prepare`` does, for a step that may have a CUDA graph; None for others."""
        graphs, decodes, prompts = self.graphs, schedule.decodes, schedule.prefills
        if graphs is None or len(prompts) > 1:
            return None
        strategy = self._strategy(decision.strategy) if decision else None
        prompt = prompts[0] if prompts else None
        num_tokens = prompt[1] if prompt else 0
        kind = graphs.kind(strategy, len(decodes), num_tokens)
        if kind is None:
            return None
        usual = not graphs.is_new(kind)
        num_splits = decision.num_splits if decision else 1
        forward = graphs.prepare(kind, decodes, num_splits, former, prompt)
        ends = [prompt[0]] if prompt and prompt[0].num_uncached == num_tokens else []
        sampled = decodes + ends
        return sampled, lambda: forward()[: len(sampled)], usual

    def copy_page(self, source: int, target: int) -> None:
        copy_pages(self.kv_layers, [source], [target])

    def _choose(self, decodes: list[Sequence]) -> Decision | None:
        return self.policy.choose(tuple(seq.num_tokens for seq in decodes)) if decodes else None

    def _plan(
        self, decodes: list[Sequence], decision: Decision, slot_mapping: torch.Tensor
    ) -> DecodeBatch:
        lengths = tuple(seq.num_tokens for seq in decodes)
        width = max(len(seq.pages) for seq in decodes)
        table = [seq.pages + [0] * (width - len(seq.pages)) for seq in decodes]
        batch = DecodeBatch(
            block_table=self._upload(table, torch.int32),
            seq_lens=self._upload(lengths, torch.int32),
            slot_mapping=slot_mapping[: len(decodes)],
            lengths=lengths,
        )
        self._strategy(decision.strategy).plan(batch, decision.num_splits)
        return batch

    def _chunk(self, seq: Sequence, count: int) -> PrefillChunk:
        end = seq.num_cached + count
        num_pages = -(-end // self.shape.page_size)
        return PrefillChunk(self._upload(seq.pages[:num_pages], torch.int32), end, count)

    def _strategy(self, name: str) -> Strategy:
        return self._kernels.strategy(name, self.shape)

    def _upload(self, values: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return upload(values, self.shape.device, dtype)
