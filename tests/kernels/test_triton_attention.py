"""split and workqueue in Triton against fp64: in the interpreter here, compiled where a GPU is."""

from __future__ import annotations

import dataclasses

import pytest
import torch

pytest.importorskip("triton")

from pkvchat.kernels.attention.batch import AttentionShape, LayerSpec
from pkvchat.kernels.attention.split_triton import SplitTriton
from pkvchat.kernels.attention.strategy import StrategyUnavailable
from pkvchat.kernels.attention.tile_config import tile_config
from pkvchat.kernels.attention.workqueue_triton import WorkqueueTriton

CLASSES = (SplitTriton, WorkqueueTriton)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def shape_of(device, group=4, heads=2, dim=64, page=16, dtype=torch.float32):
    return AttentionShape(group * heads, heads, dim, page, dtype, device)


def small(cls, shape):
    """A strategy whose tiles and shares are small enough for short rows to exercise all of it."""
    config = dataclasses.replace(tile_config(shape), tile=32, gluon=False)
    config = dataclasses.replace(config, num_programs=5, min_share=1)
    config = dataclasses.replace(config, unit=min(shape.page_size, config.tile))
    strategy = cls(shape, config)
    for states in strategy._states:
        states.fill_(float("nan"))
    return strategy


def check(problem, strategy, spec, num_splits=4):
    out = problem.run(strategy, spec, num_splits)
    error = (out.cpu().double() - problem.expected(spec)).abs().max()
    assert error < TOLERANCE[problem.shape.dtype]
    return out


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "spec",
    [
        LayerSpec(0.125),
        LayerSpec(0.3, window=1),
        LayerSpec(0.125, window=40),
        LayerSpec(0.125, softcap=2.0),
        LayerSpec(0.125, window=17, softcap=30.0),
        LayerSpec(0.125, sinks=torch.linspace(-3, 5, 8)),
        LayerSpec(0.125, window=40, softcap=2.0, sinks=torch.full((8,), 100.0)),
    ],
    ids=str,
)
def test_ragged_rows(paged_problem, triton_device, cls, spec):
    problem = paged_problem(shape_of(triton_device), (1, 100, 32, 0, 16, 65, 0))
    if spec.sinks is not None:
        spec = dataclasses.replace(spec, sinks=spec.sinks.to(triton_device))
    check(problem, small(cls, problem.shape), spec)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("group", [1, 3, 5, 7, 12, 16])
def test_group_sizes(paged_problem, triton_device, cls, group):
    problem = paged_problem(shape_of(triton_device, group=group), (50, 17))
    check(problem, small(cls, problem.shape), LayerSpec(0.125))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("dim", "page"), [(80, 16), (96, 32), (128, 64), (256, 16)])
def test_head_dims_and_page_sizes(paged_problem, triton_device, cls, dim, page):
    problem = paged_problem(shape_of(triton_device, dim=dim, page=page), (70, 64, 3))
    check(problem, small(cls, problem.shape), LayerSpec(dim**-0.5))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "dtype",
    # Triton's interpreter multiplies bfloat16's bits as integers in tl.dot.
    [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)],
)
def test_half_precision(paged_problem, triton_device, cls, dtype):
    problem = paged_problem(shape_of(triton_device, dtype=dtype), (90, 5))
    check(problem, small(cls, problem.shape), LayerSpec(0.125))


@pytest.mark.parametrize("num_splits", [1, 3, 1000])
def test_any_number_of_splits(paged_problem, triton_device, num_splits):
    problem = paged_problem(shape_of(triton_device, heads=1), (200, 31))
    check(problem, small(SplitTriton, problem.shape), LayerSpec(0.125), num_splits)


@pytest.mark.parametrize("cls", CLASSES)
def test_large_scores_do_not_overflow(paged_problem, triton_device, cls):
    problem = paged_problem(shape_of(triton_device), (70,))
    check(problem, small(cls, problem.shape), LayerSpec(50.0))


@pytest.mark.parametrize("cls", CLASSES)
def test_bit_identical_and_replanned(paged_problem, triton_device, cls):
    """One object over growing and shrinking batches, windows mixed between layers."""
    shape = shape_of(triton_device)
    strategy = small(cls, shape)
    for lengths in [(33,), (50, 2), (34,)]:
        problem = paged_problem(shape, lengths)
        for spec in (LayerSpec(0.125), LayerSpec(0.125, window=20)):
            first = check(problem, strategy, spec)
            assert torch.equal(first, problem.run(strategy, spec))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_dim": 512}, "split takes head_dim up to 256, not 512"),
        ({"page_size": 24}, "split takes pages of a power of two of tokens, not 24"),
    ],
)
def test_says_why_it_declines(triton_device, change, reason):
    with pytest.raises(StrategyUnavailable, match=reason):
        SplitTriton(dataclasses.replace(shape_of(triton_device), **change))


def test_batch_too_large(paged_problem, triton_device):
    problem = paged_problem(shape_of(triton_device, group=1, heads=1), (1,) * 1025)
    with pytest.raises(ValueError, match="1025 rows; at most 1024"):
        problem.run(small(WorkqueueTriton, problem.shape), LayerSpec(1.0))
