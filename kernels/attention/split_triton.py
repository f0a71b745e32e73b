"""The rectangular schedule for CUDA: one program per (row, KV head, split), then a merge.

Each split takes an equal run of its row's true units. num_splits lies in device memory and the
grid is as wide as the device could use, so one captured graph serves every choice: a split past
the row's own leaves before it loads K or V. A row with one split goes straight to the output.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch_triton import BoundKernel
from .attend_triton import attend_piece, visible_units
from .batch import AttentionShape, DecodeBatch, LayerSpec
from .merge_triton import MERGE_WARPS, MergeBlock, merge_states
from .tile_config import TileConfig, tile_config
from .triton_strategy import Launches, TritonStrategy


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
    states,
    table_ptr,
    table_stride,
    lens_ptr,
    num_splits_ptr,
    window,
    scale,
    softcap,
    C: tl.constexpr,
    PDL: tl.constexpr,
):
    head = tl.program_id(0)
    row = tl.program_id(1)
    split = tl.program_id(2)  # the slowest: idle programs come last, and the others spread evenly
    length = tl.load(lens_ptr + row)
    first_token, first_unit, units = visible_units(length, window, C.unit)
    splits = row_splits(units, num_splits_ptr, tl.num_programs(2), C.min_share)
    begin = (first_unit + (split * units) // splits) * C.unit
    end = tl.minimum((first_unit + ((split + 1) * units) // splits) * C.unit, length)
    if (split < splits) & (begin < end):
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
            length,
            split == 0,
            splits == 1,
            (row * C.num_kv_heads + head) * tl.num_programs(2) + split,
            scale,
            softcap,
            C,
            PDL,
        )
    if PDL:
        gdc_wait()  # idle programs too: who waits for this kernel waits for the one in front
        gdc_launch_dependents()


_hopper_kernel = gluon.jit(_attend_kernel.fn, do_not_specialize=["table_stride", "window"])


@triton.jit(do_not_specialize=["window", "max_splits"])
def _merge_kernel(
    out_ptr,
    states,
    lens_ptr,
    num_splits_ptr,
    window,
    max_splits,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
    row = tl.program_id(0)
    _, _, units = visible_units(tl.load(lens_ptr + row), window, C.unit)
    splits = row_splits(units, num_splits_ptr, max_splits, C.min_share)
    splits = tl.where(units > 0, splits, 0)
    segment = row * C.num_kv_heads + tl.program_id(1)
    group_ptr = out_ptr + segment * (C.group * C.head_dim)
    slot = segment * max_splits
    if PDL:
        gdc_wait()
    if splits != 1:  # one split has gone straight to the output
        merge_states(group_ptr, states, slot, slot, splits, tl.program_id(2), C, BLOCK)


class SplitTriton(TritonStrategy):
    """Decode attention by sequence splitting; see the module."""

    name = "split"

    def __init__(self, shape: AttentionShape, config: TileConfig | None = None) -> None:
        if config is None:
            config = tile_config(shape)
            if config.gluon and shape.quantised:
                # With fewer a fourth program would fit some multiprocessors, and leave others two.
                config = dataclasses.replace(config, num_stages=4)
        super().__init__(shape, config)
        self._num_splits = torch.ones(1, dtype=torch.int32, device=shape.device)
        self._written = 1  # what it holds
        self._overlap = False

    def max_splits(self, batch_size: int) -> int:
        """The grid's width: splits enough for two programs where workqueue has one."""
        segments = batch_size * self.shape.num_kv_heads
        return max(1, 2 * self.config.num_programs // segments)

    def _plan(self, batch: DecodeBatch, num_splits: int) -> None:
        """Take num_splits, or as many as the grid is wide; nothing else depends on the host."""
        if num_splits != self._written:
            self._num_splits.fill_(num_splits)
            self._written = num_splits
        self._overlap = False

    def _run(
        self, q: torch.Tensor, kv_layer: torch.Tensor, out: torch.Tensor, spec: LayerSpec
    ) -> None:
        # The kernel reads num_splits and the lengths before it waits for the kernel in front of
        # it, so the first layer may not overlap what writes them.
        overlap, self._overlap = self._overlap, self.config.pdl
        self._launch(q, kv_layer, out, spec, overlap)

    def _bind(self, spec: LayerSpec, overlap: bool, rows: int) -> Launches:
        shape, config, compiled = self.shape, self.config, self._compiled(spec, rows)
        attend = BoundKernel(
            _hopper_kernel if self.config.gluon else _attend_kernel,
            states=self._states,
            num_splits_ptr=self._num_splits,
            window=spec.window,
            scale=spec.scale,
            softcap=spec.softcap,
            C=compiled,
            PDL=overlap,
            num_warps=config.num_warps,
            launch_pdl=overlap,
        )
        max_splits = self.max_splits(rows)
        block = MergeBlock.of(shape, max_splits / 2)
        merge = BoundKernel(
            _merge_kernel,
            states=self._states,
            num_splits_ptr=self._num_splits,
            window=spec.window,
            max_splits=max_splits,
            C=compiled,
            BLOCK=block,
            PDL=config.pdl,
            num_warps=MERGE_WARPS,
            launch_pdl=config.pdl,
        )
        grid = (shape.num_kv_heads, rows, max_splits)
        return Launches(attend, grid, merge, block.grid(shape, rows))
