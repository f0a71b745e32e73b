"""FlashInfer as a strategy, and our kernels against it."""

from __future__ import annotations

import sys

import pytest
import torch

from pkvchat.kernels.attention.batch import AttentionShape, LayerSpec
from pkvchat.kernels.attention.flashinfer import FlashInfer
from pkvchat.kernels.attention.registry import create_strategy
from pkvchat.kernels.attention.strategy import StrategyUnavailable


def shape_of(group=4, dim=128, dtype=torch.float16, device="cuda", kv_dtype=None):
    return AttentionShape(group * 4, 4, dim, 16, dtype, torch.device(device), kv_dtype)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (shape_of(dtype=torch.float32), "takes float16 or bfloat16, not torch.float32"),
        (shape_of(kv_dtype=torch.int8), "no scale for each token and head, which torch.int8 KV"),
        (shape_of(dim=80), "takes head_dim 64, 128, 256, not 80"),
    ],
)
def test_says_why_it_declines(shape, reason):
    with pytest.raises(StrategyUnavailable, match=reason):
        FlashInfer(shape)


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(StrategyUnavailable, match="pip install flashinfer-python"):
        FlashInfer(shape_of())


@pytest.fixture
def flashinfer():
    pytest.importorskip("flashinfer")
    return create_strategy("flashinfer", shape_of())


LENGTHS = (1, 4096, 17, 900, 3000)


@pytest.mark.gpu
def test_against_the_reference(paged_problem, flashinfer):
    problem = paged_problem(flashinfer.shape, LENGTHS)
    spec = LayerSpec(0.1)
    error = (problem.run(flashinfer, spec).cpu().double() - problem.expected(spec)).abs().max()
    assert error < 2e-3


@pytest.mark.gpu
def test_sinks_and_queries_of_another_type(paged_problem, flashinfer):
    problem = paged_problem(flashinfer.shape, LENGTHS)
    sinks = torch.linspace(-3, 8, problem.shape.num_qo_heads, device="cuda")
    for q in (problem.q, problem.q.bfloat16().float()):
        problem.q = q
        for spec in (LayerSpec(0.1, sinks=sinks), LayerSpec(0.1, 100, 20.0, sinks)):
            out = problem.run(flashinfer, spec)
            assert out.dtype == q.dtype
            assert (out.cpu().double() - problem.expected(spec)).abs().max() < 2e-3


@pytest.mark.gpu
def test_window_and_softcap(paged_problem, flashinfer):
    problem = paged_problem(flashinfer.shape, LENGTHS)
    for spec in (LayerSpec(0.1, window=100, softcap=20.0), LayerSpec(0.1)):
        error = (problem.run(flashinfer, spec).cpu().double() - problem.expected(spec)).abs().max()
        assert error < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("group", [1, 4])  # CUDA cores, tensor cores
def test_one_graph_serves_every_length(paged_problem, group):
    """Replays follow plan(), whatever each row's length, an empty row's too."""
    pytest.importorskip("flashinfer")
    shape, width = shape_of(group), 300
    strategy = create_strategy("flashinfer", shape)
    largest = paged_problem(shape, (4800,) * 4, max_pages=width)
    batch, kv_layer, q = largest.batch, largest.kv_layer, largest.q
    batch.static = True
    spec, out = LayerSpec(0.1), torch.empty_like(q)
    strategy.plan(batch, 1)
    strategy.run(q, kv_layer, out, spec)
    strategy.plan(batch, 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        strategy.run(q, kv_layer, out, spec)
    for lengths in ((1, 4096, 17, 900), (4800, 16, 0, 1), (300, 301, 302, 0), (4799,) * 4):
        batch.lengths = lengths
        batch.seq_lens.copy_(torch.tensor(lengths))
        strategy.plan(batch, 1)
        out.fill_(float("nan"))
        graph.replay()
        expected = largest.expected(spec)
        for row, length in enumerate(lengths):
            if length:
                assert (out[row].cpu().double() - expected[row]).abs().max() < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["split", "workqueue"])
def test_our_kernels_agree_with_it(paged_problem, flashinfer, name):
    problem = paged_problem(flashinfer.shape, LENGTHS)
    spec = LayerSpec(128**-0.5)
    theirs = problem.run(flashinfer, spec).double()
    ours = problem.run(create_strategy(name, problem.shape), spec).double()
    assert (ours - theirs).abs().max() < 2e-3
    assert (ours - theirs).abs().mean() < 3e-4
    expected = problem.expected(spec)
    assert (ours.cpu() - expected).abs().mean() <= 1.1 * (theirs.cpu() - expected).abs().mean()
