"""The compact schedule for CUDA: a fixed grid, each program one equal share of the ragged batch.

A share is a run of the flattened (row, KV head, unit) list (planner_triton). A segment that one
program covers whole goes straight to the output. A split one leaves partial states: program p's
leading piece, continued from p - 1, in slot p, and its trailing piece, begun here and continued
by p + 1, in slot num_programs + p. A second kernel merges each split segment's pieces in order.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch_triton import BoundKernel
from .attend_triton import attend_piece, visible_units
from .batch import AttentionShape, DecodeBatch, LayerSpec
from .merge_triton import MERGE_WARPS, MergeBlock, merge_states
from .planner_triton import MAX_BATCH, Plan, segment_cost, share_planner
from .tile_config import TileConfig
from .triton_strategy import Launches, TritonStrategy


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
    program = tl.program_id(0)
    share = tl.load(share_ptr)
    overhead = tl.load(share_ptr + 1)
    step = tl.load(share_ptr + 2)
    start_ptr = starts_ptr + program * 4
    first_row = tl.load(start_ptr)
    first_head = tl.load(start_ptr + 1)
    position = -tl.load(start_ptr + 2)  # where a segment's cost begins, from the share's
    first_length = tl.load(start_ptr + 3)
    last_row = tl.load(start_ptr + 4)
    last_head = tl.load(start_ptr + 5)
    # Loops with known bounds: in a while, the compiler takes what depends on its condition for
    # different from thread to thread, and moves the loads of page numbers next to their use.
    for row in range(first_row, tl.minimum(last_row + 1, batch)):
        length = tl.load(lens_ptr + row, mask=row > first_row, other=0)
        length = tl.where(row > first_row, length, first_length)
        first_token, first_unit, units = visible_units(length, window, C.unit)
        cost = segment_cost(units, overhead, step)
        begin_head = tl.where(row > first_row, 0, first_head)
        end_head = tl.where(row < last_row, C.num_kv_heads, last_head + 1)
        end_head = tl.where(units > 0, end_head, 0)
        for head in range(begin_head, end_head):
            first = tl.maximum(-position - overhead, 0)
            last = tl.minimum(share - position - overhead, units)
            begin = (first_unit + first) * C.unit
            end = tl.minimum((first_unit + last) * C.unit, length)
            if first < last:
                attend_piece(
                    q_ptr,
                    kv_ptr,
                    sinks_ptr,
                    out_ptr,
                    states,
                    table_ptr + tl.cast(row, tl.int64) * table_stride,
                    row,
                    head,
                    first_token,
                    begin,
                    end,
                    length,
                    first == 0,
                    (first == 0) & (last == units),
                    tl.where(first > 0, program, tl.num_programs(0) + program),
                    scale,
                    softcap,
                    C,
                    PDL,
                )
            position += cost
    if PDL:
        gdc_wait()  # idle programs too: who waits for this kernel waits for the one in front
        gdc_launch_dependents()


_hopper_kernel = gluon.jit(_attend_kernel.fn, do_not_specialize=["table_stride", "batch", "window"])


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
        self._plans: dict[int, tuple[Plan, Callable[[torch.Tensor], None]]] = {}  # by window
        self._planned: set[int] = set()  # windows planned for this batch

    def _plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """Each window is planned on the device at its first layer."""
        if len(batch) > MAX_BATCH:
            raise ValueError(f"a batch of {len(batch)} rows; at most {MAX_BATCH} are supported")
        self._planned.clear()

    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        batch = self._batch
        assert batch is not None, "plan() comes first"
        # The kernel reads the plan before it waits for the kernel in front of it, so it may not
        # overlap the planner.
        planned = spec.window in self._planned
        if not planned:
            self._plan_for(batch, spec.window)
        self._launch(q, kv_layer, out, spec, self.config.pdl and planned)

    def _plan_for(self, batch: DecodeBatch, window: int) -> None:
        if window not in self._plans:
            self._plans[window] = self.planner(window)
        _, fill = self._plans[window]
        fill(batch.seq_lens)
        self._planned.add(window)

    def planner(self, window: int) -> tuple[Plan, Callable[[torch.Tensor], None]]:
        """A plan of its own, and what fills it for seq_lens [B] int32."""
        config = self.config
        plan = Plan.allocate(config.num_programs, self.shape.device)
        return plan, share_planner(
            plan,
            window,
            num_kv_heads=self.shape.num_kv_heads,
            unit=config.unit,
            overhead=max(1, config.overhead // config.unit),
            min_share=max(1, config.min_share // config.unit),
            padding=config.padding,
        )

    def _bind(self, spec: LayerSpec, overlap: bool, rows: int) -> Launches:
        shape, config, compiled = self.shape, self.config, self._compiled(spec, rows)
        plan, _ = self._plans[spec.window]
        attend = BoundKernel(
            _hopper_kernel if self.config.gluon else _attend_kernel,
            states=self._states,
            starts_ptr=plan.starts,
            share_ptr=plan.share,
            batch=rows,
            window=spec.window,
            scale=spec.scale,
            softcap=spec.softcap,
            C=compiled,
            PDL=overlap,
            num_warps=config.num_warps,
            launch_pdl=overlap,
        )
        block = MergeBlock.of(shape, config.num_programs / (rows * shape.num_kv_heads))
        merge = BoundKernel(
            _merge_kernel,
            states=self._states,
            row_cost_ptr=plan.row_cost,
            share_ptr=plan.share,
            window=spec.window,
            num_programs=config.num_programs,
            C=compiled,
            BLOCK=block,
            PDL=config.pdl,
            num_warps=MERGE_WARPS,
            launch_pdl=config.pdl,
        )
        return Launches(attend, (config.num_programs,), merge, block.grid(shape, rows))
