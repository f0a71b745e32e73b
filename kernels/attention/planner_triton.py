"""The device planner: equal contiguous shares of a ragged batch, from ``seq_lens`` alone.

The work is the flattened list of (row, KV head, unit). A segment, one row's units of one KV
head, costs its units plus the overhead of starting it. Program p owns the units whose position
in the list of costs is in [p * share, (p + 1) * share). Where it makes shares hardly larger,
segments are padded to a multiple of the share instead: no program then has two pieces to do one
after the other. Nothing on the host depends on lengths, so a captured CUDA graph replays while
contexts grow.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..launch_triton import BoundKernel
from .attend_triton import visible_units

MAX_BATCH = 1024
_BLOCK_ROWS = 128
_BLOCK_PROGRAMS = 64
_CANDIDATES = tl.constexpr(16)


@dataclass(frozen=True)
class Plan:
    """Static buffers, written by a ``share_planner``.

    starts: [num_programs + 1, 4] int32, where each program begins, and the last one ends: row, KV
        head, cost already spent in that segment, and the row's length; row == B means no work.
    row_cost: [MAX_BATCH] int32, the position at which each row's cost begins.
    share: [3] int32: the cost each program takes, the overhead of a segment, and the step that
        segments are padded to a multiple of.
    """

    starts: torch.Tensor
    row_cost: torch.Tensor
    share: torch.Tensor

    @classmethod
    def allocate(cls, num_programs: int, device: torch.device) -> Plan:
        def zeros(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        return cls(zeros(num_programs + 1, 4), zeros(MAX_BATCH), zeros(3))


@triton.jit
def segment_cost(units, overhead, step):
    """The cost of one KV head of a row with that many units; an empty row costs nothing."""
    return tl.where(units > 0, tl.cdiv(units + overhead, step) * step, 0)


@triton.jit
def _block_units(lens_ptr, base, batch, window, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    rows = base + tl.arange(0, BLOCK)
    lens = tl.load(lens_ptr + rows, mask=rows < batch, other=0)
    _, _, units = visible_units(lens, window, UNIT)
    return rows, units


@triton.jit
def _choose_share(
    lens_ptr,
    batch,
    window,
    num_programs,
    NUM_KV_HEADS: tl.constexpr,
    UNIT: tl.constexpr,
    OVERHEAD: tl.constexpr,
    MIN_SHARE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(share, overhead, step); see Plan."""
    total_units = 0
    total_cost = 0
    for base in range(0, batch, BLOCK):
        _, units = _block_units(lens_ptr, base, batch, window, UNIT, BLOCK)
        total_units += tl.sum(units, axis=0) * NUM_KV_HEADS
        total_cost += tl.sum(segment_cost(units, OVERHEAD, 1), axis=0) * NUM_KV_HEADS
    # Padded shares: the smallest for which the programs suffice, of those not much larger.
    least = tl.maximum(tl.cdiv(total_units, num_programs), MIN_SHARE)
    most = tl.maximum(least * PADDING // 100, OVERHEAD - 1)
    more = tl.arange(0, _CANDIDATES) * tl.maximum(most // (_CANDIDATES - 1), 1)
    shares = least + more
    needed = tl.zeros([_CANDIDATES], tl.int32)
    for base in range(0, batch, BLOCK):
        _, units = _block_units(lens_ptr, base, batch, window, UNIT, BLOCK)
        needed += tl.sum(tl.cdiv(units[None, :], shares[:, None]), axis=1) * NUM_KV_HEADS
    fit = (needed <= num_programs) & (more <= most)
    padded = tl.min(tl.where(fit, shares, 2147483647), axis=0)
    fits = padded < 2147483647
    exact = tl.maximum(tl.cdiv(total_cost, num_programs), MIN_SHARE)
    share = tl.where(fits, padded, exact)
    return share, tl.where(fits, 0, OVERHEAD), tl.where(fits, padded, 1)


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
    PADDING: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_PROGRAMS: tl.constexpr,
):
    block = tl.program_id(0)
    share, overhead, step = _choose_share(
        lens_ptr,
        batch,
        window,
        num_programs,
        NUM_KV_HEADS,
        UNIT,
        OVERHEAD,
        MIN_SHARE,
        PADDING,
        BLOCK_ROWS,
    )
    programs = block * BLOCK_PROGRAMS + tl.arange(0, BLOCK_PROGRAMS)
    position = programs * share
    row = tl.zeros([BLOCK_PROGRAMS], tl.int32)
    row_begin = tl.zeros([BLOCK_PROGRAMS], tl.int32)
    before = 0
    for base in range(0, batch, BLOCK_ROWS):
        rows, units = _block_units(lens_ptr, base, batch, window, UNIT, BLOCK_ROWS)
        cost = segment_cost(units, overhead, step) * NUM_KV_HEADS
        ends = before + tl.cumsum(cost, axis=0)
        passed = (ends[None, :] <= position[:, None]) & (rows < batch)[None, :]
        row += tl.sum(passed.to(tl.int32), axis=1)
        row_begin = tl.maximum(row_begin, tl.max(tl.where(passed, ends[None, :], 0), axis=1))
        if block == 0:
            tl.store(row_cost_ptr + rows, ends - cost, mask=rows < batch)
        before += tl.sum(cost, axis=0)

    length = tl.load(lens_ptr + row, mask=row < batch, other=0)
    _, _, units = visible_units(length, window, UNIT)
    cost = tl.maximum(segment_cost(units, overhead, step), 1)
    start_ptr = starts_ptr + programs * 4
    mine = programs <= num_programs
    tl.store(start_ptr, row, mask=mine)
    tl.store(start_ptr + 1, (position - row_begin) // cost, mask=mine)
    tl.store(start_ptr + 2, (position - row_begin) % cost, mask=mine)
    tl.store(start_ptr + 3, length, mask=mine)
    if block == 0:
        tl.store(share_ptr, share)
        tl.store(share_ptr + 1, overhead)
        tl.store(share_ptr + 2, step)


def share_planner(
    plan: Plan,
    window: int,
    *,
    num_kv_heads: int,
    unit: int,
    overhead: int,
    min_share: int,
    padding: int,
) -> Callable[[torch.Tensor], None]:
    """What fills ``plan`` for seq_lens [B] int32 in one launch, whatever the lengths.

    unit: tokens per unit of work. overhead: of a segment, in units. min_share: of a program, in
    units. padding: by which padded shares may be larger, in percent, where that is more than what
    a second piece costs.
    """
    num_programs = plan.starts.shape[0] - 1
    grid = (num_programs // _BLOCK_PROGRAMS + 1,)
    kernel = BoundKernel(
        _plan_kernel,
        starts_ptr=plan.starts,
        row_cost_ptr=plan.row_cost,
        share_ptr=plan.share,
        window=window,
        num_programs=num_programs,
        NUM_KV_HEADS=num_kv_heads,
        UNIT=unit,
        OVERHEAD=overhead,
        MIN_SHARE=min_share,
        PADDING=padding,
        BLOCK_ROWS=_BLOCK_ROWS,
        BLOCK_PROGRAMS=_BLOCK_PROGRAMS,
    )
    return lambda seq_lens: kernel(grid, seq_lens, len(seq_lens))
