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

from .attend_triton import attend_piece, visible_units
from .batch import AttentionShape, DecodeBatch, LayerSpec
from .launch_triton import BoundKernel
from .merge_triton import MERGE_WARPS, MergeBlock, merge_states
from .planner_triton import MAX_BATCH, Plan, plan_shares, segment_cost
from .tile_config import TileConfig
from .triton_strategy import TritonStrategy


@triton.jit(do_not_specialize=["table_stride", "batch", "window"])
def _attend_kernel(
    q_ptr,
    kv_ptr,
    sinks_ptr,
    out_ptr,
    states,
    table_ptr,
    table_stride,
    lens_ptr,
    starts_ptr,
    share_ptr,
    batch,
    window,
    scale,
    softcap,
    C: tl.constexpr,
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
        first_token, first_unit, units = visible_units(length, window, C.unit)
        first = tl.maximum(spent - overhead, 0)
        last = tl.minimum(spent + budget - overhead, units)
        begin = (first_unit + first) * C.unit
        end = tl.minimum((first_unit + last) * C.unit, length)
        if first < last:
            attend_piece(
                q_ptr,
                kv_ptr,
                sinks_ptr,
                out_ptr,
                states,
                table_ptr + row.to(tl.int64) * table_stride,
                row,
                head,
                first_token,
                begin,
                end,
                first == 0,
                (first == 0) & (last == units),
                tl.where(first > 0, program, tl.num_programs(0) + program),
                scale,
                softcap,
                C,
                PDL,
            )
        # In a padded plan a program has one piece.
        budget = tl.where(padded, 0, budget - (units + tl.where(units > 0, overhead, 0) - spent))
        spent = 0
        head += 1
        if (budget > 0) & ((head == C.num_kv_heads) | (units == 0)):
            head = 0
            row += 1
            length = tl.load(lens_ptr + row, mask=row < batch, other=0)
    if PDL:
        gdc_wait()  # idle programs too: who waits for this kernel waits for the one in front


@triton.jit(do_not_specialize=["window", "num_programs"])
def _merge_kernel(
    out_ptr,
    states,
    lens_ptr,
    row_cost_ptr,
    share_ptr,
    window,
    num_programs,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0)
    head = tl.program_id(1)
    _, _, units = visible_units(tl.load(lens_ptr + row), window, C.unit)
    share = tl.load(share_ptr)
    overhead = tl.load(share_ptr + 1)
    cost = segment_cost(units, overhead, tl.load(share_ptr + 2))
    begin = tl.load(row_cost_ptr + row) + head * cost + overhead
    first = begin // share
    pieces = tl.where(units > 0, (begin + units - 1) // share - first + 1, 0)
    group_ptr = out_ptr + (row * C.num_kv_heads + head) * (C.group * C.head_dim)
    if PDL:
        gdc_wait()
    if pieces != 1:  # one piece has gone straight to the output
        slot = num_programs + first
        merge_states(group_ptr, states, slot, first, pieces, tl.program_id(2), C, BLOCK)


class WorkqueueTriton(TritonStrategy):
    """Decode attention over equal shares; see the module."""

    name = "workqueue"

    def __init__(self, shape: AttentionShape, config: TileConfig | None = None) -> None:
        super().__init__(shape, config)
        self._plans: dict[int, Plan] = {}  # by window
        self._planned: set[int] = set()  # windows planned for this batch
        self._attends: dict[tuple[LayerSpec, bool], BoundKernel] = {}
        self._merges: dict[tuple[LayerSpec, int], tuple[BoundKernel, tuple[int, ...]]] = {}

    def _plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """Each window is planned on the device at its first layer."""
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
                padding=config.padding,
            )
            self._planned.add(window)
        return self._plans[window]

    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        batch = self._batch
        assert batch is not None, "plan() comes first"
        # The kernel reads the plan before it waits for the kernel in front of it, so it may not
        # overlap the planner.
        overlap = self.config.pdl and spec.window in self._planned
        plan, rows = self._plan_for(batch, spec.window), len(batch)
        if (spec, overlap) not in self._attends:
            self._attends[spec, overlap] = self._bind_attend(spec, overlap, plan)
        if (spec, rows) not in self._merges:
            self._merges[spec, rows] = self._bind_merge(spec, rows, plan)
        attend, (merge, merge_grid) = self._attends[spec, overlap], self._merges[spec, rows]
        table, lens = batch.block_table, batch.seq_lens
        grid = (self.config.num_programs,)
        attend(grid, q, kv_layer, spec.sinks, out, table, table.stride(0), lens, rows)
        merge(merge_grid, out, lens)

    def _bind_attend(self, spec: LayerSpec, overlap: bool, plan: Plan) -> BoundKernel:
        return BoundKernel(
            _attend_kernel,
            states=self._states,
            starts_ptr=plan.starts,
            share_ptr=plan.share,
            window=spec.window,
            scale=spec.scale,
            softcap=spec.softcap,
            C=self._compiled(spec),
            PDL=overlap,
            num_warps=self.config.num_warps,
            launch_pdl=overlap,
        )

    def _bind_merge(
        self, spec: LayerSpec, rows: int, plan: Plan
    ) -> tuple[BoundKernel, tuple[int, ...]]:
        """And its grid."""
        shape, config = self.shape, self.config
        block = MergeBlock.of(shape, config.num_programs / (rows * shape.num_kv_heads))
        merge = BoundKernel(
            _merge_kernel,
            states=self._states,
            row_cost_ptr=plan.row_cost,
            share_ptr=plan.share,
            window=spec.window,
            num_programs=config.num_programs,
            C=self._compiled(spec),
            BLOCK=block,
            PDL=config.pdl,
            num_warps=MERGE_WARPS,
            launch_pdl=config.pdl,
        )
        return merge, block.grid(shape, rows)
