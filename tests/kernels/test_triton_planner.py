"""The device planner's invariants, over random ragged batches."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from pkvchat.kernels.planner_triton import Plan, plan_shares

UNIT = 16


def pieces_of(lengths, num_programs, num_kv_heads, window, overhead, min_share, device):
    """What each program walks through, as the workqueue kernel does: (segment, begin, end)."""
    plan = Plan.allocate(num_programs, device)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    plan_shares(
        seq_lens,
        window,
        plan,
        num_kv_heads=num_kv_heads,
        unit=UNIT,
        overhead=overhead,
        min_share=min_share,
    )
    share = int(plan.share)
    pieces = []
    for row, head, spent, length in plan.starts.tolist():
        assert row == len(lengths) or length == lengths[row]
        mine, budget = [], share
        while budget > 0 and row < len(lengths):
            units = units_of(lengths[row], window)
            cost = units + overhead if units else 0
            begin, end = max(spent - overhead, 0), min(spent + budget - overhead, units)
            if begin < end:
                mine.append(((row, head), begin, end))
            budget, spent = budget - (cost - spent), 0
            row, head = (row, head + 1) if head + 1 < num_kv_heads and cost else (row + 1, 0)
        pieces.append(mine)
    return share, pieces, plan


def units_of(length, window):
    first = max(length - window, 0) if window else 0
    return -(-length // UNIT) - first // UNIT if length else 0


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 700), min_size=1, max_size=9),
    num_programs=st.integers(1, 12),
    num_kv_heads=st.integers(1, 4),
    window=st.sampled_from([0, 0, 1, 50, 300]),
    overhead=st.integers(0, 5),
    min_share=st.integers(1, 8),
)
def test_shares(triton_device, lengths, num_programs, num_kv_heads, window, overhead, min_share):
    share, pieces, plan = pieces_of(
        lengths, num_programs, num_kv_heads, window, overhead, min_share, triton_device
    )
    covered = [piece for mine in pieces for piece in mine]
    # Every unit exactly once, in order.
    for row, head in itertools.product(range(len(lengths)), range(num_kv_heads)):
        runs = [(begin, end) for segment, begin, end in covered if segment == (row, head)]
        joined = [unit for begin, end in runs for unit in range(begin, end)]
        assert joined == list(range(units_of(lengths[row], window)))
    assert covered == sorted(covered)
    # No program has more than its share; only the programs at the end have less than all of it.
    total = sum((units_of(n, window) + overhead) * num_kv_heads for n in lengths if n)
    assert share == max(-(-total // num_programs), min_share)
    for mine in pieces:
        assert sum(end - begin for _, begin, end in mine) <= share
        # One leading and one trailing partial piece at most: their slots cannot collide.
        assert all(begin == 0 for _, begin, _ in mine[1:])
        assert all(end == units_of(lengths[row], window) for (row, _), _, end in mine[:-1])
    # The merge finds each split segment's programs from row_cost and the share alone.
    for row, head in itertools.product(range(len(lengths)), range(num_kv_heads)):
        units = units_of(lengths[row], window)
        if units:
            origin = int(plan.row_cost[row]) + head * (units + overhead) + overhead
            owners = [p for p, mine in enumerate(pieces) if (row, head) in {s for s, *_ in mine}]
            assert owners == list(range(origin // share, (origin + units - 1) // share + 1))


def test_more_rows_than_one_block(triton_device):
    """The planner goes over the batch in blocks of rows."""
    lengths = [(37 * row) % 100 for row in range(300)]
    share, pieces, _ = pieces_of(lengths, 7, 2, 0, 1, 1, triton_device)
    assert sum(end - begin for mine in pieces for _, begin, end in mine) == 2 * sum(
        units_of(n, 0) for n in lengths
    )
    assert all(sum(end - begin for _, begin, end in mine) <= share for mine in pieces)
