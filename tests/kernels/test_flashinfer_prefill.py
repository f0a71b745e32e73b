"""FlashInfer's paged prefill against the definition, alone and in a step."""

from __future__ import annotations

import pytest
import torch

from pkvchat.kernels.batch import AttentionShape, LayerSpec, PrefillChunk
from pkvchat.kernels.flashinfer_prefill import FlashInferPrefill, create_prefill
from pkvchat.kernels.kv import kv_rows, write_kv
from pkvchat.kernels.step import StepAttention
from pkvchat.kernels.strategy import StrategyUnavailable

# Kinds that test_flashinfer has FlashInfer compile, too: each takes it a minute.
SPECS = [LayerSpec(0.1), LayerSpec(0.1, window=33, softcap=20.0)]


def shape_of(page_size=16, device="cuda"):
    return AttentionShape(8, 2, 128, page_size, torch.float16, torch.device(device))


def test_declines_where_torch_reads_the_chunks():
    assert create_prefill(shape_of(device="cpu"), SPECS) is None
    sinks = LayerSpec(0.1, sinks=torch.zeros(8))
    with pytest.raises(StrategyUnavailable, match="no attention sinks"):
        FlashInferPrefill(shape_of(), [sinks])


def causal(q, k, v, spec, first):
    """[n, num_qo_heads, head_dim] fp64; q is of the tokens from ``first`` on."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.cpu().double().transpose(0, 1) for x in (q, k, v))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    distance = torch.arange(first, first + q.shape[1])[:, None] - torch.arange(k.shape[1])
    hidden = (distance < 0) | ((distance >= spec.window) if spec.window else False)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_reads_several_chunks_at_once(page_size):
    pytest.importorskip("flashinfer")
    torch.manual_seed(0)
    shape = shape_of(page_size)
    paged = FlashInferPrefill(shape, SPECS)
    ends, news = (300, 17, 1000, 64), (300, 1, 129, 50)
    counts = [-(-end // page_size) for end in ends]
    size = (sum(counts) + 4, 2, shape.num_kv_heads, page_size, shape.head_dim)
    kv_layer = torch.full(size, float("nan"), dtype=shape.dtype, device=shape.device)
    pages = (torch.randperm(sum(counts) + 3) + 1)[: sum(counts)].int().cuda().split(counts)
    sequences, slots = [], []
    for own, end, new in zip(pages, ends, news, strict=True):
        q, k, v = (
            torch.randn(end, heads, shape.head_dim, device="cuda").half()
            for heads in (shape.num_qo_heads, shape.num_kv_heads, shape.num_kv_heads)
        )
        position = torch.arange(end, device="cuda")
        slot = own.long()[position // page_size] * page_size + position % page_size
        write_kv(kv_layer, kv_rows(slot[: end - new], kv_layer), k[: end - new], v[: end - new])
        sequences.append((q, k, v))
        slots.append(slot[end - new :])
    chunks = [PrefillChunk(*chunk) for chunk in zip(pages, ends, news, strict=True)]
    rows = [
        torch.cat([seq[i][-new:] for seq, new in zip(sequences, news, strict=True)])
        for i in range(3)
    ]
    paged.plan(chunks)
    attend = StepAttention(
        [kv_layer] * len(SPECS), SPECS, torch.cat(slots), None, None, (), paged
    )
    for layer, spec in enumerate(SPECS):
        expected = [
            causal(q[-new:], k, v, spec, end - new)
            for (q, k, v), end, new in zip(sequences, ends, news, strict=True)
        ]
        out = attend(layer, torch.cat(rows, dim=1), None, None).cpu().double()
        assert (out - torch.cat(expected)).abs().max() < 2e-3
