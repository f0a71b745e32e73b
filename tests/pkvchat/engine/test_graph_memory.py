"""CUDA graphs that find too little memory, or whose place others take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pkvchat.engine import graph_runner
from pkvchat.engine.graph_runner import StepGraphs
from pkvchat.sampling import SamplingParams


@pytest.mark.gpu
def test_graphs_begin_anew_where_others_fill_the_budget(answers, gpu_model, monkeypatch):
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
    model = gpu_model(torch.float32, vocab_size=64_000)
    strategies = ("split", "workqueue", "sdpa")
    text, _ = answers(model, strategies)
    assert not dropped
    again, _ = answers(model, strategies, budget=max(taken) - 1)
    assert any(dropped)
    assert again == text


@pytest.mark.gpu
def test_graphs_that_exceed_the_budget_are_not_kept(make_gpu_engine, gpu_model):
    model = gpu_model(torch.float32)
    engine = make_gpu_engine(model, ("split",))
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
def test_graphs_are_captured_after_the_last_was_dropped_or_the_first_failed(
    make_gpu_engine, gpu_model, monkeypatch
):
    engine = make_gpu_engine(gpu_model(torch.float32), ("split",), ahead=False)
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
def test_a_full_device_costs_speed_and_not_the_answers(make_gpu_engine, gpu_model):
    model = gpu_model(torch.float32)
    engine = make_gpu_engine(model, ("split",))
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
