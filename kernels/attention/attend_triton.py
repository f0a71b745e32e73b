"""Online softmax over a run of one row's tokens, for the Triton decode kernels.

The same source runs compiled on CUDA and under ``TRITON_INTERPRET=1`` on CPU tensors; on Hopper,
where the kernels are compiled as Gluon, the loop is ``attend_hopper``'s.
Lengths are cut into units: the granularity at which work is divided, finer than the tile at which
it is done.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from .attend_hopper import attend_tokens as attend_tokens_on_hopper
from .merge_triton import store_piece
from .quantised_kv_triton import multiply, split_queries, widen, widened_dims

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
def attend_piece(
    q_ptr,
    kv_ptr,
    sinks_ptr,
    out_ptr,
    states,
    pages_ptr,
    row,
    head,
    first_token,
    begin,
    end,
    length,
    leads,
    whole,
    slot,
    scale,
    softcap,
    C: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attend to the tokens [begin, end) of a row, begin < end, for one KV head.

    pages_ptr: the row's block table. length: the row's. leads: this piece is its segment's first,
    and has the sinks. whole: it is the only one, and goes to the output; its state goes to ``slot``
    otherwise.
    """
    at = (row * C.num_kv_heads + head) * (C.group * C.head_dim)
    q_ptr += at
    kv_ptr += head * (C.page_rows * C.head_dim)
    if C.gluon:
        m, l, acc, dims, groups = attend_tokens_on_hopper(  # noqa: E741
            q_ptr, kv_ptr, pages_ptr, first_token, begin, end, length, scale, softcap, C, PDL
        )
    else:
        m, l, acc, dims, groups = attend_tokens(  # noqa: E741
            q_ptr, kv_ptr, pages_ptr, first_token, begin, end, scale, softcap, C, PDL
        )
    if sinks_ptr is not None:
        mask = (groups < C.group) & leads
        sinks = tl.load(sinks_ptr + head * C.group + groups, mask=mask, other=float("-inf")) * LOG2E
        m_next = tl.maximum(m, sinks)
        rescale = tl.exp2(m - m_next)
        l = l * rescale + tl.exp2(sinks - m_next)  # noqa: E741
        acc = acc * rescale[None, :]
        m = m_next
    store_piece(out_ptr + at, states, m, l, acc, dims, groups, whole, slot, C)


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
    C: tl.constexpr,
    PDL: tl.constexpr,
):
    """Softmax state of one group's queries over the tokens [begin, end).

    Returns m, l [group_pad] and acc [dim_pad, group_pad], in base 2, and the dimensions and query
    heads that acc is of. q_ptr: the group's first query. kv_ptr: its KV head's K in page 0. Tokens
    below first_token are hidden; at least one of the first tile is not, so m is finite. Tokens past
    the end are never loaded.

    A quantised layer's K scales multiply the scores. Its V scales join them as logarithms: m is
    then of weights times scales, which so are at most 1 in float16 whatever the scales, and l alone
    is divided by them.
    """
    HEAD_PAGE: tl.constexpr = C.page_rows * C.head_dim
    V_OFFSET: tl.constexpr = C.num_kv_heads * HEAD_PAGE
    QUANTISED: tl.constexpr = C.page_rows > C.page_size
    KV_DTYPE: tl.constexpr = kv_ptr.dtype.element_ty
    WIDTH: tl.constexpr = 4 if QUANTISED else 1  # elements of V loaded as one; see widen
    TILE: tl.constexpr = C.tile  # of a type that tl.range takes
    groups = tl.arange(0, C.group_pad)
    dims = tl.arange(0, C.dim_pad)
    v_dims = tl.arange(0, C.dim_pad // WIDTH)
    lanes = tl.arange(0, C.tile)
    # Tiles begin at page boundaries, or pages at tile boundaries: what varies from tile to tile
    # is scalar, and what varies within one is known to the compiler.
    lane_page = pages_ptr + lanes // C.page_size
    lane_row = (lanes % C.page_size)[:, None]
    v_ptr = kv_ptr + V_OFFSET
    if QUANTISED:
        v_ptr = v_ptr.to(tl.pointer_type(tl.int32))
        scales_ptr = (kv_ptr + C.page_size * C.head_dim).to(tl.pointer_type(tl.float32))
        lane_scale = scales_ptr + lanes % C.page_size
    lane_k = kv_ptr + lane_row * C.head_dim + dims[None, :]
    lane_v = v_ptr + lane_row * (C.head_dim // WIDTH) + v_dims[None, :]
    # Page numbers are loaded one tile ahead: K and V then depend on no load of their own
    # iteration, and the compiler keeps num_stages tiles of both in flight.
    pages = tl.load(lane_page + begin // C.page_size, mask=lanes < end - begin, other=0)
    if PDL:
        gdc_wait()  # q and the newest K/V come from the kernel in front
    q = tl.load(
        q_ptr + groups[None, :] * C.head_dim + dims[:, None],
        mask=(groups < C.group)[None, :] & (dims < C.head_dim)[:, None],
        other=0.0,
    )
    scale *= LOG2E
    if QUANTISED:
        q, q_rest, q_scale = split_queries(q, KV_DTYPE)
        q_scale *= scale
    else:
        q = q.to(KV_DTYPE)
    m = tl.full([C.group_pad], float("-inf"), tl.float32)
    # Each lane adds up its own part of l: a sum over a tile's lanes would cost a barrier.
    l = tl.full([C.tile, C.group_pad], 0.0, tl.float32)  # noqa: E741
    acc = tl.full([C.dim_pad, C.group_pad], 0.0, tl.float32)
    for tile in tl.range(begin, end, TILE, num_stages=C.num_stages):
        live = lanes < end - tile
        page = pages.to(tl.int64)
        row = tile % C.page_size
        k_mask = live[:, None] & (dims < C.head_dim)[None, :]
        k_at = page * (2 * V_OFFSET) + row * C.head_dim
        k = tl.load(lane_k + k_at[:, None], mask=k_mask, other=0.0)
        v_mask = live[:, None] & (v_dims < C.head_dim // WIDTH)[None, :]
        v_at = page * (2 * V_OFFSET // WIDTH) + row * (C.head_dim // WIDTH)
        v = tl.load(lane_v + v_at[:, None], mask=v_mask, other=0)
        ahead = tile + TILE
        pages = tl.load(lane_page + ahead // C.page_size, mask=lanes < end - ahead, other=0)
        # Tokens are the long side of both products, so that the matrix units read K and V where
        # they land in shared memory.
        if QUANTISED:
            at = lane_scale + (page * (2 * V_OFFSET // 4) + row)
            k_scale = tl.load(at, mask=live, other=0.0)
            v_scale = tl.load(at + V_OFFSET // 4, mask=live, other=1.0)
            scores = multiply(k, q, q_rest) * k_scale[:, None] * q_scale[None, :]
        else:
            scores = tl.dot(k, q, input_precision="ieee") * scale
        if C.has_softcap:
            # softcap * tanh(x / softcap), with tanh(y) = 1 - 2 / (1 + e^2y)
            e = tl.exp2(scores * (2.0 / softcap))
            scores = (softcap - 2.0 * softcap / (1.0 + e)) * LOG2E
        if QUANTISED:
            log_scale = tl.log2(v_scale)
            scores += log_scale[:, None]
        seen = live & (lanes >= first_token - tile)
        scores = tl.where(seen[:, None], scores, float("-inf"))
        m_next = tl.maximum(m, tl.max(scores, axis=0))
        p = tl.exp2(scores - m_next[None, :])
        rescale = tl.exp2(m - m_next)
        l = l * rescale[None, :]  # noqa: E741
        acc = acc * rescale[None, :]
        if QUANTISED:
            l += p * tl.exp2(-log_scale)[:, None]  # noqa: E741
            acc = tl.dot(tl.trans(widen(v, KV_DTYPE)), p.to(tl.float16), acc)
        else:
            l += p  # noqa: E741
            acc = tl.dot(tl.trans(v), p.to(v.dtype), acc, input_precision="ieee")
        m = m_next
    if QUANTISED:
        dims = widened_dims(C.dim_pad)
    return m, tl.sum(l, axis=0), acc, dims, groups
