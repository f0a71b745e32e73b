"""Steps that read a prompt, through CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from pkvchat.engine.attention_kernels import AttentionKernels
from pkvchat.engine.engine import Engine
from pkvchat.engine.in_flight import Sampled
from pkvchat.engine.sampler import Sampler
from pkvchat.engine.sequence import Sequence
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.models.decoder import Decoder
from pkvchat.sampling import SamplingParams


class Script(Sampler):
    """The next token is what the chat and its length say; the logits are kept for a comparison."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.logits: dict[tuple[str, int], torch.Tensor] = {}

    def sample(
        self, logits: torch.Tensor, sequences: list[Sequence], _former: Sampled | None = None
    ) -> Sampled:
        tokens = [(len(seq.chat_id) + 13 * seq.num_tokens) % 500 for seq in sequences]
        for row, seq in enumerate(sequences):
            self.logits[seq.chat_id, seq.num_tokens] = logits[row].clone()
        rows = {seq: row for row, seq in enumerate(sequences)}
        return Sampled(torch.tensor(tokens, device=self.device), rows)


@pytest.fixture(scope="module")
def make_loud_engine(
    gpu_model: Callable[..., Decoder], make_gpu_engine: Callable[..., Engine]
) -> Callable[..., Engine]:
    """make_loud_engine(*strategies, ...): see make_gpu_engine; all strategies if none is named."""
    model = gpu_model(torch.float16, loud=True)
    shape = AttentionShape(8, 2, 64, 16, model.dtype, model.device)
    kernels = AttentionKernels.create(model, shape, lambda stage, done, total: None)
    if kernels.prefill is None:
        pytest.skip("no FlashInfer, and so no graphs of steps with a prompt")
    capturable = tuple(name for name, each in kernels.strategies.items() if each.capturable)

    def make(*strategies: str, **options: Any) -> Engine:
        return make_gpu_engine(model, strategies or capturable, kernels=kernels, **options)

    return make


def scripted(
    engine: Engine, *, graphs: bool
) -> tuple[dict[tuple[str, int], torch.Tensor], set[int], list[str]]:
    """Logits by chat and length; the chunks that there were graphs for; and notices.

    Chats come, are stopped, cancelled while their prompt is read, forked, and wait for pages.
    """
    engine.sampler = script = Script(engine.device)
    sizes = (64, 32, 128)
    engine.pace.size = lambda num_decodes: sizes[engine.runner.policy.steps // 7 % 3]
    if not graphs:
        engine.runner.graphs = None
    notices: list[str] = []
    for step in range(600):
        if step % 12 == 0 and step < 140:
            chat = "x" * (1 + step // 12)
            prompt = [(3 * step + 7 * i) % 500 for i in range(1 + 61 * (step // 12 % 5))]
            params = SamplingParams(temperature=0.0, max_tokens=20 + step)
            engine.submit(chat, prompt, params)
        if step == 30:
            engine.stop("xx")
            engine.fork("xx", "fork")
            params = SamplingParams(temperature=0.0, max_tokens=40)
            engine.submit("fork", [*range(3, 200, 2)], params)
        if step == 50:
            engine.close("xxxxx")  # its prompt of 245 tokens is being read
        output = engine.step()
        notices += [line for _, line in output.notices]
        engine.scheduler.check_integrity()
        if engine.idle and step > 140:
            break
    assert engine.idle
    chunks = {kind.chunk for kind in engine.runner.graphs._graphs} if graphs else set()
    return script.logits, chunks, notices


@pytest.mark.gpu
@pytest.mark.parametrize("num_pages", [80, 34])
def test_prompts_through_graphs_give_the_same_logits(
    make_loud_engine: Callable[..., Engine], num_pages: int
) -> None:
    """Beside one to many answers, under every strategy, with pages for all and with too few."""
    eager, _, _ = scripted(make_loud_engine(num_pages=num_pages), graphs=False)
    captured, chunks, notices = scripted(make_loud_engine(num_pages=num_pages), graphs=True)
    assert len(chunks) > 4
    common = eager.keys() & captured.keys()
    assert len(common) > 0.9 * len(eager)
    far = max((eager[key] - captured[key]).abs().max().item() for key in common)
    scale = max(logits.abs().max().item() for logits in eager.values())
    assert far < 0.01 * scale
    # Had a row read another's context, its logits would be as far as those of two prompts.
    others = [captured[key] for key in common]
    assert max((a - b).abs().max().item() for a, b in pairwise(others)) > 0.5 * scale
    assert not any("without a CUDA graph" in line for line in notices)


@pytest.mark.gpu
def test_a_prompts_graph_without_room_is_left_out_and_nobody_is_told(
    make_loud_engine: Callable[..., Engine],
) -> None:
    engine = make_loud_engine("split")
    graphs = engine.runner.graphs
    graphs.pool.budget = 0
    for chat in ("a", "b", "c"):
        engine.submit(chat, list(range(40)), SamplingParams(temperature=0.0, max_tokens=1))
        while not engine.idle:
            assert engine.step().notices == []
        engine.close(chat)
    assert len(graphs) == 0
    assert {kind.chunk for kind in graphs._without} == {64}


@pytest.mark.gpu
def test_a_graph_is_made_at_the_second_step_of_its_kind(
    make_loud_engine: Callable[..., Engine],
) -> None:
    engine = make_loud_engine("split", ahead=False)
    counts = []
    for chat in "abc":
        engine.submit(chat, [ord(chat), *range(50)], SamplingParams(temperature=0.0, max_tokens=1))
        engine.step()
        counts.append(len(engine.runner.graphs))
        engine.close(chat)
    assert counts == [0, 1, 1]
