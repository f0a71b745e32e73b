"""The compact schedule for CUDA: a fixed grid, each program one equal share of the ragged batch.

A share is a run of the flattened (row, KV head, unit) list (planner_triton). A segment that one
program covers whole goes straight to the output. A split one leaves partial states: program p's
leading piece, continued from p - 1, in slot p, and its trailing piece, begun here and continued
by p + 1, in slot num_programs + p. A second kernel merges each split segment's pieces in order.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .attend_triton import TileConfig, attend_tokens, tile_config, visible_units
from .batch import AttentionShape, DecodeBatch, LayerSpec
from .merge_triton import (
    MERGE_WARPS,
    allocate_states,
    merge_block,
    merge_grid,
    merge_states,
    store_piece,
)
from .paged_strategy import PagedStrategy
from .planner_triton import MAX_BATCH, Plan, plan_shares, segment_cost


@triton.jit(do_not_specialize=["table_stride", "batch", "window"])
def _attend_kernel(
    q_ptr,
    kv_ptr,
    sinks_ptr,
    out_ptr,
    table_ptr,
    table_stride,
    lens_ptr,
    starts_ptr,
    share_ptr,
    acc_ptr,
    m_ptr,
    l_ptr,
    batch,
    window,
    scale,
    softcap,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    UNIT: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    program = tl.program_id(0)
    budget = tl.load(share_ptr)
    overhead = tl.load(share_ptr + 1)
    padded = tl.load(share_ptr + 2) > 1
    row = tl.load(starts_ptr + program * 4)
    head = tl.load(starts_ptr + program * 4 + 1)
    spent = tl.load(starts_ptr + program * 4 + 2)
    length = tl.load(starts_ptr + program * 4 + 3)
    while (budget > 0) & (row < batch):
        first_token, first_unit, units = visible_units(length, window, UNIT)
        first = tl.maximum(spent - overhead, 0)
        last = tl.minimum(spent + budget - overhead, units)
        begin = (first_unit + first) * UNIT
        end = tl.minimum((first_unit + last) * UNIT, length)
        if first < last:
            at = (row * NUM_KV_HEADS + head) * GROUP * HEAD_DIM
            m, l, acc = attend_tokens(  # noqa: E741
                q_ptr + at,
                kv_ptr + head * PAGE_ROWS * HEAD_DIM,
                table_ptr + row.to(tl.int64) * table_stride,
                None if sinks_ptr is None else sinks_ptr + head * GROUP,
                first_token,
                begin,
                end,
                first == 0,
                scale,
                softcap,
                GROUP,
                NUM_KV_HEADS,
                HEAD_DIM,
                PAGE_SIZE,
                PAGE_ROWS,
                GROUP_PAD,
                DIM_PAD,
                TILE,
                STAGES,
                PREFETCH,
                HAS_SOFTCAP,
                PDL,
            )
            whole = (first == 0) & (last == units)
            slot = tl.where(first > 0, program, tl.num_programs(0) + program)
            store_piece(
                out_ptr + at, acc_ptr, m_ptr, l_ptr, m, l, acc, whole, slot, GROUP, HEAD_DIM
            )
        # In a padded plan a program has one piece.
        budget = tl.where(padded, 0, budget - (units + tl.where(units > 0, overhead, 0) - spent))
        spent = 0
        head += 1
        if (budget > 0) & ((head == NUM_KV_HEADS) | (units == 0)):
            head = 0
            row += 1
            length = tl.load(lens_ptr + row, mask=row < batch, other=0)
    if PDL:
        gdc_wait()  # idle programs too: who waits for this kernel waits for the one in front


@triton.jit(do_not_specialize=["window", "num_programs"])
def _merge_kernel(
    out_ptr,
    lens_ptr,
    row_cost_ptr,
    share_ptr,
    acc_ptr,
    m_ptr,
    l_ptr,
    window,
    num_programs,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0)
    head = tl.program_id(1)
    _, _, units = visible_units(tl.load(lens_ptr + row), window, UNIT)
    share = tl.load(share_ptr)
    overhead = tl.load(share_ptr + 1)
    cost = segment_cost(units, overhead, tl.load(share_ptr + 2))
    begin = tl.load(row_cost_ptr + row) + head * cost + overhead
    first = begin // share
    pieces = tl.where(units > 0, (begin + units - 1) // share - first + 1, 0)
    if PDL:
        gdc_wait()
    if pieces != 1:  # one piece has gone straight to the output
        merge_states(
            out_ptr + (row * NUM_KV_HEADS + head) * GROUP * HEAD_DIM,
            acc_ptr,
            m_ptr,
            l_ptr,
            num_programs + first,
            first,
            pieces,
            tl.program_id(2),
            GROUP,
            HEAD_DIM,
            BLOCK,
            HEADS,
            DIMS,
        )


class WorkqueueTriton(PagedStrategy):
    """Decode attention over equal shares; see the module. Rows of length 0 give zeros."""

    name = "workqueue"
    capturable = True

    def __init__(self, shape: AttentionShape, config: TileConfig | None = None) -> None:
        super().__init__(shape)
        self.config = config or tile_config(shape)
        self._states = allocate_states(2 * self.config.num_programs, shape)
        self._plans: dict[int, Plan] = {}  # by window
        self._planned: set[int] = set()  # windows planned for this batch

    def _plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """Remember the batch; each window is planned on the device at its first layer."""
        if len(batch) > MAX_BATCH:
            raise ValueError(f"a batch of {len(batch)} rows; at most {MAX_BATCH} are supported")
        self._planned.clear()

    def _plan_for(self, batch: DecodeBatch, window: int) -> Plan:
        config = self.config
        if window not in self._plans:
            self._plans[window] = Plan.allocate(config.num_programs, self.shape.device)
        if window not in self._planned:
            plan_shares(
                batch.seq_lens,
                window,
                self._plans[window],
                num_kv_heads=self.shape.num_kv_heads,
                unit=config.unit,
                overhead=max(1, config.overhead // config.unit),
                min_share=max(1, config.min_share // config.unit),
            )
            self._planned.add(window)
        return self._plans[window]

    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        shape, config, batch = self.shape, self.config, self._batch
        assert batch is not None, "plan() comes first"
        # The kernel reads the plan before it waits for the kernel in front of it, so it may not
        # overlap the planner.
        overlap = config.pdl and spec.window in self._planned
        plan = self._plan_for(batch, spec.window)
        common = {
            "NUM_KV_HEADS": shape.num_kv_heads,
            "GROUP": shape.group_size,
            "HEAD_DIM": shape.head_dim,
            "UNIT": config.unit,
        }
        _attend_kernel[(config.num_programs,)](
            q,
            kv_layer,
            spec.sinks,
            out,
            batch.block_table,
            batch.block_table.stride(0),
            batch.seq_lens,
            plan.starts,
            plan.share,
            *self._states,
            len(batch),
            spec.window,
            spec.scale,
            spec.softcap,
            **common,
            **config.constants(shape, spec),
            PDL=overlap,
            num_warps=config.num_warps,
            launch_pdl=overlap,
        )
        block = merge_block(shape, config.num_programs / (len(batch) * shape.num_kv_heads))
        _merge_kernel[merge_grid(shape, len(batch), block)](
            out,
            batch.seq_lens,
            plan.row_cost,
            plan.share,
            *self._states,
            spec.window,
            config.num_programs,
            **common,
            **block,
            PDL=config.pdl,
            num_warps=MERGE_WARPS,
            launch_pdl=config.pdl,
        )
