"""Dense attention of a few query rows, with the log-sum-exp that an exact merge needs."""

from __future__ import annotations

import torch

from .batch import LayerSpec

# torch's fused CPU attention. The public scaled_dot_product_attention calls it too, but drops
# the log-sum-exp.
_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: LayerSpec, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention of each (batch, head), with the query group as query rows.

    q: [n, H, G, d]; k, v: [n, H, T, d], all of one dtype; mask: fp32, added to the scores, shaped
    to broadcast to [n, H, G, T]. Returns out [n, H, G, d] and lse [n, H, G].
    """
    if q.device.type == "cpu" and not spec.softcap:
        out, lse = _fused(q, k, v, attn_mask=mask, scale=spec.scale)
        return out, lse
    scores = (q @ k.transpose(-1, -2)).float() * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(dim=-1)
    return torch.exp(scores - lse.unsqueeze(-1)).to(v.dtype) @ v, lse
