"""The exact merge of partial attention states (Dao et al. 2023, Flash-Decoding).

A state is a normalised output and the log-sum-exp of its scores: in the (m, l, acc) form,
out = acc / l and lse = m + log(l). The neutral state has lse = -inf.
"""

from __future__ import annotations

import torch


def merge_states(out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the S partial states of one row.

    out: [S, ..., d]; lse: [S, ...]; returns one state, out [..., d] and lse [...].
    """
    weight = torch.softmax(lse, dim=0).to(out.dtype)
    return (out * weight.unsqueeze(-1)).sum(dim=0), lse.logsumexp(dim=0)


def merge_segments(
    out: torch.Tensor, lse: torch.Tensor, rows: torch.Tensor, num_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge compact partial slots, each row's side by side.

    out: [T, ..., d]; lse: [T, ...]; rows: [T] int64, the row of each slot; every row has one at
    least. Returns one state a row, out [num_rows, ..., d] and lse [num_rows, ...].
    """
    top = lse.new_full((num_rows, *lse.shape[1:]), float("-inf"))
    index = rows.view(-1, *[1] * (lse.ndim - 1)).expand_as(lse)
    top.scatter_reduce_(0, index, lse, "amax")
    weight = torch.exp(lse - top[rows])
    total = torch.zeros_like(top).index_add_(0, rows, weight)
    merged = out.new_zeros((num_rows, *out.shape[1:]))
    merged.index_add_(0, rows, out * weight.unsqueeze(-1).to(out.dtype))
    return merged / total.unsqueeze(-1).to(out.dtype), top + total.log()


def with_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """A state's output where each head's sink, a state whose output is 0, joins in.

    out: [..., d]; lse: [...]; sinks: to broadcast to lse's shape, or None.
    """
    if sinks is None:
        return out
    return out * torch.sigmoid(lse - sinks).unsqueeze(-1).to(out.dtype)
