"""The device planner's invariants, over random ragged batches."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.planner_triton import Plan, share_planner
from pkvchat.kernels.policy.cost import strategy_work

UNIT = 16


@dataclass(frozen=True)
class Settings:
    num_programs: int
    num_kv_heads: int
    window: int = 0
    overhead: int = 1
    min_share: int = 1
    padding: int = 4


def pieces_of(lengths, settings, device):
    """The plan, and what each program walks through: (segment, begin, end) in units."""
    plan = Plan.allocate(settings.num_programs, device)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    options = dataclasses.asdict(settings)
    options.pop("num_programs")
    share_planner(plan, options.pop("window"), unit=UNIT, **options)(seq_lens)
    share, overhead, step = plan.share.tolist()
    pieces = []
    *starts, end = plan.starts.tolist()
    assert end[0] == len(lengths)
    for row, head, spent, length in starts:
        assert row == len(lengths) or length == lengths[row]
        mine, budget = [], share
        while budget > 0 and row < len(lengths):
            units = units_of(lengths[row], settings.window)
            begin, end = max(spent - overhead, 0), min(spent + budget - overhead, units)
            if begin < end:
                mine.append(((row, head), begin, end))
            budget, spent = budget - (cost_of(units, overhead, step) - spent), 0
            last = head + 1 == settings.num_kv_heads or units == 0
            row, head = (row + 1, 0) if last else (row, head + 1)
        pieces.append(mine)
    return plan, pieces


def cost_of(units, overhead, step):
    return -(-(units + overhead) // step) * step if units else 0


def units_of(length, window):
    first = max(length - window, 0) if window else 0
    return -(-length // UNIT) - first // UNIT if length else 0


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 700), min_size=1, max_size=9),
    settings=st.builds(
        Settings,
        num_programs=st.integers(1, 40),
        num_kv_heads=st.integers(1, 4),
        window=st.sampled_from([0, 0, 1, 50, 300]),
        overhead=st.sampled_from([1, 2, 4]),
        min_share=st.integers(1, 8),
        padding=st.sampled_from([0, 4, 50]),
    ),
)
def test_shares(triton_device, lengths, settings):
    plan, pieces = pieces_of(lengths, settings, triton_device)
    share, overhead, step = plan.share.tolist()
    units = [units_of(length, settings.window) for length in lengths]
    segments = list(itertools.product(range(len(lengths)), range(settings.num_kv_heads)))
    # Every unit exactly once, in order.
    covered = [piece for mine in pieces for piece in mine]
    assert covered == sorted(covered)
    for segment in segments:
        runs = [(begin, end) for owner, begin, end in covered if owner == segment]
        assert [unit for run in runs for unit in range(*run)] == list(range(units[segment[0]]))
    # Shares are near equal: the least possible one, and what padding or overheads may add.
    least = max(-(-sum(units) * settings.num_kv_heads // settings.num_programs), settings.min_share)
    costs = sum(cost_of(n, settings.overhead, 1) for n in units) * settings.num_kv_heads
    if step > 1:
        assert least <= share <= least + max(least * settings.padding // 100, settings.overhead - 1)
        assert all(len(mine) <= 1 for mine in pieces)
    else:
        exact = max(-(-costs // settings.num_programs), settings.min_share)
        assert share == (exact if overhead else least)
    assert all(sum(end - begin for _, begin, end in mine) <= share for mine in pieces)
    for mine in pieces:
        # One leading and one trailing partial piece at most: their slots cannot collide.
        assert all(begin == 0 for _, begin, _ in mine[1:])
        assert all(end == units[row] for (row, _), _, end in mine[:-1])
    # The merge finds each split segment's programs from row_cost and the share alone.
    for row, head in segments:
        if units[row]:
            cost = cost_of(units[row], overhead, step)
            origin = int(plan.row_cost[row]) + head * cost + overhead
            owners = [p for p, mine in enumerate(pieces) if (row, head) in {s for s, *_ in mine}]
            assert owners == list(range(origin // share, (origin + units[row] - 1) // share + 1))


def test_equal_rows_give_each_program_one_piece(triton_device):
    _, pieces = pieces_of([640, 640], Settings(num_programs=33, num_kv_heads=2), triton_device)
    assert {len(mine) for mine in pieces} <= {0, 1}
    assert sum(map(bool, pieces)) == 32  # 40 units in shares of 5, four times


def test_more_rows_than_one_block(triton_device):
    """The planner goes over the batch in blocks of rows."""
    lengths = [(37 * row) % 100 for row in range(300)]
    plan, pieces = pieces_of(lengths, Settings(num_programs=7, num_kv_heads=2), triton_device)
    covered = [end - begin for mine in pieces for _, begin, end in mine]
    assert sum(covered) == 2 * sum(units_of(n, 0) for n in lengths)
    assert all(sum(e - b for _, b, e in mine) <= int(plan.share[0]) for mine in pieces)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 9000), min_size=1, max_size=12), heads=st.integers(1, 8))
def test_the_policy_expects_the_shares_that_are_planned(triton_device, lengths, heads):
    """kernels/policy/cost.py follows the plan on the host, to predict its time."""
    programs = 12
    shape = AttentionShape(heads, heads, 128, UNIT, torch.float16, torch.device("cuda", 0))
    tiles = [-(-length // UNIT) for length in lengths]
    work = strategy_work("workqueue", tiles, 1, shape, programs)
    sizes = Settings(programs, heads, overhead=64 // UNIT, min_share=64 // UNIT)
    plan, pieces = pieces_of(lengths, sizes, triton_device)
    share, _, step = plan.share.tolist()
    segments = Counter(segment for mine in pieces for segment, _, _ in mine)
    split = sum(count for count in segments.values() if count > 1)
    if step > 1:  # padded
        assert work.tasks == 1
        assert work.merges == split
    else:
        assert work.tasks == 2
        assert work.tiles >= share * programs
        if min(lengths) > 128:  # shorter pieces take longer than their share of the bandwidth
            assert work.tiles == share * programs
