"""What no strategy takes: one ValueError that names the argument, before any launch."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pkvchat.kernels.attention.batch import AttentionShape, LayerSpec
from pkvchat.kernels.attention.registry import create_strategy

CPU = torch.device("cpu")
SPEC = LayerSpec(0.125)


def shape_of(kv_dtype=None, dtype=torch.float32):
    return AttentionShape(8, 2, 64, 16, dtype, CPU, kv_dtype)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_qo_heads": 7}, "num_qo_heads is 7, and must be a multiple of num_kv_heads, 2"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0, and must be at least 1"),
        ({"page_size": -16}, "page_size is -16"),
        (
            {"kv_dtype": torch.float16},
            "kv_dtype is torch.float16, and must be one of",
        ),
        ({"kv_dtype": torch.int8, "head_dim": 66}, "head_dim is 66, and must be a multiple of 4"),
    ],
)
def test_shapes_that_no_strategy_takes(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(shape_of(), **change)


@pytest.fixture
def problem(paged_problem):
    return paged_problem(shape_of(), (40, 20))


@pytest.fixture(params=[False, True], ids=["unused", "used"])
def strategy(problem, request):
    """What has been found right before does not hide what is wrong now."""
    strategy = create_strategy("split", problem.shape)
    if request.param:
        problem.run(strategy, SPEC)
    return strategy


def refused(strategy, problem, message, spec=SPEC, num_splits=2):
    with pytest.raises(ValueError, match=message):
        problem.run(strategy, spec, num_splits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": ()}, "lengths is ()"),
        ({"lengths": (40, -1)}, r"lengths\[1\] is -1: .* holds 0 to 48 tokens"),
        ({"lengths": (49, 20)}, r"lengths\[0\] is 49: a block table of 3 pages holds 0 to 48"),
        ({"lengths": (40, 20, 1)}, r"block_table has shape \(2, 3\), and must have 3 rows"),
        ({"block_table": torch.zeros(2, 3)}, "block_table is torch.float32, and must be .*int32"),
        (
            {"block_table": torch.zeros(3, 2, dtype=torch.int32).T},
            r"block_table has strides \(1, 2\): its rows must be contiguous",
        ),
        (
            {"block_table": torch.zeros(2, 3, dtype=torch.int32, device="meta")},
            "block_table is on meta, and must be on cpu",
        ),
        ({"seq_lens": torch.tensor([40, 20])}, "seq_lens is torch.int64, and must be torch.int32"),
        (
            {"seq_lens": torch.tensor([40], dtype=torch.int32)},
            r"seq_lens has shape \(1,\), and must have \(2,\)",
        ),
        ({"slot_mapping": torch.zeros(2)}, "slot_mapping is torch.float32"),
    ],
)
def test_batches(strategy, problem, change, message):
    problem.batch = dataclasses.replace(problem.batch, **change)
    refused(strategy, problem, message)


def test_splits(strategy, problem):
    refused(strategy, problem, "num_splits is 0, and must be at least 1", num_splits=0)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (torch.zeros(2, 8, 32), r"q has shape \(2, 8, 32\), and must have \(2, 8, 64\)"),
        (torch.zeros(8, 2, 64).transpose(0, 1), r"q has strides \(64, 128, 1\)"),
        (torch.zeros(2, 8, 64, dtype=torch.float64), "q is torch.float64, and must be .*bfloat16"),
        (torch.zeros(2, 8, 64, device="meta"), "q is on meta, and must be on cpu"),
    ],
)
def test_queries(strategy, problem, q, message):
    problem.q = q
    refused(strategy, problem, message)


def test_output_of_another_dtype(problem):
    strategy = create_strategy("sdpa", problem.shape)
    strategy.plan(problem.batch, 1)
    out = torch.empty_like(problem.q, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"out is torch.float16, and must be torch.float32"):
        strategy.run(problem.q, problem.kv_layer, out, SPEC)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kv: kv[:, :, :, :8], r"kv_layer has shape .* must be \(num_pages, 2, 2, 16, 64\)"),
        (lambda kv: kv.half(), "kv_layer is torch.float16, and must be torch.float32"),
        (lambda kv: kv.transpose(0, 1).contiguous().transpose(0, 1), "kv_layer has strides"),
        (lambda kv: kv.to("meta"), "kv_layer is on meta"),
    ],
)
def test_layers(strategy, problem, change, message):
    problem.kv_layer = change(problem.kv_layer)
    refused(strategy, problem, message)


def test_quantised_layers_have_rows_for_scales(paged_problem):
    problem = paged_problem(shape_of(torch.int8), (40, 20))
    problem.kv_layer = problem.kv_layer[:, :, :, :16].contiguous()
    refused(
        create_strategy("split", problem.shape), problem, r"must be \(num_pages, 2, 2, 17, 64\)"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LayerSpec(0.125, window=-1), "window is -1"),
        (LayerSpec(0.125, softcap=-2.0), "softcap is -2.0"),
        (LayerSpec(0.125, sinks=torch.zeros(2)), r"sinks has shape \(2,\), and must have \(8,\)"),
        (LayerSpec(0.125, sinks=torch.zeros(8).half()), "sinks is torch.float16"),
    ],
)
def test_layer_specs(strategy, problem, spec, message):
    refused(strategy, problem, message, spec)


@pytest.mark.parametrize("page", [-1, 8])
def test_block_tables_that_point_outside_the_pool(strategy, problem, page):
    problem.kv_layer = problem.kv_layer[:8].contiguous()
    problem.batch.block_table.clamp_(max=7)
    problem.batch.block_table[1, 1] = page
    refused(strategy, problem, rf"block_table\[1, 1\] is {page}: the pool's pages are 0 to 7")


def test_entries_past_a_row_are_not_looked_at(problem):
    problem.batch.block_table[1, 2] = 999
    problem.run(create_strategy("split", problem.shape), SPEC)


def test_lengths_that_differ_between_host_and_device(strategy, problem):
    problem.batch.seq_lens[0] = 41
    refused(strategy, problem, r"seq_lens\[0\] is 41, and lengths\[0\] 40: they must be equal")


def test_a_batch_is_looked_into_when_it_is_planned_again(problem):
    """As a CUDA graph's is, whose replays call ``plan`` only."""
    strategy = create_strategy("split", problem.shape)
    problem.run(strategy, SPEC)
    problem.batch.block_table[0, 0] = 999
    with pytest.raises(ValueError, match=r"block_table\[0, 0\] is 999"):
        strategy.plan(problem.batch, 2)


def test_the_hot_path_checks_shapes_only(problem, monkeypatch):
    monkeypatch.delenv("PKVCHAT_CHECK_CONTENTS")
    strategy = create_strategy("split", problem.shape)
    problem.batch.seq_lens[0] = 41  # which split takes from the host
    problem.run(strategy, SPEC)
    problem.q = problem.q[:1]
    with pytest.raises(ValueError, match="q has shape"):
        problem.run(strategy, SPEC)


@pytest.mark.gpu
def test_misaligned_tensors(paged_problem):
    shape = dataclasses.replace(shape_of(dtype=torch.float16), device=torch.device("cuda", 0))
    problem = paged_problem(shape, (40, 20))
    q = torch.zeros(problem.q.numel() + 1, dtype=torch.float16, device="cuda")
    problem.q = q[1:].view(problem.q.shape)
    refused(create_strategy("split", shape), problem, "q begins 2 bytes past a multiple of 16")


@pytest.mark.parametrize("name", ["sdpa", "split", "workqueue"])
@pytest.mark.parametrize("lengths", [(0, 20, 0, 3), (0, 0)])
def test_empty_rows_give_zeros(paged_problem, name, lengths):
    problem = paged_problem(shape_of(), lengths)
    out = problem.run(create_strategy(name, problem.shape), SPEC)
    assert (out.double() - problem.expected(SPEC)).abs().max() < 1e-5
