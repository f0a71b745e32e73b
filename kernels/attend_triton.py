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
_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)


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
    HEAD_PAGE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
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
    address = kv_ptr + pages * (2 * V_OFFSET)
    size = HEAD_PAGE * (kv_ptr.dtype.element_ty.primitive_bitwidth // 8)
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
def widen(words, dtype: tl.constexpr):
    """words: [R, W] int32, each of four values of dtype; returns [R, 4 W] float16, exact.

    Triton's own conversions handle bytes one by one: twice the loop's instructions.
    """
    if not _COMPILED:
        a, b, c, d = (
            words.to(tl.int8).to(dtype, bitcast=True).to(tl.float16),
            (words >> 8).to(tl.int8).to(dtype, bitcast=True).to(tl.float16),
            (words >> 16).to(tl.int8).to(dtype, bitcast=True).to(tl.float16),
            (words >> 24).to(tl.int8).to(dtype, bitcast=True).to(tl.float16),
        )
    elif dtype == tl.int8:
        # A byte below 0x64 is float16's 1024 and the byte.
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b32 bytes, low, high, bias;
            xor.b32 bytes, $4, 0x80808080;
            prmt.b32 low, bytes, 0x64646464, 0x5150;
            prmt.b32 high, bytes, 0x64646464, 0x5352;
            mov.b32 bias, 0x64806480;
            sub.f16x2 low, low, bias;
            sub.f16x2 high, high, bias;
            mov.b32 {$0, $1}, low;
            mov.b32 {$2, $3}, high;
            }""",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    else:
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b16 first, second;
            .reg .b32 low, high;
            mov.b32 {first, second}, $4;
            cvt.rn.f16x2.e4m3x2 low, first;
            cvt.rn.f16x2.e4m3x2 high, second;
            mov.b32 {$0, $1}, low;
            mov.b32 {$2, $3}, high;
            }""",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (words.shape[0], 4 * words.shape[1]))


@triton.jit
def attend_tokens(
    q_ptr,
    kv_ptr,
    pages_ptr,
    sinks_ptr,
    first_token,
    begin,
    end,
    leads,
    scale,
    softcap,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
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
    query. kv_ptr: its KV head's K in page 0. pages_ptr: the row's block table. sinks_ptr: the
    group's sinks, or None; they are in the state of the piece that ``leads`` its segment. Tokens
    below first_token are hidden; at least one of the first tile is not, so m is finite. Tokens
    past the end are never loaded.

    A quantised layer's values are multiplied as float16, which holds each of them, and so are the
    queries, scaled to be at most 1. K's scales multiply the scores. V's join them as logarithms:
    the products of weights and scales then are at most 1, whatever the scales, and l alone is
    divided by them.
    """
    HEAD_PAGE: tl.constexpr = PAGE_ROWS * HEAD_DIM
    V_OFFSET: tl.constexpr = NUM_KV_HEADS * HEAD_PAGE
    QUANTISED: tl.constexpr = PAGE_ROWS > PAGE_SIZE
    KV_DTYPE: tl.constexpr = kv_ptr.dtype.element_ty
    DTYPE: tl.constexpr = tl.float16 if QUANTISED else KV_DTYPE
    # What a loaded element holds of the layer's.
    WIDTH: tl.constexpr = 4 if QUANTISED else 1
    if PDL:
        prefetch_pages(kv_ptr, pages_ptr, begin, end, HEAD_PAGE, PAGE_SIZE, V_OFFSET, PREFETCH)
    groups = tl.arange(0, GROUP_PAD)
    dims = tl.arange(0, DIM_PAD)
    columns = tl.arange(0, DIM_PAD // WIDTH)
    lanes = tl.arange(0, TILE)
    if QUANTISED:
        scales_ptr = (kv_ptr + PAGE_SIZE * HEAD_DIM).to(tl.pointer_type(tl.float32))
        lane_scale = scales_ptr + lanes % PAGE_SIZE
        kv_ptr = kv_ptr.to(tl.pointer_type(tl.int32))
    # Tiles begin at page boundaries, or pages at tile boundaries: what varies from tile to tile
    # is scalar, and what varies within one is known to the compiler.
    lane_page = pages_ptr + lanes // PAGE_SIZE
    lane_kv = kv_ptr + (lanes % PAGE_SIZE)[:, None] * (HEAD_DIM // WIDTH) + columns[None, :]
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
    scale *= LOG2E
    if QUANTISED:
        q = q.to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(q), axis=0), 1e-30)
        q = q / largest[None, :]
        q_scale = largest * scale
    q = q.to(DTYPE)
    m = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    l = tl.zeros([GROUP_PAD], tl.float32)  # noqa: E741
    acc = tl.zeros([DIM_PAD, GROUP_PAD], tl.float32)
    for tile in tl.range(begin, end, TILE, num_stages=STAGES):
        live = lanes < end - tile
        page_at = pages.to(tl.int64) * (2 * V_OFFSET // WIDTH)
        address = lane_kv + (page_at + (tile % PAGE_SIZE) * (HEAD_DIM // WIDTH))[:, None]
        mask = live[:, None] & (columns < HEAD_DIM // WIDTH)[None, :]
        ahead = tile + TILE
        pages = tl.load(lane_page + ahead // PAGE_SIZE, mask=lanes < end - ahead, other=0)
        k = tl.load(address, mask=mask, other=0)
        v = tl.load(address + V_OFFSET // WIDTH, mask=mask, other=0)
        if QUANTISED:
            at = lane_scale + (page_at + tile % PAGE_SIZE)
            k_scale = tl.load(at, mask=live, other=0.0)
            v_scale = tl.load(at + V_OFFSET // WIDTH, mask=live, other=1.0)
            k, v = widen(k, KV_DTYPE), widen(v, KV_DTYPE)
        # Tokens are the long side of both products, so that the matrix units read K and V where
        # they land in shared memory.
        scores = tl.dot(k, q, input_precision="ieee")
        scores = scores * k_scale[:, None] * q_scale[None, :] if QUANTISED else scores * scale
        if HAS_SOFTCAP:
            # softcap * tanh(x / softcap), with tanh(y) = 1 - 2 / (1 + e^2y)
            e = tl.exp2(scores * (2.0 / softcap))
            scores = (softcap - 2.0 * softcap / (1.0 + e)) * LOG2E
        if QUANTISED:
            scores += tl.log2(v_scale)[:, None]
        seen = live & (lanes >= first_token - tile)
        scores = tl.where(seen[:, None], scores, float("-inf"))
        m_next = tl.maximum(m, tl.max(scores, axis=0))
        p = tl.exp2(scores - m_next[None, :])
        rescale = tl.exp2(m - m_next)
        weight = p * (1.0 / v_scale)[:, None] if QUANTISED else p
        l = l * rescale + tl.sum(weight, axis=0)  # noqa: E741
        acc = acc * rescale[None, :]
        acc = tl.dot(tl.trans(v), p.to(DTYPE), acc, input_precision="ieee")
        m = m_next
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + groups, mask=(groups < GROUP) & leads, other=float("-inf"))
        m_next = tl.maximum(m, sink * LOG2E)
        rescale = tl.exp2(m - m_next)
        l = l * rescale + tl.exp2(sink * LOG2E - m_next)  # noqa: E741
        acc = acc * rescale[None, :]
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
            "PAGE_ROWS": shape.page_rows,
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
    itemsize = max(2, shape.kv_dtype.itemsize)  # as multiplied
    tile = max(16, min(128, 32768 // (2 * dim_pad * itemsize)))  # 32 KB of K and V
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
