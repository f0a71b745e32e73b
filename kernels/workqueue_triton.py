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

from .attend_triton import (
    TileConfig,
    allocate_states,
    attend_tokens,
    merge_states,
    tile_config,
    visible_units,
)
from .batch import AttentionShape, DecodeBatch, LayerSpec
from .planner_triton import MAX_BATCH, Plan, plan_shares, segment_cost


@triton.jit(do_not_specialize=["table_stride", "batch", "window"])
def _attend_kernel(
    q_ptr,
    kv_ptr,
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
    UNIT: tl.constexpr,
    OVERHEAD: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    num_programs = tl.num_programs(0)
    budget = tl.load(share_ptr)
    row = tl.load(starts_ptr + program * 4)
    head = tl.load(starts_ptr + program * 4 + 1)
    spent = tl.load(starts_ptr + program * 4 + 2)
    length = tl.load(starts_ptr + program * 4 + 3)
    groups = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    mask = (groups < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    state = groups[:, None] * HEAD_DIM + dims[None, :]
    if PDL:
        gdc_wait()  # q and the newest K/V come from the kernel before
    while (budget > 0) & (row < batch):
        first_token, first_unit, units = visible_units(length, window, UNIT)
        cost = segment_cost(length, window, UNIT, OVERHEAD)
        begin = tl.maximum(spent - OVERHEAD, 0)
        end = tl.minimum(spent + budget - OVERHEAD, units)
        if begin < end:
            at = (row * NUM_KV_HEADS + head) * GROUP * HEAD_DIM
            q = tl.load(q_ptr + at + state, mask=mask, other=0.0)
            m, l, acc = attend_tokens(  # noqa: E741
                q,
                kv_ptr + head * PAGE_SIZE * HEAD_DIM,
                table_ptr + row.to(tl.int64) * table_stride,
                first_token,
                (first_unit + begin) * UNIT,
                tl.minimum((first_unit + end) * UNIT, length),
                scale,
                softcap,
                PAGE_SIZE,
                2 * NUM_KV_HEADS * PAGE_SIZE * HEAD_DIM,
                NUM_KV_HEADS * PAGE_SIZE * HEAD_DIM,
                HEAD_DIM,
                TILE,
                STAGES,
                HAS_SOFTCAP,
            )
            if (begin == 0) & (end == units):
                out = acc / l[:, None]
                tl.store(out_ptr + at + state, out.to(out_ptr.dtype.element_ty), mask=mask)
            else:
                slot = tl.where(begin > 0, program, num_programs + program)
                tl.store(acc_ptr + slot * GROUP * HEAD_DIM + state, acc, mask=mask)
                tl.store(m_ptr + slot * GROUP + groups, m, mask=groups < GROUP)
                tl.store(l_ptr + slot * GROUP + groups, l, mask=groups < GROUP)
        budget -= cost - spent
        spent = 0
        head += 1
        if (head == NUM_KV_HEADS) | (cost == 0):
            head = 0
            row += 1
            length = tl.load(lens_ptr + row, mask=row < batch, other=0)
    if PDL:
        gdc_launch_dependents()


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
    OVERHEAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    qo_head = tl.program_id(1)
    length = tl.load(lens_ptr + row)
    _, _, units = visible_units(length, window, UNIT)
    cost = segment_cost(length, window, UNIT, OVERHEAD)
    share = tl.load(share_ptr)
    begin = tl.load(row_cost_ptr + row) + qo_head // GROUP * cost + OVERHEAD
    first = begin // share
    last = (begin + units - 1) // share
    dims = tl.arange(0, DIM_PAD)
    at = out_ptr + (row * NUM_KV_HEADS * GROUP + qo_head) * HEAD_DIM + dims
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    if units == 0:
        tl.store(at, tl.zeros([DIM_PAD], out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
    elif first < last:
        out = merge_states(
            acc_ptr,
            m_ptr,
            l_ptr,
            num_programs + first,
            first,
            last - first + 1,
            qo_head % GROUP,
            GROUP,
            HEAD_DIM,
            DIM_PAD,
            BLOCK,
        )
        tl.store(at, out.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


class WorkqueueTriton:
    """Decode attention over equal shares; see the module. Rows of length 0 give zeros."""

    name = "workqueue"

    def __init__(self, shape: AttentionShape, config: TileConfig | None = None) -> None:
        self.shape = shape
        self.config = config or tile_config(shape)
        self._states = allocate_states(2 * self.config.num_programs, shape)
        self._plans: dict[int, Plan] = {}  # by window
        self._planned: set[int] = set()  # windows planned for this batch
        self._batch: DecodeBatch | None = None

    def plan(self, batch: DecodeBatch, num_splits: int) -> None:  # noqa: ARG002
        """Remember the batch; each window is planned on the device at its first layer."""
        if len(batch) > MAX_BATCH:
            raise ValueError(f"a batch of {len(batch)} rows; at most {MAX_BATCH} are supported")
        self._batch = batch
        self._planned.clear()

    def run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        shape, config, batch = self.shape, self.config, self._batch
        assert batch is not None, "plan() comes first"
        plan = self._plans.get(spec.window)
        if plan is None:
            plan = Plan.allocate(config.num_programs, shape.device)
            self._plans[spec.window] = plan
        # The kernel reads the plan before it waits for the kernel in front of it, so it may not
        # overlap the planner.
        overlap = config.pdl and spec.window in self._planned
        if spec.window not in self._planned:
            plan_shares(
                batch.seq_lens,
                spec.window,
                plan,
                num_kv_heads=shape.num_kv_heads,
                unit=config.unit,
                overhead=config.overhead,
                min_share=config.min_share,
            )
            self._planned.add(spec.window)
        rows = len(batch)
        _attend_kernel[(config.num_programs,)](
            q,
            kv_layer,
            out,
            batch.block_table,
            batch.block_table.stride(0),
            batch.seq_lens,
            plan.starts,
            plan.share,
            *self._states,
            rows,
            spec.window,
            spec.scale,
            spec.softcap,
            NUM_KV_HEADS=shape.num_kv_heads,
            GROUP=shape.group_size,
            HEAD_DIM=shape.head_dim,
            PAGE_SIZE=shape.page_size,
            UNIT=config.unit,
            OVERHEAD=config.overhead,
            GROUP_PAD=config.group_pad,
            DIM_PAD=config.dim_pad,
            TILE=config.tile,
            STAGES=config.num_stages,
            HAS_SOFTCAP=spec.softcap > 0,
            PDL=overlap,
            num_warps=config.num_warps,
            launch_pdl=overlap,
        )
        _merge_kernel[(rows, shape.num_qo_heads)](
            out,
            batch.seq_lens,
            plan.row_cost,
            plan.share,
            *self._states,
            spec.window,
            config.num_programs,
            NUM_KV_HEADS=shape.num_kv_heads,
            GROUP=shape.group_size,
            HEAD_DIM=shape.head_dim,
            UNIT=config.unit,
            OVERHEAD=config.overhead,
            DIM_PAD=config.dim_pad,
            BLOCK=config.merge_block,
            PDL=config.pdl,
            num_warps=config.merge_warps,
            launch_pdl=config.pdl,
        )
