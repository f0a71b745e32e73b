"""Decode through CUDA graphs gives the text that it gives without."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pkvchat.engine import Engine
from pkvchat.kernels.batch import AttentionShape
from pkvchat.kernels.linear import LinearTypes
from pkvchat.kernels.policy import Decision
from pkvchat.models.decoder import Decoder
from pkvchat.models.random_weights import SHAPES, RandomCheckpoint
from pkvchat.models.weights import WeightReader
from pkvchat.sampling import SamplingParams

pytestmark = pytest.mark.gpu

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
    tie_embeddings=True,
)


class Alternating:
    """Implements Policy: another strategy and number of splits every few steps."""

    name = "alternating"

    def __init__(self) -> None:
        self.steps = 0

    def choose(self, lengths: tuple[int, ...]) -> Decision:
        self.steps += 1
        strategy = ("split", "workqueue", "sdpa")[self.steps // 5 % 3]
        return Decision(strategy, 1 + self.steps % 4, {strategy: 1.0}, f"{len(lengths)} rows")


@pytest.fixture(scope="module")
def model() -> Decoder:
    device, dtype = torch.device("cuda"), torch.float32
    checkpoint = RandomCheckpoint(CONFIG, "bf16", device)
    types = LinearTypes.uniform(dtype)
    return Decoder(
        CONFIG, WeightReader(checkpoint, device, dtype, types, lambda stage, done, total: None)
    )


def answers(model: Decoder, *, graphs: bool) -> tuple[dict[str, list[int]], int]:
    """Greedy tokens of chats that come, grow, fork and leave; and how many graphs there were."""
    shape = AttentionShape(8, 2, 64, 16, torch.float32, model.device)
    engine = Engine(model, shape, Alternating(), num_pages=80, context=1024)
    if not graphs:
        engine.runner._graphs = None
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
    captured = engine.runner._graphs
    return out, len(captured._graphs) if captured else 0


def test_same_text_with_graphs_and_without(model):
    eager, none = answers(model, graphs=False)
    captured, count = answers(model, graphs=True)
    assert none == 0
    assert count > 4
    assert captured == eager
