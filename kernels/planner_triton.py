"""The device planner: equal contiguous shares of a ragged batch, from ``seq_lens`` alone.

The work is the flattened list of (row, KV head, unit). A segment, one row's units of one KV
head, costs its units plus OVERHEAD, the price of starting it. Program p owns the units whose
position in the list of costs is in [p * share, (p + 1) * share). Nothing on the host depends on
lengths, so a captured CUDA graph replays while contexts grow.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .attend_triton import visible_units

MAX_BATCH = 1024
_BLOCK_ROWS = 128
_BLOCK_PROGRAMS = 64


@dataclass(frozen=True)
class Plan:
    """Static buffers, written by ``plan_shares``.

    starts: [num_programs, 4] int32: row, KV head, cost already spent in that segment, and the
        row's length; row == B means no work.
    row_cost: [MAX_BATCH] int32, the position at which each row's cost begins.
    share: [1] int32, the cost each program takes.
    """

    starts: torch.Tensor
    row_cost: torch.Tensor
    share: torch.Tensor

    @classmethod
    def allocate(cls, num_programs: int, device: torch.device) -> Plan:
        def zeros(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        return cls(zeros(num_programs, 4), zeros(MAX_BATCH), zeros(1))


@triton.jit
def segment_cost(length, window, UNIT: tl.constexpr, OVERHEAD: tl.constexpr):
    """The cost of one KV head of a row; an empty row costs nothing."""
    _, _, units = visible_units(length, window, UNIT)
    return units + tl.where(units > 0, OVERHEAD, 0)


@triton.jit(do_not_specialize=["batch", "window", "num_programs"])
def _plan_kernel(
    lens_ptr,
    starts_ptr,
    row_cost_ptr,
    share_ptr,
    batch,
    window,
    num_programs,
    NUM_KV_HEADS: tl.constexpr,
    UNIT: tl.constexpr,
    OVERHEAD: tl.constexpr,
    MIN_SHARE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_PROGRAMS: tl.constexpr,
):
    block = tl.program_id(0)
    lanes = tl.arange(0, BLOCK_ROWS)
    total = 0
    for base in range(0, batch, BLOCK_ROWS):
        lens = tl.load(lens_ptr + base + lanes, mask=base + lanes < batch, other=0)
        total += tl.sum(segment_cost(lens, window, UNIT, OVERHEAD) * NUM_KV_HEADS, axis=0)
    share = tl.maximum(tl.cdiv(total, num_programs), MIN_SHARE)

    programs = block * BLOCK_PROGRAMS + tl.arange(0, BLOCK_PROGRAMS)
    position = programs * share
    row = tl.zeros([BLOCK_PROGRAMS], tl.int32)
    row_begin = tl.zeros([BLOCK_PROGRAMS], tl.int32)
    before = 0
    for base in range(0, batch, BLOCK_ROWS):
        valid = base + lanes < batch
        lens = tl.load(lens_ptr + base + lanes, mask=valid, other=0)
        cost = segment_cost(lens, window, UNIT, OVERHEAD) * NUM_KV_HEADS
        ends = before + tl.cumsum(cost, axis=0)
        passed = (ends[None, :] <= position[:, None]) & valid[None, :]
        row += tl.sum(passed.to(tl.int32), axis=1)
        row_begin = tl.maximum(row_begin, tl.max(tl.where(passed, ends[None, :], 0), axis=1))
        if block == 0:
            tl.store(row_cost_ptr + base + lanes, ends - cost, mask=valid)
        before += tl.sum(cost, axis=0)

    length = tl.load(lens_ptr + row, mask=row < batch, other=0)
    cost = tl.maximum(segment_cost(length, window, UNIT, OVERHEAD), 1)
    head = (position - row_begin) // cost
    spent = (position - row_begin) % cost
    mine = programs < num_programs
    start_ptr = starts_ptr + programs * 4
    tl.store(start_ptr, row, mask=mine)
    tl.store(start_ptr + 1, head, mask=mine)
    tl.store(start_ptr + 2, spent, mask=mine)
    tl.store(start_ptr + 3, length, mask=mine)
    if block == 0:
        tl.store(share_ptr, share)


def plan_shares(
    seq_lens: torch.Tensor,
    window: int,
    plan: Plan,
    *,
    num_kv_heads: int,
    unit: int,
    overhead: int,
    min_share: int,
) -> None:
    """Fill ``plan`` for seq_lens [B] int32 in one launch, whatever the lengths.

    unit: tokens per unit of work; overhead, min_share: in units.
    """
    num_programs = plan.starts.shape[0]
    _plan_kernel[(triton.cdiv(num_programs, _BLOCK_PROGRAMS),)](
        seq_lens,
        plan.starts,
        plan.row_cost,
        plan.share,
        seq_lens.shape[0],
        window,
        num_programs,
        NUM_KV_HEADS=num_kv_heads,
        UNIT=unit,
        OVERHEAD=overhead,
        MIN_SHARE=min_share,
        BLOCK_ROWS=_BLOCK_ROWS,
        BLOCK_PROGRAMS=_BLOCK_PROGRAMS,
    )
