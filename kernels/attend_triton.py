"""Online softmax over a run of one row's tokens, for the Triton decode kernels.

The same source runs compiled on CUDA and under ``TRITON_INTERPRET=1`` on CPU tensors.
Lengths are cut into units of ``UNIT`` tokens: the granularity at which work is divided, finer
than the tile at which it is done.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from .batch import AttentionShape, LayerSpec

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def visible_units(length, window, UNIT: tl.constexpr):
    """(first visible token, first unit, number of units) of a row; no unit if it is empty.

    window = 0 sees every token.
    """
    first_token = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    first_unit = first_token // UNIT
    units = tl.where(length > 0, tl.cdiv(length, UNIT) - first_unit, 0)
    return first_token, first_unit, units


@triton.jit
def prefetch_pages(
    kv_ptr,
    pages_ptr,
    begin,
    end,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    V_OFFSET: tl.constexpr,
    PAGES: tl.constexpr,
):
    """Start bringing up to PAGES pages of K and V from token ``begin`` on into the L2 cache.

    L2 is where all multiprocessors agree, so this is right even for a page that the kernel in
    front is still writing. One thread a page: HND makes a head's page contiguous.
    """
    first = begin // PAGE_SIZE
    count = tl.minimum(tl.cdiv(end, PAGE_SIZE) - first, PAGES)
    index = tl.arange(0, PAGES)
    pages = tl.load(pages_ptr + first + index, mask=index < count, other=0).to(tl.int64)
    address = kv_ptr + pages * PAGE_STRIDE
    size = PAGE_SIZE * HEAD_DIM * (kv_ptr.dtype.element_ty.primitive_bitwidth // 8)
    for part in tl.static_range(2):
        tl.inline_asm_elementwise(
            """{
            .reg .pred p; .reg .u32 t;
            mov.u32 t, %tid.x;
            setp.lt.s32 p, t, $2;
            @p cp.async.bulk.prefetch.L2.global [$1], $3;
            mov.u32 $0, 0;
            }""",
            "=r,l,r,r",
            [(address + part * V_OFFSET).to(tl.int64), count, size],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def attend_tokens(
    q_ptr,
    kv_ptr,
    pages_ptr,
    first_token,
    begin,
    end,
    scale,
    softcap,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    V_OFFSET: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    PDL: tl.constexpr,
):
    """Softmax state of one group's queries over the tokens [begin, end), begin < end.

    Returns m, l [GROUP_PAD] and acc [DIM_PAD, GROUP_PAD], in base 2. q_ptr: the group's first
    query. kv_ptr: its KV head's K in page 0. pages_ptr: the row's block table. Tokens below
    first_token are hidden; at least one of the first tile is not, so m is finite. Tokens past
    the end are never loaded.
    """
    if PDL:
        prefetch_pages(
            kv_ptr, pages_ptr, begin, end, HEAD_DIM, PAGE_SIZE, PAGE_STRIDE, V_OFFSET, PREFETCH
        )
    groups = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    lanes = tl.arange(0, TILE)
    # Tiles begin at page boundaries, or pages at tile boundaries: what varies from tile to tile
    # is scalar, and what varies within one is known to the compiler.
    lane_page = pages_ptr + lanes // PAGE_SIZE
    lane_kv = kv_ptr + (lanes % PAGE_SIZE)[:, None] * HEAD_DIM + dims[None, :]
    # Page numbers are loaded one tile ahead: K and V then depend on no load of their own
    # iteration, and the compiler keeps STAGES tiles of both in flight.
    pages = tl.load(lane_page + begin // PAGE_SIZE, mask=lanes < end - begin, other=0)
    if PDL:
        gdc_wait()  # q and the newest K/V come from the kernel in front
    q = tl.load(
        q_ptr + groups[None, :] * HEAD_DIM + dims[:, None],
        mask=(groups < GROUP)[None, :] & (dims < HEAD_DIM)[:, None],
        other=0.0,
    )
    m = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    l = tl.zeros([GROUP_PAD], tl.float32)  # noqa: E741
    acc = tl.zeros([DIM_PAD, GROUP_PAD], tl.float32)
    for tile in tl.range(begin, end, TILE, num_stages=STAGES):
        live = lanes < end - tile
        rows = pages.to(tl.int64) * PAGE_STRIDE + (tile % PAGE_SIZE) * HEAD_DIM
        address = lane_kv + rows[:, None]
        mask = live[:, None] & (dims < HEAD_DIM)[None, :]
        ahead = tile + TILE
        pages = tl.load(lane_page + ahead // PAGE_SIZE, mask=lanes < end - ahead, other=0)
        k = tl.load(address, mask=mask, other=0.0)
        v = tl.load(address + V_OFFSET, mask=mask, other=0.0)
        # Tokens are the long side of both products, so that the matrix units read K and V where
        # they land in shared memory.
        scores = tl.dot(k, q, input_precision="ieee")
        if HAS_SOFTCAP:
            # softcap * tanh(x / softcap), with tanh(y) = 1 - 2 / (1 + e^2y)
            e = tl.exp2(scores * (2.0 * LOG2E * scale / softcap))
            scores = (softcap - 2.0 * softcap / (1.0 + e)) * LOG2E
        else:
            scores = scores * (scale * LOG2E)
        seen = live & (lanes >= first_token - tile)
        scores = tl.where(seen[:, None], scores, float("-inf"))
        m_next = tl.maximum(m, tl.max(scores, axis=0))
        p = tl.exp2(scores - m_next[None, :])
        rescale = tl.exp2(m - m_next)
        l = l * rescale + tl.sum(p, axis=0)  # noqa: E741
        acc = acc * rescale[None, :]
        acc = tl.dot(tl.trans(v), p.to(v.dtype), acc, input_precision="ieee")
        m = m_next
    return m, l, acc


@dataclass(frozen=True)
class TileConfig:
    """How the kernels are launched for one shape; tokens unless said otherwise."""

    tile: int  # per step of the inner loop
    num_stages: int  # tiles of K and V in flight per program
    num_programs: int  # of workqueue; split's grid goes up to twice as many
    group_pad: int  # query heads per KV head, padded for the matrix units
    dim_pad: int
    unit: int  # granularity of shares; a tile begins at a page boundary or lies in one page
    pdl: bool  # programmatic dependent launch: start while the kernel in front drains
    num_warps: int = 4
    overhead: int = 64  # what starting a segment costs
    min_share: int = 64  # what a program takes at least, so that short rows have few pieces
    prefetch: int = 128  # asked for before the kernel in front is done

    def constants(self, shape: AttentionShape, spec: LayerSpec) -> dict[str, int | bool]:
        """The compile-time arguments that attend_tokens needs of its kernel."""
        return {
            "PAGE_SIZE": shape.page_size,
            "GROUP_PAD": self.group_pad,
            "DIM_PAD": self.dim_pad,
            "TILE": self.tile,
            "STAGES": self.num_stages,
            "PREFETCH": max(1, self.prefetch // shape.page_size),
            "HAS_SOFTCAP": spec.softcap > 0,
        }


def tile_config(shape: AttentionShape) -> TileConfig:
    """The launch for ``shape`` on its device; on a CPU, a small one for the interpreter.

    Measured on an H200 (benchmarks/h200-attention.md): two programs fill a multiprocessor's
    shared memory, which keeps one layer's programs evenly spread while the next layer's arrive.
    """
    dim_pad = triton.next_power_of_2(shape.head_dim)
    tile = max(16, min(128, 32768 // (2 * dim_pad * shape.dtype.itemsize)))  # 32 KB of K and V
    stages, programs, pdl = 1, 6, False
    if shape.device.type == "cuda":
        device = torch.cuda.get_device_properties(shape.device)
        stages, programs, pdl = 3, 2 * device.multi_processor_count, device.major >= 9
    return TileConfig(
        tile=tile,
        num_stages=stages,
        num_programs=programs,
        group_pad=max(16, triton.next_power_of_2(shape.group_size)),
        dim_pad=dim_pad,
        unit=min(shape.page_size, tile),
        pdl=pdl,
    )
