"""The compiled kernels on real sizes: tile edges, CUDA graphs over changing lengths, streams."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

pytest.importorskip("triton")

from pkvchat.kernels.attention.batch import AttentionShape, LayerSpec
from pkvchat.kernels.attention.kv import kv_rows, tokens_per_page, write_kv
from pkvchat.kernels.attention.split_triton import SplitTriton
from pkvchat.kernels.attention.tile_config import tile_config
from pkvchat.kernels.attention.workqueue_triton import WorkqueueTriton

pytestmark = pytest.mark.gpu

CLASSES = (SplitTriton, WorkqueueTriton)
SPEC = LayerSpec(128**-0.5)


def shape_of(group=4, heads=8, dim=128, page=16, dtype=torch.float16):
    return AttentionShape(group * heads, heads, dim, page, dtype, torch.device("cuda"))


def assert_close(out, expected):
    error = (out.cpu().double() - expected).abs()
    assert error.max() < 2e-3
    assert error.mean() < 3e-4


@pytest.fixture(params=CLASSES)
def strategy(request):
    """With poisoned partial states."""
    strategy = request.param(shape_of())
    for states in strategy._states:
        states.fill_(float("nan"))
    return strategy


def test_every_length_around_two_tiles(paged_problem, strategy):
    lengths = tuple(range(2 * strategy.config.tile + 2))
    problem = paged_problem(strategy.shape, lengths)
    assert_close(problem.run(strategy, SPEC), problem.expected(SPEC))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_random_shapes(paged_problem, cls, dtype, dim):
    rng = random.Random(dim)
    group = rng.choice([1, 2, 3, 5, 7, 8, 16])
    shape = shape_of(group, rng.choice([1, 4, 8]), dim, rng.choice([16, 32, 64]), dtype)
    lengths = tuple(rng.randint(0, 3000) for _ in range(rng.randint(1, 9)))
    problem = paged_problem(shape, lengths, dim)
    spec = LayerSpec(dim**-0.5, rng.choice([0, 100, 1000]), rng.choice([0.0, 20.0]))
    error = (problem.run(cls(shape), spec).cpu().double() - problem.expected(spec)).abs().max()
    assert error < {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}[dtype]


@pytest.mark.parametrize("cls", CLASSES)
def test_one_long_row_among_many(paged_problem, cls):
    rng = random.Random(0)
    lengths = (262_144, *(rng.randint(0, 600) for _ in range(255)))
    problem = paged_problem(shape_of(heads=1), lengths)
    first = problem.run(cls(problem.shape), SPEC)
    assert_close(first, problem.expected(SPEC))
    assert torch.equal(first, problem.run(cls(problem.shape), SPEC))


def captured(problem, strategy, layers=4):
    """A graph that plans and runs ``layers`` layers for whatever seq_lens then holds."""
    outs = [torch.full_like(problem.q, float("nan")) for _ in range(layers)]

    def step():
        strategy.plan(problem.batch, 8)
        for out in outs:
            strategy.run(problem.q, problem.kv_layer, out, SPEC)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph, outs


def set_lengths(problem, lengths):
    problem.batch.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
    problem.batch.lengths = tuple(lengths)


def test_growth_under_one_graph(paged_problem, strategy):
    problem = paged_problem(strategy.shape, (500, 300, 100))
    graph, outs = captured(problem, strategy)
    for grown in range(0, 135, 3):
        set_lengths(problem, (200 + grown, 120 + grown, 1 + grown // 2))
        graph.replay()
        expected = problem.expected(SPEC)
        for out in outs:
            assert_close(out, expected)


def test_many_replays_with_changing_lengths(paged_problem, strategy):
    rng = random.Random(0)
    problem = paged_problem(strategy.shape, (4000,) * 6)
    graph, outs = captured(problem, strategy)
    for replay in range(10_000):
        if replay % 20 == 0:
            set_lengths(problem, [rng.choice([0, 1, rng.randint(1, 4000)]) for _ in range(6)])
        graph.replay()
        if replay % 500 == 20:
            assert_close(outs[-1], problem.expected(SPEC))
            assert torch.equal(outs[0], outs[-1])


@pytest.mark.parametrize("cls", CLASSES)
def test_two_streams_at_once(paged_problem, cls):
    problems = [paged_problem(shape_of(), lengths, 7) for lengths in [(9000, 50), (30, 7000, 1)]]
    strategies = [cls(problem.shape) for problem in problems]
    expected = [p.run(s, SPEC) for p, s in zip(problems, strategies, strict=True)]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    for _ in range(200):
        results = []
        for problem, strategy, stream in zip(problems, strategies, streams, strict=True):
            with torch.cuda.stream(stream):
                results.append(problem.run(strategy, SPEC))
        torch.cuda.synchronize()
        for result, want in zip(results, expected, strict=True):
            assert torch.equal(result, want)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("gluon", [True, False])
@pytest.mark.parametrize(
    "spec",
    [
        LayerSpec(0.1, window=1),
        LayerSpec(0.1, window=200),
        LayerSpec(0.1, window=77, softcap=20.0),
        LayerSpec(0.1, sinks=torch.linspace(-3, 5, 16)),
    ],
    ids=str,
)
def test_layers_in_few_programs(paged_problem, cls, gluon, spec):
    """Each with several pieces, of whole tiles and of less."""
    shape = shape_of(heads=4)
    config = tile_config(shape)
    if gluon > config.gluon:
        pytest.skip("written for Hopper")
    config = dataclasses.replace(config, gluon=gluon, num_programs=7, min_share=16)
    problem = paged_problem(shape, (1, 700, 64, 0, 16, 129, 0, 2000))
    if spec.sinks is not None:
        spec = dataclasses.replace(spec, sinks=spec.sinks.cuda())
    assert_close(problem.run(cls(shape, config), spec), problem.expected(spec))


@pytest.mark.parametrize("cls", CLASSES)
def test_newest_token_comes_from_the_kernel_in_front(paged_problem, cls):
    """Attention may fetch all tokens but that one before the kernel in front is done."""
    problem = paged_problem(shape_of(), (1, 16, 64, 65, 127, 128, 129, 192, 193, 5000))
    strategy, kv_layer = cls(problem.shape), problem.kv_layer
    last = problem.batch.seq_lens.long() - 1
    size = tokens_per_page(kv_layer)
    page = problem.batch.block_table.gather(1, (last // size)[:, None])[:, 0].long()
    rows = kv_rows(page * size + last % size, kv_layer)
    strategy.plan(problem.batch, 4)
    new = torch.randn(50, 2, len(last), 8, 128, device="cuda", dtype=torch.float16)
    outs = torch.empty(50, *problem.q.shape, device="cuda", dtype=torch.float16)
    for (k, v), out in zip(new, outs, strict=True):
        write_kv(kv_layer, rows, k, v)
        strategy.run(problem.q, kv_layer, out, SPEC)
    for (k, v), out in zip(new[::7], outs[::7], strict=True):
        write_kv(kv_layer, rows, k, v)
        assert_close(out, problem.expected(SPEC))
