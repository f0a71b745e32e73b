"""Decode through CUDA graphs gives the text that it gives without; what the graphs read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pkvchat.engine import Engine
from pkvchat.graph_runner import _Inputs
from pkvchat.kernels.batch import AttentionShape
from pkvchat.kernels.linear import LinearTypes
from pkvchat.kernels.policy import Decision
from pkvchat.kernels.registry import why_unavailable
from pkvchat.models.config import ExpertConfig, ModelConfig
from pkvchat.models.decoder import Decoder
from pkvchat.models.random_weights import SHAPES, RandomCheckpoint
from pkvchat.models.weights import WeightReader
from pkvchat.sampling import SamplingParams
from pkvchat.sequence import Sequence

CONFIG = replace(
    SHAPES["llama-3-8b"],
    vocab_size=500,
    hidden_size=512,
    intermediate_size=768,
    num_layers=2,
    num_qo_heads=8,
    num_kv_heads=2,
    head_dim=64,
    context_length=1024,
    tie_embeddings=False,  # tied, a random model mostly repeats itself
)


class Alternating:
    """Implements Policy: another strategy and number of splits every few steps."""

    name = "alternating"

    def __init__(self, strategies: tuple[str, ...]) -> None:
        self.strategies, self.steps = strategies, 0

    def choose(self, lengths: tuple[int, ...]) -> Decision:
        self.steps += 1
        strategy = self.strategies[self.steps // 5 % len(self.strategies)]
        return Decision(strategy, 1 + self.steps % 4, {strategy: 1.0}, f"{len(lengths)} rows")

    def observe(self, lengths: tuple[int, ...], decision: Decision, step_us: float) -> None:
        pass


def make_model(dtype: torch.dtype, config: ModelConfig = CONFIG, quant: str = "bf16") -> Decoder:
    device = torch.device("cuda")
    checkpoint = RandomCheckpoint(config, quant, device)
    types = replace(LinearTypes.uniform(dtype), packed_bits=8)
    return Decoder(
        config, WeightReader(checkpoint, device, dtype, types, lambda stage, done, total: None)
    )


def answers(
    model: Decoder, strategies: tuple[str, ...], *, graphs: bool = True, capture: bool = True
) -> tuple[dict[str, list[int]], int]:
    """Greedy tokens of chats that come, grow, fork and leave; and how many graphs there were.

    capture: False runs what a graph would hold, each time anew.
    """
    shape = AttentionShape(8, 2, 64, 16, model.dtype, model.device)
    engine = Engine(model, shape, Alternating(strategies), num_pages=80, context=1024)
    # Chunks else follow measured times, and half precision's near ties follow the chunks.
    engine.pace.budget = lambda num_decodes: 64
    if not graphs:
        engine.runner.graphs = None
    elif not capture:
        engine.runner.graphs._capture = lambda *args: None
    out: dict[str, list[int]] = {}
    for step in range(140):
        if step % 15 == 0 and step < 90:
            length = 3 + 40 * (step // 15)
            prompt = [(7 * step + 13 * i) % 500 for i in range(length)]
            params = SamplingParams(temperature=0.0, max_tokens=30 + step)
            engine.submit(f"chat {step}", prompt, params)
        if step == 40:
            engine.stop("chat 15")
            engine.fork("chat 15", "fork")
        for token in engine.step().tokens:
            out.setdefault(token.chat_id, []).append(token.token_id)
    return out, len(engine.runner.graphs or ())


@pytest.mark.gpu
def test_same_text_with_graphs_and_without():
    model, strategies = make_model(torch.float32), ("split", "workqueue", "sdpa")
    eager, none = answers(model, strategies, graphs=False)
    captured, count = answers(model, strategies)
    assert none == 0
    assert count > 4
    assert captured == eager


@pytest.mark.gpu
@pytest.mark.parametrize("quant", ["bf16", "Q8_0"])
def test_same_text_with_experts(quant):
    experts = ExpertConfig(count=8, per_token=2, intermediate_size=256, normalise=True)
    model = make_model(torch.float32, replace(CONFIG, experts=experts), quant)
    eager, none = answers(model, ("split", "sdpa"), capture=False)
    captured, count = answers(model, ("split", "sdpa"))
    assert none == 0
    assert count > 2
    assert captured == eager


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flashinfer", "split", "workqueue"])
def test_same_text_in_float16(name):
    """FlashInfer has no float32. Each against itself, since strategies round differently."""
    model = make_model(torch.float16)
    if why := why_unavailable(name, AttentionShape(8, 2, 64, 16, model.dtype, model.device)):
        pytest.skip(why)
    eager, none = answers(model, (name,), capture=False)
    captured, count = answers(model, (name,))
    assert none == 0
    assert count > 2
    assert captured == eager


def test_what_a_graph_reads_follows_the_sequences():
    """Rows come, grow by pages, leave and give their place to others."""
    inputs = _Inputs(3, 8, torch.device("cpu"))
    steps = (
        [("a", 20, [5, 2]), ("b", 33, [7, 1, 3])],
        [("a", 33, [5, 2, 9]), ("b", 34, [7, 1, 3])],
        [("b", 35, [7, 1, 3])],
        [("b", 36, [7, 1, 3]), ("c", 1, [4]), ("d", 16, [5])],
    )
    for rows in steps:
        sequences = [
            Sequence(name, list(range(100, 100 + length)), num_cached=length - 1, pages=pages)
            for name, length, pages in rows
        ]
        inputs.write(sequences, page_size=16)
        lengths = [length for _, length, _ in rows] + [0] * (3 - len(rows))
        assert inputs.batch.lengths == tuple(lengths)
        assert inputs.batch.seq_lens.tolist() == lengths
        assert inputs.batch.seq_lens.dtype == torch.int32
        assert inputs.token_ids.tolist() == [99 + n if n else 0 for n in lengths]
        assert inputs.positions.tolist() == [max(0, n - 1) for n in lengths]
        slots = [pages[-1] * 16 + (n - 1) % 16 for _, n, pages in rows] + [0] * (3 - len(rows))
        assert inputs.batch.slot_mapping.tolist() == slots
        for row, (_, _, pages) in enumerate(rows):
            assert inputs.batch.block_table[row, : len(pages)].tolist() == pages
