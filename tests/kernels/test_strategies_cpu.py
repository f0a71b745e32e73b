"""sdpa, split and workqueue in torch against fp64, over scattered and poisoned pages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.kernels.attention.batch import AttentionShape, LayerSpec
from pkvchat.kernels.attention.registry import STRATEGIES, create_strategy, why_unavailable
from pkvchat.kernels.attention.strategy import StrategyUnavailable

NAMES = ("sdpa", "split", "workqueue")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def shape_of(group=3, heads=2, dim=64, page=16, dtype=torch.float32):
    return AttentionShape(group * heads, heads, dim, page, dtype, torch.device("cpu"))


def check(problem, name, spec, num_splits=4):
    out = problem.run(create_strategy(name, problem.shape), spec, num_splits)
    error = (out.double() - problem.expected(spec)).abs().max()
    assert error < TOLERANCE[problem.shape.dtype]


lengths = st.lists(
    st.one_of(st.sampled_from([1, 16, 32, 64, 128]), st.integers(1, 200)), min_size=1, max_size=5
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=80, deadline=None)
@given(
    lengths=lengths,
    group=st.integers(1, 16),
    heads=st.integers(1, 3),
    dim=st.sampled_from([64, 80, 96, 128, 256]),
    page=st.sampled_from([16, 32, 64]),
    window=st.sampled_from([0, 0, 1, 16, 33, 1000]),
    softcap=st.sampled_from([0.0, 0.0, 3.0]),
    sinks=st.booleans(),
    num_splits=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_matches_fp64(
    paged_problem, name, lengths, group, heads, dim, page, window, softcap, sinks, num_splits, seed
):
    problem = paged_problem(shape_of(group, heads, dim, page), lengths, seed)
    scores = torch.linspace(-3, 5, group * heads) if sinks else None
    check(problem, name, LayerSpec(dim**-0.5, window, softcap, scores), num_splits)


@pytest.mark.parametrize("name", NAMES)
def test_long_beside_short_rows(paged_problem, name):
    check(paged_problem(shape_of(), (4000, 1, 2048)), name, LayerSpec(0.125), num_splits=16)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("lengths", [(100,), (90, 5, 33)])
def test_half_precision(paged_problem, name, dtype, lengths):
    check(paged_problem(shape_of(dtype=dtype), lengths), name, LayerSpec(0.125))


@pytest.mark.parametrize("name", NAMES)
def test_float32_queries_over_half_precision_kv(paged_problem, name):
    problem = paged_problem(shape_of(dtype=torch.float16), (100, 7))
    problem.q = problem.q.float()
    check(problem, name, LayerSpec(0.125))


@pytest.mark.parametrize("name", NAMES)
def test_plans_again_as_rows_grow_join_and_leave(paged_problem, name):
    strategy = create_strategy(name, shape_of())
    specs = [LayerSpec(0.125), LayerSpec(0.125, window=20)]
    for lengths in [(15,), (16, 40), (17, 41, 300), (301,), (2, 2, 2, 2)]:
        problem = paged_problem(shape_of(), lengths)
        for spec in (*specs, *specs):  # layers alternate
            out = problem.run(strategy, spec, num_splits=3)
            assert (out.double() - problem.expected(spec)).abs().max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_same_inputs_give_the_same_bits(paged_problem, name):
    problem = paged_problem(shape_of(), (130, 70, 9))
    first, second = (
        problem.run(create_strategy(name, problem.shape), LayerSpec(0.125)) for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_whose_kv_went_bad_leaves_the_others_alone(paged_problem, name):
    problem = paged_problem(shape_of(), (100, 37))
    pages = problem.batch.block_table[0, :7].long()
    problem.kv_layer[pages] = float("nan")
    out = problem.run(create_strategy(name, problem.shape), LayerSpec(0.125))
    expected = problem.expected(LayerSpec(0.125))
    assert out[0].isnan().all()
    assert (out[1].double() - expected[1]).abs().max() < 1e-5


def test_unknown_name_lists_those_there_are():
    with pytest.raises(ValueError, match="flashinfer, split, workqueue, sdpa"):
        create_strategy("flash", shape_of())


def test_flashinfer_needs_cuda():
    with pytest.raises(StrategyUnavailable, match="CUDA"):
        create_strategy("flashinfer", shape_of())
    reasons = {name: why_unavailable(name, shape_of()) for name in STRATEGIES}
    assert [name for name, reason in reasons.items() if not reason] == [
        "split",
        "workqueue",
        "sdpa",
    ]
