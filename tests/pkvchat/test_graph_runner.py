"""Steps through CUDA graphs give the text that they give without."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from pkvchat.engine import graph_runner
from pkvchat.engine.attention_kernels import AttentionKernels
from pkvchat.engine.engine import Engine
from pkvchat.engine.graph_runner import StepGraphs
from pkvchat.engine.in_flight import Sampled
from pkvchat.engine.sampler import Sampler
from pkvchat.engine.sequence import Sequence
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.registry import why_unavailable
from pkvchat.kernels.policy.policy import Decision
from pkvchat.kernels.products.linear import LinearTypes
from pkvchat.models.config import ExpertConfig, ModelConfig
from pkvchat.models.decoder import Decoder
from pkvchat.models.random_weights import SHAPES, RandomCheckpoint
from pkvchat.models.weights import WeightReader
from pkvchat.sampling import SamplingParams

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


def make_engine(model: Decoder, strategies: tuple[str, ...], **options: Any) -> Engine:
    options = {"num_pages": 80, "context": 1024, "kv_dtype": model.dtype, **options}
    kv_dtype = options.pop("kv_dtype")
    shape = AttentionShape(8, 2, 64, 16, model.dtype, model.device, kv_dtype)
    engine = Engine(model, shape, Alternating(strategies), **options)
    # Chunks else follow measured times, and half precision's near ties follow the chunks.
    engine.pace.size = lambda num_decodes: 64
    return engine


def prompt(step: int) -> list[int]:
    return [(7 * step + 13 * i) % 500 for i in range(3 + 40 * (step // 15))]


def answers(
    model: Decoder,
    strategies: tuple[str, ...],
    *,
    graphs: bool = True,
    capture: bool = True,
    budget: int | None = None,
    sampling: tuple[SamplingParams, ...] = (SamplingParams(temperature=0.0),),
    **options: Any,
) -> tuple[dict[str, list[int]], int]:
    """Tokens of chats that come, grow, fork and leave; and how many graphs there were.

    capture: False runs what a graph would hold, each time anew. budget: of graphs, in bytes.
    sampling: of the chats in turn. options: of the engine, and kv_dtype.
    """
    engine = make_engine(model, strategies, **options)
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


@pytest.mark.gpu
def test_same_text_with_graphs_and_without():
    model, strategies = make_model(torch.float32), ("split", "workqueue", "sdpa")
    eager, none = answers(model, strategies, graphs=False)
    captured, count = answers(model, strategies)
    assert none == 0
    assert count > 4
    assert captured == eager


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_same_text_from_quantised_kv(kv_dtype):
    model, strategies = make_model(torch.float16), ("split", "workqueue")
    eager, _ = answers(model, strategies, capture=False, kv_dtype=kv_dtype)
    captured, count = answers(model, strategies, kv_dtype=kv_dtype)
    assert count > 2
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


@pytest.mark.gpu
@pytest.mark.parametrize("num_pages", [80, 30])
def test_same_text_a_step_ahead_of_the_known_tokens(num_pages):
    """Greedy, penalised and drawn; with pages for all, and with too few, so that some wait."""
    sampling = (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.3, seed=5),
        SamplingParams(temperature=0.0, repeat_penalty=1.5, repeat_last_n=9),
        SamplingParams(temperature=0.9, top_k=0, repeat_penalty=1.1, seed=6),
    )
    model = make_model(torch.float32)
    both = [
        answers(model, ("workqueue",), ahead=ahead, num_pages=num_pages, sampling=sampling)[0]
        for ahead in (False, True)
    ]
    assert both[0] == both[1]


@pytest.mark.gpu
def test_two_greedy_runs_give_the_same_text():
    model = make_model(torch.bfloat16)
    assert answers(model, ("split", "workqueue")) == answers(model, ("split", "workqueue"))


@pytest.mark.gpu
def test_graphs_begin_anew_where_others_fill_the_budget(monkeypatch):
    """Those that are in use are captured again. Many logits have each graph take some memory."""
    taken: list[int] = []
    dropped: list[int] = []
    capture, drop = StepGraphs._capture, StepGraphs._drop

    def watched_capture(self: StepGraphs, *args: Any) -> None:
        capture(self, *args)
        taken.append(self.pool.nbytes)

    def watched_drop(self: StepGraphs) -> None:
        dropped.append(len(self))
        drop(self)

    monkeypatch.setattr(graph_runner, "_IN_USE", 5)
    monkeypatch.setattr(StepGraphs, "_capture", watched_capture)
    monkeypatch.setattr(StepGraphs, "_drop", watched_drop)
    model = make_model(torch.float32, replace(CONFIG, vocab_size=64_000))
    strategies = ("split", "workqueue", "sdpa")
    text, _ = answers(model, strategies)
    assert not dropped
    again, _ = answers(model, strategies, budget=max(taken) - 1)
    assert any(dropped)
    assert again == text


@pytest.mark.gpu
def test_graphs_that_exceed_the_budget_are_not_kept():
    model = make_model(torch.float32)
    engine = make_engine(model, ("split",))
    graphs = engine.runner.graphs
    graphs.pool.budget = 0
    notices, text = [], []
    for count in (1, 2, 4, 8):
        for chat in range(count):
            params = SamplingParams(temperature=0.0, max_tokens=30)
            engine.submit(f"{count}-{chat}", [(45 + 13 * i) % 500 for i in range(3 + 40)], params)
        while not engine.idle:
            output = engine.step()
            notices += [line for _, line in output.notices]
            text += [t.token_id for t in output.tokens if t.chat_id == f"{count}-0"]
    assert text == text[:30] * 4
    assert graphs.pool.nbytes == 0
    assert len(notices) == len(graphs._without) >= 4
    assert all("with split run without a CUDA graph" in line for line in notices)


@pytest.mark.gpu
def test_graphs_are_captured_after_the_last_was_dropped_or_the_first_failed(monkeypatch):
    engine = make_engine(make_model(torch.float32), ("split",), ahead=False)
    graphs = engine.runner.graphs
    forward, failed = graphs._forward, []

    def fail_once(*args: Any) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing() and not failed:
            failed.append(True)
            raise torch.OutOfMemoryError
        return forward(*args)

    monkeypatch.setattr(graphs, "_forward", fail_once)
    params = SamplingParams(temperature=0.0, max_tokens=40)
    engine.submit("a", [1, 2, 3], params)
    for _ in range(2):  # the prompt, and the first step of one row
        engine.step()
    notices = [line for _, line in engine.step().notices]
    assert "without a CUDA graph, more slowly: there is no memory left" in notices[0]
    assert len(graphs) == 0
    for chats in ("ab", "cd"):
        for chat in chats:
            if chat != "a":
                engine.submit(chat, [4, 5, 6], params)
        while not engine.idle:
            engine.step()
        assert {kind.rows for kind in graphs._graphs} == {2}
        graphs._graphs.clear()


@pytest.mark.gpu
def test_a_full_device_costs_speed_and_not_the_answers():
    model = make_model(torch.float32)
    engine = make_engine(model, ("split",))
    device, text, notices = model.device, [], []
    engine.submit("a", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=200))
    for _ in range(5):
        engine.step()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    try:
        engine.submit("b", [5] * 900, SamplingParams(temperature=0.0, max_tokens=4))
        engine.pace.size = lambda num_decodes: engine.pace.max_chunk
        for _ in range(40):
            output = engine.step()
            notices += [line for _, line in output.notices]
            if engine.idle:
                break
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "without CUDA graphs" in notices[0]
    engine.close("a")
    engine.close("b")
    engine.submit("a", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=20))
    while not engine.idle:
        text += engine.step().tokens
    assert len(text) == 20


# --- steps with a prompt --------------------------------------------------------------------------


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


class LoudCheckpoint(RandomCheckpoint):
    """With weights so large that the logits depend on every token before."""

    def parts(self, name: str, out: torch.Tensor) -> tuple[()]:
        generator = torch.Generator(out.device).manual_seed(sum(name.encode()))
        out.normal_(generator=generator)
        if out.dim() > 1:
            out.mul_(2 / out.shape[1] ** 0.5)
        return ()


@pytest.fixture(scope="module")
def loud() -> tuple[Decoder, AttentionKernels]:
    device, dtype = torch.device("cuda"), torch.float16
    types = LinearTypes.uniform(dtype)
    checkpoint = LoudCheckpoint(CONFIG, "bf16", device)
    reader = WeightReader(checkpoint, device, dtype, types, lambda stage, done, total: None)
    model = Decoder(CONFIG, reader)
    shape = AttentionShape(8, 2, 64, 16, dtype, device)
    kernels = AttentionKernels.create(model, shape, lambda stage, done, total: None)
    if kernels.prefill is None:
        pytest.skip("no FlashInfer, and so no graphs of steps with a prompt")
    return model, kernels


def scripted(
    loud: tuple[Decoder, AttentionKernels], *, graphs: bool, num_pages: int = 80
) -> tuple[dict[tuple[str, int], torch.Tensor], set[int], list[str]]:
    """Logits by chat and length; the chunks that there were graphs for; and notices.

    Chats come, are stopped, cancelled while their prompt is read, forked, and wait for pages.
    """
    model, kernels = loud
    strategies = tuple(name for name in kernels.strategies if name != "sdpa")
    engine = make_engine(model, strategies, kernels=kernels, num_pages=num_pages)
    engine.sampler = script = Script(model.device)
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
    loud: tuple[Decoder, AttentionKernels], num_pages: int
) -> None:
    """Beside one to many answers, under every strategy, with pages for all and with too few."""
    eager, _, _ = scripted(loud, graphs=False, num_pages=num_pages)
    captured, chunks, notices = scripted(loud, graphs=True, num_pages=num_pages)
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
    loud: tuple[Decoder, AttentionKernels],
) -> None:
    model, kernels = loud
    engine = make_engine(model, ("split",), kernels=kernels)
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
    loud: tuple[Decoder, AttentionKernels],
) -> None:
    model, kernels = loud
    engine = make_engine(model, ("split",), kernels=kernels, ahead=False)
    counts = []
    for chat in "abc":
        engine.submit(chat, [ord(chat), *range(50)], SamplingParams(temperature=0.0, max_tokens=1))
        engine.step()
        counts.append(len(engine.runner.graphs))
        engine.close(chat)
    assert counts == [0, 1, 1]
