"""What the Triton decode kernels share: which tokens a row sees, and online softmax over them.

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

from .batch import AttentionShape

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
def attend_tokens(
    q,
    kv_ptr,
    pages_ptr,
    first_token,
    begin,
    end,
    scale,
    softcap,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    V_OFFSET: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Softmax state (m, l, acc) in base 2 of q over the tokens [begin, end) of one KV head.

    q: [GROUP, DIM], both padded to powers of two of at least 16. kv_ptr: the head's K in page 0.
    Tokens below first_token are hidden; the first tile has at least one that is not, so m is
    finite. Hidden tokens and those past the end are never loaded.
    """
    GROUP: tl.constexpr = q.shape[0]
    DIM: tl.constexpr = q.shape[1]
    dims = tl.arange(0, DIM)
    m = tl.full([GROUP], float("-inf"), tl.float32)
    l = tl.zeros([GROUP], tl.float32)  # noqa: E741
    acc = tl.zeros([GROUP, DIM], tl.float32)
    lanes = tl.arange(0, TILE)
    # Page numbers are loaded one tile ahead: K and V then depend on no load of their own
    # iteration, and the compiler keeps STAGES - 1 tiles of both in flight.
    pages = tl.load(pages_ptr + (begin + lanes) // PAGE_SIZE, mask=begin + lanes < end, other=0)
    for tile in tl.range(begin, end, TILE, num_stages=STAGES):
        tokens = tile + lanes
        live = (tokens >= first_token) & (tokens < end)
        rows = pages.to(tl.int64) * PAGE_STRIDE + (tokens % PAGE_SIZE) * HEAD_DIM
        ahead = tokens + TILE
        pages = tl.load(pages_ptr + ahead // PAGE_SIZE, mask=ahead < end, other=0)
        address = kv_ptr + rows[:, None] + dims[None, :]
        mask = live[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(address, mask=mask, other=0.0)
        v = tl.load(address + V_OFFSET, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if HAS_SOFTCAP:
            # softcap * tanh(x / softcap), with tanh(y) = 1 - 2 / (1 + e^2y)
            e = tl.exp2(scores * (2.0 * LOG2E * scale / softcap))
            scores = (softcap - 2.0 * softcap / (1.0 + e)) * LOG2E
        else:
            scores = scores * (scale * LOG2E)
        scores = tl.where(live[None, :], scores, float("-inf"))
        m_next = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp2(scores - m_next[:, None])
        rescale = tl.exp2(m - m_next)
        l = l * rescale + tl.sum(p, axis=1)  # noqa: E741
        acc = acc * rescale[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m = m_next
    return m, l, acc


@triton.jit
def merge_states(
    acc_ptr,
    m_ptr,
    l_ptr,
    first_slot,
    rest_slots,
    count,
    head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Exact output of query head ``head`` of a group from ``count`` partial states, in slot order.

    State 0 is in slot first_slot, state i > 0 in slot rest_slots + i.
    acc: [slots, GROUP, HEAD_DIM], m, l: [slots, GROUP] fp32.
    """
    dims = tl.arange(0, DIM)
    m = float("-inf")
    l = 0.0  # noqa: E741
    acc = tl.zeros([DIM], tl.float32)
    for base in range(0, count, BLOCK):
        state = base + tl.arange(0, BLOCK)
        live = state < count
        slot = tl.where(state == 0, first_slot, rest_slots + state)
        at = slot * GROUP + head
        state_m = tl.load(m_ptr + at, mask=live, other=float("-inf"))
        state_l = tl.load(l_ptr + at, mask=live, other=0.0)
        state_acc = tl.load(
            acc_ptr + at[:, None] * HEAD_DIM + dims[None, :],
            mask=live[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        m_next = tl.maximum(m, tl.max(state_m, axis=0))
        weight = tl.exp2(state_m - m_next)
        rescale = tl.exp2(m - m_next)
        l = l * rescale + tl.sum(weight * state_l, axis=0)  # noqa: E741
        acc = acc * rescale + tl.sum(weight[:, None] * state_acc, axis=0)
        m = m_next
    return acc / l


@dataclass(frozen=True)
class TileConfig:
    """How the kernels are launched for one shape; tokens unless said otherwise."""

    tile: int  # tokens per step of the inner loop
    num_warps: int
    num_stages: int  # tiles in flight per program
    num_programs: int  # of workqueue; split fills as many
    group_pad: int  # query heads per KV head, padded for the matrix units
    dim_pad: int
    pdl: bool  # programmatic dependent launch: start while the kernel in front drains
    unit: int = 16
    overhead: int = 2  # units that starting a segment costs
    min_share: int = 4  # units a program takes at least, so that short rows have few pieces
    merge_block: int = 32  # partial states loaded at once
    merge_warps: int = 4


def tile_config(shape: AttentionShape) -> TileConfig:
    """The launch for ``shape`` on its device; on a CPU, a small one for the interpreter."""
    group_pad = max(16, triton.next_power_of_2(shape.group_size))
    dim_pad = triton.next_power_of_2(shape.head_dim)
    # K and V of one tile: 32 KB, so that a few stages of a few programs fit in shared memory.
    tile = max(16, min(128, 32768 // (2 * dim_pad * shape.dtype.itemsize)))
    if shape.device.type != "cuda":
        return TileConfig(tile, 4, 1, 6, group_pad, dim_pad, pdl=False)
    device = torch.cuda.get_device_properties(shape.device)
    return TileConfig(
        tile=tile,
        num_warps=4,
        num_stages=3,
        num_programs=2 * device.multi_processor_count,
        group_pad=group_pad,
        dim_pad=dim_pad,
        pdl=device.major >= 9,
    )


def allocate_states(slots: int, shape: AttentionShape) -> tuple[torch.Tensor, ...]:
    """Partial softmax states: acc [slots, G, head_dim], m and l [slots, G], all fp32."""
    sizes = ((slots, shape.group_size, shape.head_dim), *((slots, shape.group_size),) * 2)
    return tuple(torch.empty(s, dtype=torch.float32, device=shape.device) for s in sizes)
