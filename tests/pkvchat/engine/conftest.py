"""Engines on a GPU that change their strategy every few steps, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pkvchat.engine.engine import Engine
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.policy.policy import Decision
from pkvchat.models.decoder import Decoder
from pkvchat.sampling import SamplingParams

Answers = tuple[dict[str, list[int]], int]


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


@pytest.fixture(scope="session")
def make_gpu_engine() -> Callable[..., Engine]:
    """make_gpu_engine(model, strategies, kv_dtype=, and what else Engine takes by name)"""

    def make(
        model: Decoder,
        strategies: tuple[str, ...],
        *,
        num_pages: int = 80,
        context: int = 1024,
        kv_dtype: torch.dtype | None = None,
        **options: Any,
    ) -> Engine:
        config = model.config
        shape = AttentionShape(
            config.num_qo_heads,
            config.num_kv_heads,
            config.head_dim,
            16,
            model.dtype,
            model.device,
            kv_dtype or model.dtype,
        )
        engine = Engine(model, shape, Alternating(strategies), num_pages, context, **options)
        # Chunks else follow measured times, and half precision's near ties follow the chunks.
        engine.pace.size = lambda num_decodes: 64
        return engine

    return make


def prompt(step: int) -> list[int]:
    return [(7 * step + 13 * i) % 500 for i in range(3 + 40 * (step // 15))]


@pytest.fixture
def answers(make_gpu_engine: Callable[..., Engine]) -> Callable[..., Answers]:
    """answers(model, strategies, ...): tokens of chats that come, grow, fork and leave, and how
    many graphs there were.

    graphs: False has none. capture: False runs what a graph would hold, each time anew. budget: of
    graphs, in bytes. sampling: of the chats in turn. What else there is goes to make_gpu_engine.
    """

    def run(
        model: Decoder,
        strategies: tuple[str, ...],
        *,
        graphs: bool = True,
        capture: bool = True,
        budget: int | None = None,
        sampling: tuple[SamplingParams, ...] = (SamplingParams(temperature=0.0),),
        **options: Any,
    ) -> Answers:
        engine = make_gpu_engine(model, strategies, **options)
        if budget is not None:
            engine.runner.graphs.pool.budget = budget
        if not graphs:
            engine.runner.graphs = None
        elif not capture:
            engine.runner.graphs._capture = lambda *args: None
        out: dict[str, list[int]] = {}
        for step in range(140):
            if step % 15 == 0 and step < 90:
                params = replace(sampling[step // 15 % len(sampling)], max_tokens=30 + step)
                engine.submit(f"chat {step}", prompt(step), params)
            if step == 40:
                engine.stop("chat 15")
                engine.fork("chat 15", "fork")
                params = SamplingParams(temperature=0.0, max_tokens=50)
                engine.submit("fork", [*prompt(15), 9, 8, 7], params)
            for token in engine.step().tokens:
                out.setdefault(token.chat_id, []).append(token.token_id)
        while not engine.idle:
            for token in engine.step().tokens:
                out[token.chat_id].append(token.token_id)
            engine.scheduler.check_integrity()
        del out["chat 15"][10:]  # stopped at one step; how far it is by then depends on ``ahead``
        return out, len(engine.runner.graphs or ())

    return run
