"""Partial softmax states in device memory: writing a piece, and the exact merge of a segment's.

The merge is ``merge``'s (Dao et al. 2023, Flash-Decoding), in base 2.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .batch import AttentionShape

MERGE_WARPS = 1
_MERGE_VALUES = 2048  # that a merging program holds at once
_MAX_BLOCK = 64


def merge_block(shape: AttentionShape, pieces: float) -> dict[str, int]:
    """How many states, query heads and dimensions a merging program takes at once.

    pieces: of a split segment, on average. Few pieces in many segments want few large programs;
    many pieces in few segments the other way round.
    """
    block = min(_MAX_BLOCK, triton.next_power_of_2(int(2 * pieces) + 1))
    dims = min(triton.next_power_of_2(shape.head_dim), _MERGE_VALUES // block)
    heads = min(triton.next_power_of_2(shape.group_size), _MERGE_VALUES // (block * dims))
    return {"BLOCK": block, "HEADS": heads, "DIMS": dims}


def merge_grid(shape: AttentionShape, batch_size: int, block: dict[str, int]) -> tuple[int, ...]:
    """Of (rows, KV heads, parts of a group's output)."""
    parts = triton.cdiv(shape.group_size, block["HEADS"])
    parts *= triton.cdiv(shape.head_dim, block["DIMS"])
    return batch_size, shape.num_kv_heads, parts


def allocate_states(slots: int, shape: AttentionShape) -> tuple[torch.Tensor, ...]:
    """acc [slots, G, head_dim], m and l [slots, G], all fp32."""
    sizes = ((slots, shape.group_size, shape.head_dim), *((slots, shape.group_size),) * 2)
    return tuple(torch.empty(s, dtype=torch.float32, device=shape.device) for s in sizes)


@triton.jit
def store_piece(
    out_ptr,
    acc_ptr,
    m_ptr,
    l_ptr,
    m,
    l,  # noqa: E741
    acc,
    whole,
    slot,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Write a group's output if the piece is the whole segment, else its state to ``slot``.

    acc: [DIM_PAD, GROUP_PAD]. out_ptr: the group's first query head.
    """
    dims = tl.arange(0, acc.shape[0])
    groups = tl.arange(0, acc.shape[1])
    mask = (dims < HEAD_DIM)[:, None] & (groups < GROUP)[None, :]
    at = dims[:, None] + groups[None, :] * HEAD_DIM
    if whole:
        out = acc / l[None, :]
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        tl.store(acc_ptr + slot * GROUP * HEAD_DIM + at, acc, mask=mask)
        tl.store(m_ptr + slot * GROUP + groups, m, mask=groups < GROUP)
        tl.store(l_ptr + slot * GROUP + groups, l, mask=groups < GROUP)


@triton.jit
def merge_states(
    out_ptr,
    acc_ptr,
    m_ptr,
    l_ptr,
    first_slot,
    rest_slots,
    count,
    part,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Write one part, HEADS query heads by DIMS, of a group's output from ``count`` partial states.

    State 0 is in slot first_slot, state i > 0 in slot rest_slots + i. They are merged in that
    order, so that the result is the same from run to run; no state gives zeros. out_ptr: the
    group's first query head.
    """
    DIM_PARTS: tl.constexpr = (HEAD_DIM + DIMS - 1) // DIMS
    heads = part // DIM_PARTS * HEADS + tl.arange(0, HEADS)
    dims = part % DIM_PARTS * DIMS + tl.arange(0, DIMS)
    mask = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    m = tl.full([HEADS], -1e38, tl.float32)  # below any state's, and finite
    l = tl.zeros([HEADS], tl.float32)  # noqa: E741
    acc = tl.zeros([HEADS, DIMS], tl.float32)
    for base in range(0, count, BLOCK):
        state = base + tl.arange(0, BLOCK)
        slot = tl.where(state == 0, first_slot, rest_slots + state)
        live = (state < count)[:, None] & (heads < GROUP)[None, :]
        at = slot[:, None] * GROUP + heads[None, :]
        state_m = tl.load(m_ptr + at, mask=live, other=float("-inf"))
        state_l = tl.load(l_ptr + at, mask=live, other=0.0)
        state_acc = tl.load(
            acc_ptr + at[:, :, None] * HEAD_DIM + dims[None, None, :],
            mask=live[:, :, None] & mask[None, :, :],
            other=0.0,
        )
        m_next = tl.maximum(m, tl.max(state_m, axis=0))
        weight = tl.exp2(state_m - m_next[None, :])
        rescale = tl.exp2(m - m_next)
        l = l * rescale + tl.sum(weight * state_l, axis=0)  # noqa: E741
        acc = acc * rescale[:, None] + tl.sum(weight[:, :, None] * state_acc, axis=0)
        m = m_next
    out = tl.where(count > 0, acc / tl.maximum(l, 1e-30)[:, None], 0.0)
    at = heads[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
