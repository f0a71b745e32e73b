"""Partial softmax states in device memory: writing a piece, and the exact merge of a segment's.

States are three tensors: acc [slots, G, head_dim], m and l [slots, G], all fp32.
The merge is ``merge``'s (Dao et al. 2023, Flash-Decoding), in base 2.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .batch import AttentionShape
from .tile_config import power_of_two

MERGE_WARPS = 1
_VALUES = 2048  # that a merging program holds at once
_MAX_STATES = 64


@dataclass(frozen=True)
class MergeBlock:
    """What a merging program takes at once: partial states, query heads of a group, dimensions."""

    states: int
    heads: int
    dims: int

    @classmethod
    def of(cls, shape: AttentionShape, pieces: float) -> MergeBlock:
        """pieces: of a split segment, on average.

        Few pieces in each of many segments want few large programs; many pieces in few segments
        the other way round.
        """
        states = min(_MAX_STATES, power_of_two(int(2 * pieces) + 1))
        dims = min(power_of_two(shape.head_dim), _VALUES // states)
        heads = min(power_of_two(shape.group_size), _VALUES // (states * dims))
        return cls(states, heads, dims)

    def grid(self, shape: AttentionShape, batch_size: int) -> tuple[int, int, int]:
        """(rows, KV heads, parts of a group's output)."""
        parts = -(-shape.group_size // self.heads) * -(-shape.head_dim // self.dims)
        return batch_size, shape.num_kv_heads, parts


def allocate_states(slots: int, shape: AttentionShape) -> tuple[torch.Tensor, ...]:
    """acc, m and l; see the module."""
    sizes = ((slots, shape.group_size, shape.head_dim), *((slots, shape.group_size),) * 2)
    return tuple(torch.empty(s, dtype=torch.float32, device=shape.device) for s in sizes)


@triton.jit
def store_piece(
    out_ptr,
    states,
    m,
    l,  # noqa: E741
    acc,
    dims,
    groups,
    whole,
    slot,
    C: tl.constexpr,
):
    """Write a group's output if the piece is the whole segment, else its state to ``slot``.

    acc: [dim_pad, group_pad], of the dimensions ``dims``. out_ptr: the group's first query head.
    """
    acc_ptr, m_ptr, l_ptr = states
    mask = (dims < C.head_dim)[:, None] & (groups < C.group)[None, :]
    at = dims[:, None] + groups[None, :] * C.head_dim
    if whole:
        out = acc / l[None, :]
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        tl.store(acc_ptr + slot * (C.group * C.head_dim) + at, acc, mask=mask)
        tl.store(m_ptr + slot * C.group + groups, m, mask=groups < C.group)
        tl.store(l_ptr + slot * C.group + groups, l, mask=groups < C.group)


@triton.jit
def merge_states(
    out_ptr,
    states,
    first_slot,
    rest_slots,
    count,
    part,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write one part, BLOCK.heads by BLOCK.dims, of a group's output from ``count`` states.

    State 0 is in slot first_slot, state i > 0 in slot rest_slots + i. They are merged in that
    order, so that the result is the same from run to run; no state gives zeros. out_ptr: the
    group's first query head.
    """
    acc_ptr, m_ptr, l_ptr = states
    DIM_PARTS: tl.constexpr = (C.head_dim + BLOCK.dims - 1) // BLOCK.dims
    heads = part // DIM_PARTS * BLOCK.heads + tl.arange(0, BLOCK.heads)
    dims = part % DIM_PARTS * BLOCK.dims + tl.arange(0, BLOCK.dims)
    mask = (heads < C.group)[:, None] & (dims < C.head_dim)[None, :]
    m = tl.full([BLOCK.heads], -1e38, tl.float32)  # below any state's, and finite
    l = tl.full([BLOCK.heads], 0.0, tl.float32)  # noqa: E741
    acc = tl.full([BLOCK.heads, BLOCK.dims], 0.0, tl.float32)
    STATES: tl.constexpr = BLOCK.states  # of a type that range takes
    for base in range(0, count, STATES):
        state = base + tl.arange(0, STATES)
        slot = tl.where(state == 0, first_slot, rest_slots + state)
        live = (state < count)[:, None] & (heads < C.group)[None, :]
        at = slot[:, None] * C.group + heads[None, :]
        state_m = tl.load(m_ptr + at, mask=live, other=float("-inf"))
        state_l = tl.load(l_ptr + at, mask=live, other=0.0)
        state_acc = tl.load(
            acc_ptr + at[:, :, None] * C.head_dim + dims[None, None, :],
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
    at = heads[:, None] * C.head_dim + dims[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
