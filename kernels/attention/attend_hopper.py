"""``attend_triton.attend_tokens`` for Hopper in Gluon, where the order of things is ours.

What Triton does not do there:
- A program's first tiles are on their way before the kernel in front is done; of all K and V, that
  one may still be writing the newest token's.
- The next tile is asked for before one is multiplied, not after, so that all stages are in use.
- Quantised V is read transposed, and widened in registers from which the matrix units take it.
- The highest score of a tile costs one barrier, not three.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from triton import language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .quantised_kv_triton import split_queries, widen_pairs

LOG2E = gl.constexpr(1.4426950408889634)


@gluon.constexpr_function
def _copy_layout(columns, bits):
    """Of 16 bytes a thread, and 16 rows side by side a warp: they share a page number."""
    vector = 128 // bits
    threads = columns // vector  # a row
    return gl.BlockedLayout([threads // 2, vector], [32 // threads, threads], [4, 1], [1, 0])


@gluon.constexpr_function
def _accumulator(group_pad, bits):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, group_pad, 256 // bits])


@gluon.jit
def _allocate(dtype: gl.constexpr, columns: gl.constexpr, C: gl.constexpr):
    """[num_stages, tile, columns] for the matrix units."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C.tile, columns], dtype)
    return gl.allocate_shared_memory(dtype, [C.num_stages, C.tile, columns], LAYOUT)


@gluon.jit
def _allocate_ring(dtype: gl.constexpr, C: gl.constexpr):
    """K and V; of a quantised layer, V in pairs of values, and both's scales."""
    k = _allocate(dtype, C.dim_pad, C)
    if C.page_rows > C.page_size:
        FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        k_scales = gl.allocate_shared_memory(gl.float32, [C.num_stages, C.tile], FLAT)
        v_scales = gl.allocate_shared_memory(gl.float32, [C.num_stages, C.tile], FLAT)
        return k, _allocate(gl.int16, C.dim_pad // 2, C), k_scales, v_scales
    else:  # noqa: RET505  # not compiled where the branch above is
        return k, _allocate(dtype, C.dim_pad, C)


@gluon.jit
def _page_numbers(pages_ptr, tile, end, C: gl.constexpr, COPY: gl.constexpr):
    """[units of a tile], for the rows of COPY."""
    UNITS: gl.constexpr = C.tile // C.unit
    rows = gl.arange(0, C.tile, layout=gl.SliceLayout(1, COPY))
    ROWS: gl.constexpr = gl.reshape(rows, [UNITS, C.unit]).type.layout
    first = gl.arange(0, UNITS, layout=gl.SliceLayout(1, ROWS)) * C.unit
    at = pages_ptr + tile // C.page_size + first // C.page_size
    return gl.load(at, mask=first < end - tile, other=0)


@gluon.jit
def _copy_tile(ring, stage, kv_ptr, pages_ptr, pages, tile, end, C: gl.constexpr):
    """Start copying the tile of K and V at ``tile``, up to ``end``, to a stage of the ring.

    pages: its page numbers. What lies past the end becomes zeros.
    """
    QUANTISED: gl.constexpr = C.page_rows > C.page_size
    V_OFFSET: gl.constexpr = C.num_kv_heads * C.page_rows * C.head_dim
    BITS: gl.constexpr = kv_ptr.dtype.element_ty.primitive_bitwidth
    COPY: gl.constexpr = _copy_layout(C.dim_pad, BITS)
    lanes = gl.arange(0, C.tile, layout=gl.SliceLayout(1, COPY))
    row = tile % C.page_size
    page = pages.to(gl.int64) * (2 * V_OFFSET) + row * C.head_dim
    # From a number for each page to one for each row, so that rows share one register.
    page = gl.expand_dims(page, 1) + gl.full(
        [C.tile // C.unit, C.unit], 0, gl.int64, layout=page.type.layout.parent
    )
    page = gl.reshape(page, [C.tile])
    page = gl.convert_layout(page, gl.SliceLayout(1, COPY), assert_trivial=True)
    at = page + lanes % C.unit * C.head_dim
    live = lanes < end - tile
    dims = gl.arange(0, C.dim_pad, layout=gl.SliceLayout(0, COPY))[None, :]
    k_at = kv_ptr + gl.multiple_of(at[:, None], [1, 16]) + dims
    mask = live[:, None] & (dims < C.head_dim)
    async_copy.async_copy_global_to_shared(ring[0].index(stage), k_at, mask=mask)
    if QUANTISED:
        PAIRS: gl.constexpr = _copy_layout(C.dim_pad // 2, 16)
        at = gl.convert_layout(at // 2, gl.SliceLayout(1, PAIRS), assert_trivial=True)
        live = gl.convert_layout(live, gl.SliceLayout(1, PAIRS), assert_trivial=True)
        pairs = gl.arange(0, C.dim_pad // 2, layout=gl.SliceLayout(0, PAIRS))[None, :]
        v_ptr = (kv_ptr + V_OFFSET).to(gl.pointer_type(gl.int16))
        v_at = v_ptr + gl.multiple_of(at[:, None], [1, 16]) + pairs
        mask = live[:, None] & (pairs < C.head_dim // 2)
        async_copy.async_copy_global_to_shared(ring[1].index(stage), v_at, mask=mask)
        lanes = gl.arange(0, C.tile, layout=gl.BlockedLayout([1], [32], [4], [0]))
        live = lanes < end - tile
        at = pages_ptr + tile // C.page_size + lanes // C.page_size
        page = gl.load(at, mask=live, other=0).to(gl.int64)
        scale_ptr = (kv_ptr + C.page_size * C.head_dim).to(gl.pointer_type(gl.float32))
        scale_at = scale_ptr + page * (2 * V_OFFSET // 4) + row + lanes % C.page_size
        async_copy.async_copy_global_to_shared(ring[2].index(stage), scale_at, mask=live)
        scale_at += V_OFFSET // 4
        async_copy.async_copy_global_to_shared(ring[3].index(stage), scale_at, mask=live)
    else:
        async_copy.async_copy_global_to_shared(ring[1].index(stage), k_at + V_OFFSET, mask=mask)


@gluon.jit
def _column_max(x, scratch, LAYOUT: gl.constexpr):
    """Of x [64 n, 16]: each warp's rows first, then the warps'. Returns [16] in LAYOUT."""
    WARPS: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 8], [1, 0], [2, 0]],
        [[0, 2], [0, 4], [0, 0], [0, 0], [0, 0]],
        [[0, 0], [0, 0]],
        [],
        [4, 16],
    )
    of_warps = gl.max(gl.reshape(x, [x.shape[0] // 64, 4, 16, 16]), axis=2)
    scratch.store(gl.max(of_warps, axis=0))
    highest = gl.max(scratch.load(WARPS), axis=0)
    return gl.convert_layout(highest, LAYOUT, assert_trivial=True)


@gluon.jit
def _copy_first_tiles(
    ring,
    kv_ptr,
    pages_ptr,
    begin,
    end,
    length,
    C: gl.constexpr,
    PDL: gl.constexpr,
):
    """Start copying the tiles that all stages but one have room for, and wait for the kernel in
    front; it may still be writing the newest token, whose tile comes after it."""
    COPY: gl.constexpr = _copy_layout(C.dim_pad, kv_ptr.dtype.element_ty.primitive_bitwidth)
    newest = length - 1 if PDL else length
    for stage in gl.static_range(C.num_stages - 1):
        tile = begin + stage * C.tile
        if (tile < end) & (gl.minimum(tile + C.tile, end) <= newest):
            pages = _page_numbers(pages_ptr, tile, end, C, COPY)
            _copy_tile(ring, stage, kv_ptr, pages_ptr, pages, tile, end, C)
        async_copy.commit_group()
    if PDL:
        gdc_wait()
        stage = (newest - begin) // C.tile
        if (newest < end) & (stage < C.num_stages - 1):
            tile = begin + stage * C.tile
            pages = _page_numbers(pages_ptr, tile, end, C, COPY)
            _copy_tile(ring, stage, kv_ptr, pages_ptr, pages, tile, end, C)
            async_copy.commit_group()
            async_copy.wait_group(0)  # the loop counts one group a tile


@gluon.jit
def _load_queries(q_ptr, dtype: gl.constexpr, C: gl.constexpr):
    """[dim_pad, group_pad] in shared memory, a second part and scales [group_pad]; see
    split_queries. What is not quantised is its own second part, and has the scale 1."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    groups = gl.arange(0, C.group_pad, layout=gl.SliceLayout(1, LOAD))[:, None]
    dims = gl.arange(0, C.dim_pad, layout=gl.SliceLayout(0, LOAD))[None, :]
    mask = (groups < C.group) & (dims < C.head_dim)
    q = gl.load(q_ptr + groups * C.head_dim + dims, mask=mask, other=0.0)
    q = gl.permute(q, (1, 0))
    SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C.group_pad, C.dim_pad], dtype)
    first = gl.allocate_shared_memory(dtype, [C.group_pad, C.dim_pad], SHARED).permute((1, 0))
    GROUP: gl.constexpr = gl.SliceLayout(0, _accumulator(C.group_pad, 16))
    if C.page_rows > C.page_size:
        q, rest, scale = split_queries(q, dtype)
        scale = gl.convert_layout(scale, GROUP)
        second = gl.allocate_shared_memory(dtype, [C.group_pad, C.dim_pad], SHARED)
        second = second.permute((1, 0))
        second.store(rest)
    else:
        second = first
        scale = gl.full([C.group_pad], 1.0, gl.float32, layout=GROUP)
    first.store(q.to(dtype))
    return first, second, scale


@gluon.jit
def attend_tokens(
    q_ptr,
    kv_ptr,
    pages_ptr,
    first_token,
    begin,
    end,
    length,
    scale,
    softcap,
    C: gl.constexpr,
    PDL: gl.constexpr,
):
    """See attend_triton.attend_tokens, which has the explanations.

    Takes head_dim up to 128 in rows of 16 bytes, groups up to 16, and dtypes of 8 and 16 bits; for
    those of 8 more than 64 dimensions.
    """
    QUANTISED: gl.constexpr = C.page_rows > C.page_size
    DTYPE: gl.constexpr = kv_ptr.dtype.element_ty
    INTEGER: gl.constexpr = kv_ptr.dtype.element_ty == gl.int8
    BITS: gl.constexpr = DTYPE.primitive_bitwidth
    WIDE: gl.constexpr = gl.float16 if QUANTISED else DTYPE  # what weights and V are multiplied in
    TILE: gl.constexpr = C.tile
    AHEAD: gl.constexpr = C.num_stages - 1
    COPY: gl.constexpr = _copy_layout(C.dim_pad, BITS)
    SCORES: gl.constexpr = _accumulator(C.group_pad, BITS)
    ACC: gl.constexpr = _accumulator(C.group_pad, 16)
    TOKEN: gl.constexpr = gl.SliceLayout(1, ACC)
    GROUP: gl.constexpr = gl.SliceLayout(0, ACC)

    ring = _allocate_ring(DTYPE, C)
    _copy_first_tiles(ring, kv_ptr, pages_ptr, begin, end, length, C, PDL)
    q, q_rest, q_scale = _load_queries(q_ptr, DTYPE, C)
    scale *= LOG2E
    if QUANTISED:
        q_scale *= scale
    P_SHARED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE, C.group_pad], WIDE)
    p_shared = gl.allocate_shared_memory(WIDE, [TILE, C.group_pad], P_SHARED)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    scratch = gl.allocate_shared_memory(gl.float32, [4, C.group_pad], PLAIN)
    fence_async_shared()

    lanes = gl.arange(0, TILE, layout=TOKEN)
    m = gl.full([C.group_pad], float("-inf"), gl.float32, layout=GROUP)
    l = gl.full([TILE, C.group_pad], 0.0, gl.float32, layout=ACC)  # noqa: E741
    acc = gl.full([ring[1].shape[2], C.group_pad], 0.0, gl.float32, layout=ACC)
    acc_odd = acc  # of the odd dimensions, where quantised
    ZERO: gl.constexpr = 0 if INTEGER else 0.0
    SUM: gl.constexpr = gl.int32 if INTEGER else gl.float32
    zeros = gl.full([TILE, C.group_pad], ZERO, SUM, layout=SCORES)
    stage = 0
    next_stage = AHEAD
    pages = _page_numbers(pages_ptr, begin + AHEAD * TILE, end, C, COPY)
    for tile in range(begin, end, TILE):
        async_copy.wait_group(AHEAD - 1)
        tl.debug_barrier()  # Gluon's own name for it differs from version to version
        fence_async_shared()
        k_tile = ring[0].index(stage)
        if QUANTISED:
            low = warpgroup_mma(k_tile, q_rest, zeros, use_acc=False, is_async=True)
            if INTEGER:
                scores = warpgroup_mma(k_tile, q, zeros, use_acc=False, is_async=True)
            else:
                scores = warpgroup_mma(k_tile, q, low, is_async=True)
        else:
            scores = warpgroup_mma(k_tile, q, zeros, use_acc=False, is_async=True)
        ahead = tile + AHEAD * TILE
        if ahead < end:
            _copy_tile(ring, next_stage, kv_ptr, pages_ptr, pages, ahead, end, C)
        elif PDL:  # noqa: SIM102  # PDL is known to the compiler
            if C.early:
                gdc_launch_dependents()  # they settle in while this program's last tiles arrive
        async_copy.commit_group()
        pages = _page_numbers(pages_ptr, ahead + TILE, end, C, COPY)
        live = lanes < end - tile
        if QUANTISED:
            pairs = ring[1].index(stage).permute((1, 0)).load(gl.DotOperandLayout(0, ACC, 2))
            even, odd = widen_pairs(pairs, DTYPE)
            k_scale = ring[2].index(stage).load(TOKEN)
            v_scale = gl.where(live, ring[3].index(stage).load(TOKEN), 1.0)
            if INTEGER:
                low, scores = warpgroup_mma_wait(0, [low, scores])
                scores = scores.to(gl.float32) * 254.0 + low.to(gl.float32)
            else:
                scores = warpgroup_mma_wait(0, [scores])
            scores = gl.convert_layout(scores, ACC, assert_trivial=True)
            scores = scores * k_scale[:, None] * q_scale[None, :]
        else:
            scores = warpgroup_mma_wait(0, [scores]) * scale
        if C.has_softcap:
            e = gl.exp2(scores * (2.0 / softcap))
            scores = (softcap - 2.0 * softcap / (1.0 + e)) * LOG2E
        if QUANTISED:
            log_scale = gl.log2(v_scale)
            scores += log_scale[:, None]
        seen = live & (lanes >= first_token - tile)
        scores = gl.where(seen[:, None], scores, float("-inf"))
        m_next = gl.maximum(m, _column_max(scores, scratch, GROUP))
        p = gl.exp2(scores - m_next[None, :])
        rescale = gl.exp2(m - m_next)[None, :]
        m = m_next
        p_shared.store(p.to(WIDE))
        fence_async_shared()
        acc = acc * rescale
        if QUANTISED:
            l = l * rescale + p * gl.exp2(-log_scale)[:, None]  # noqa: E741
            acc = warpgroup_mma(even, p_shared, acc, is_async=True)
            acc_odd = warpgroup_mma(odd, p_shared, acc_odd * rescale, is_async=True)
            acc, acc_odd = warpgroup_mma_wait(0, [acc, acc_odd])
        else:
            l = l * rescale + p  # noqa: E741
            v_tile = ring[1].index(stage).permute((1, 0))
            acc = warpgroup_mma(v_tile, p_shared, acc, is_async=True)
            acc = warpgroup_mma_wait(0, [acc])
        stage = gl.where(stage == AHEAD, 0, stage + 1)
        next_stage = gl.where(next_stage == AHEAD, 0, next_stage + 1)

    l = gl.sum(l, axis=0)  # noqa: E741
    if QUANTISED:
        acc = gl.permute(gl.join(acc, acc_odd), (0, 2, 1))
        acc = gl.reshape(acc, [C.dim_pad, C.group_pad])
        m = gl.convert_layout(m, gl.SliceLayout(0, acc.type.layout), assert_trivial=True)
        l = gl.convert_layout(l, gl.SliceLayout(0, acc.type.layout), assert_trivial=True)  # noqa: E741
    dims = gl.arange(0, C.dim_pad, layout=gl.SliceLayout(1, acc.type.layout))
    groups = gl.arange(0, C.group_pad, layout=gl.SliceLayout(0, acc.type.layout))
    return m, l, acc, dims, groups
