"""The rectangular schedule for CUDA: one program per (row, KV head, split), then a merge.

Each split takes an equal run of its row's true units. num_splits lies in device memory and the
grid is as wide as the device could use, so one captured graph serves every choice: a split past
the row's own leaves before it loads K or V. A row with one split goes straight to the output.
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


@triton.jit
def row_splits(units, num_splits_ptr, max_splits, MIN_SHARE: tl.constexpr):
    """Splits a row gets: no more than leave each one MIN_SHARE units, and at least one."""
    num_splits = tl.minimum(tl.load(num_splits_ptr), max_splits)
    return tl.maximum(tl.minimum(num_splits, units // MIN_SHARE), 1)


@triton.jit(do_not_specialize=["table_stride", "window"])
def _attend_kernel(
    q_ptr,
    kv_ptr,
    sinks_ptr,
    out_ptr,
    table_ptr,
    table_stride,
    lens_ptr,
    num_splits_ptr,
    acc_ptr,
    m_ptr,
    l_ptr,
    window,
    scale,
    softcap,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    UNIT: tl.constexpr,
    MIN_SHARE: tl.constexpr,
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
    split = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2)
    length = tl.load(lens_ptr + row)
    first_token, first_unit, units = visible_units(length, window, UNIT)
    splits = row_splits(units, num_splits_ptr, tl.num_programs(0), MIN_SHARE)
    begin = (first_unit + (split * units) // splits) * UNIT
    end = tl.minimum((first_unit + ((split + 1) * units) // splits) * UNIT, length)
    segment = row * NUM_KV_HEADS + head
    at = segment * GROUP * HEAD_DIM
    if (split < splits) & (begin < end):
        m, l, acc = attend_tokens(  # noqa: E741
            q_ptr + at,
            kv_ptr + head * PAGE_ROWS * HEAD_DIM,
            table_ptr + row.to(tl.int64) * table_stride,
            None if sinks_ptr is None else sinks_ptr + head * GROUP,
            first_token,
            begin,
            end,
            split == 0,
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
        slot = segment * tl.num_programs(0) + split
        store_piece(
            out_ptr + at, acc_ptr, m_ptr, l_ptr, m, l, acc, splits == 1, slot, GROUP, HEAD_DIM
        )
    if PDL:
        gdc_wait()  # idle programs too: who waits for this kernel waits for the one in front


@triton.jit(do_not_specialize=["window", "max_splits"])
def _merge_kernel(
    out_ptr,
    lens_ptr,
    num_splits_ptr,
    acc_ptr,
    m_ptr,
    l_ptr,
    window,
    max_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    UNIT: tl.constexpr,
    MIN_SHARE: tl.constexpr,
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
    splits = row_splits(units, num_splits_ptr, max_splits, MIN_SHARE)
    splits = tl.where(units > 0, splits, 0)
    segment = row * NUM_KV_HEADS + head
    slot = segment * max_splits
    if PDL:
        gdc_wait()
    if splits != 1:  # one split has gone straight to the output
        merge_states(
            out_ptr + segment * GROUP * HEAD_DIM,
            acc_ptr,
            m_ptr,
            l_ptr,
            slot,
            slot,
            splits,
            tl.program_id(2),
            GROUP,
            HEAD_DIM,
            BLOCK,
            HEADS,
            DIMS,
        )


class SplitTriton(PagedStrategy):
    """Decode attention by sequence splitting; see the module. Rows of length 0 give zeros."""

    name = "split"
    capturable = True

    def __init__(self, shape: AttentionShape, config: TileConfig | None = None) -> None:
        super().__init__(shape)
        self.config = config or tile_config(shape)
        self._states = allocate_states(2 * self.config.num_programs, shape)
        self._num_splits = torch.ones(1, dtype=torch.int32, device=shape.device)
        self._overlap = False

    def max_splits(self, batch_size: int) -> int:
        """The grid's width: splits enough for two programs where workqueue has one."""
        segments = batch_size * self.shape.num_kv_heads
        return max(1, 2 * self.config.num_programs // segments)

    def _plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """Take num_splits, or as many as the grid is wide; nothing else depends on the host."""
        self._num_splits.fill_(num_splits)
        self._overlap = False

    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        shape, config, batch = self.shape, self.config, self._batch
        assert batch is not None, "plan() comes first"
        # The kernel reads num_splits before it waits for the kernel in front of it, so the
        # first layer may not overlap plan's write.
        overlap, self._overlap = self._overlap, config.pdl
        max_splits = self.max_splits(len(batch))
        common = {
            "NUM_KV_HEADS": shape.num_kv_heads,
            "GROUP": shape.group_size,
            "HEAD_DIM": shape.head_dim,
            "UNIT": config.unit,
            "MIN_SHARE": max(1, config.min_share // config.unit),
        }
        _attend_kernel[(max_splits, shape.num_kv_heads, len(batch))](
            q,
            kv_layer,
            spec.sinks,
            out,
            batch.block_table,
            batch.block_table.stride(0),
            batch.seq_lens,
            self._num_splits,
            *self._states,
            spec.window,
            spec.scale,
            spec.softcap,
            **common,
            **config.constants(shape, spec),
            PDL=overlap,
            num_warps=config.num_warps,
            launch_pdl=overlap,
        )
        block = merge_block(shape, max_splits / 2)
        _merge_kernel[merge_grid(shape, len(batch), block)](
            out,
            batch.seq_lens,
            self._num_splits,
            *self._states,
            spec.window,
            max_splits,
            **common,
            **block,
            PDL=config.pdl,
            num_warps=MERGE_WARPS,
            launch_pdl=config.pdl,
        )
