"""The exact merge of partial attention states (PAPER.md; Dao et al. 2023, Flash-Decoding)."""

from __future__ import annotations

import torch


def merge_states(m: torch.Tensor, l: torch.Tensor, acc: torch.Tensor, out: torch.Tensor) -> None:  # noqa: E741
    """Merge S partial states of each row.

    m, l: [S, ...] fp32, the running maximum and sum; acc: [S, ..., d] fp32, the unnormalised
    sum of values. A neutral state has m = -inf, l = 0, acc = 0. out: [..., d], any float dtype.
    """
    weight = torch.exp(m - m.amax(dim=0))
    total = (weight * l).sum(dim=0)
    out.copy_((weight.unsqueeze(-1) * acc).sum(dim=0) / total.unsqueeze(-1))
