"""The attention kernels that can run for a KV cache, compiled once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pkvchat.kernels.attention.batch import AttentionShape, PrefillChunk
from pkvchat.kernels.attention.flashinfer_prefill import FlashInferPrefill, create_prefill
from pkvchat.kernels.attention.registry import STRATEGIES, create_strategy
from pkvchat.kernels.attention.strategy import Strategy, StrategyUnavailable
from pkvchat.kernels.progress import Progress
from pkvchat.models.causal_lm import CausalLM


@dataclass
class AttentionKernels:
    """strategies: for decoding, by name. declined: the others, each with why it cannot run here.

    prefill: reads all prompts of a step at once; None leaves each to torch.
    """

    strategies: dict[str, Strategy] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    prefill: FlashInferPrefill | None = None

    @classmethod
    def create(cls, model: CausalLM, shape: AttentionShape, progress: Progress) -> AttentionKernels:
        """All there are. The first start on a GPU compiles them, which ``progress`` tells."""
        kernels = cls()
        for number, name in enumerate(STRATEGIES):
            if shape.device.type == "cuda":
                progress(f"{name} (the first start compiles it)", number, len(STRATEGIES) + 1)
            try:
                kernels.strategies[name] = create_strategy(name, shape)
            except StrategyUnavailable as error:
                kernels.declined[name] = str(error)
        if shape.device.type == "cuda":
            progress("prefill (the first start compiles it)", len(STRATEGIES), len(STRATEGIES) + 1)
            kernels.prefill = create_prefill(shape, model.layer_specs)
        return kernels

    def planned(
        self, chunks: Sequence[PrefillChunk]
    ) -> tuple[Sequence[PrefillChunk], FlashInferPrefill | None]:
        """How StepAttention is to read ``chunks``: one by one, or planned for all at once."""
        if not chunks or self.prefill is None:
            return chunks, None
        self.prefill.plan(chunks)
        return (), self.prefill

    def strategy(self, name: str, shape: AttentionShape) -> Strategy:
        """Made now, where it is not there. Raises what create_strategy raises."""
        if name not in self.strategies:
            self.strategies[name] = create_strategy(name, shape)
        return self.strategies[name]
