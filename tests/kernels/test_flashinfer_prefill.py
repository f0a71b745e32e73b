"""FlashInfer's paged prefill against the definition, alone and in a step."""

from __future__ import annotations

import pytest
import torch

from pkvchat.kernels.attention.batch import AttentionShape, LayerSpec, PrefillChunk
from pkvchat.kernels.attention.flashinfer_prefill import FlashInferPrefill, create_prefill
from pkvchat.kernels.attention.kv import kv_rows, write_kv
from pkvchat.kernels.attention.step import StepAttention
from pkvchat.kernels.attention.strategy import StrategyUnavailable

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
    attend = StepAttention([kv_layer] * len(SPECS), SPECS, torch.cat(slots), None, None, (), paged)
    for layer, spec in enumerate(SPECS):
        expected = [
            causal(q[-new:], k, v, spec, end - new)
            for (q, k, v), end, new in zip(sequences, ends, news, strict=True)
        ]
        out = attend(layer, torch.cat(rows, dim=1), None, None).cpu().double()
        assert (out - torch.cat(expected)).abs().max() < 2e-3


def filled(shape, length, seed=0):
    """Pages of random K and V for one sequence, in any order: (kv_layer, block table, k, v)."""
    generator = torch.Generator("cuda").manual_seed(seed)
    count = -(-length // shape.page_size)
    size = (count + 1, 2, shape.num_kv_heads, shape.page_size, shape.head_dim)
    kv_layer = torch.zeros(size, dtype=shape.dtype, device=shape.device)
    pages = torch.randperm(count, generator=generator, device="cuda").int() + 1
    k, v = torch.randn(
        2, length, shape.num_kv_heads, shape.head_dim, generator=generator, device="cuda"
    ).half()
    position = torch.arange(length, device="cuda")
    slots = pages.long()[position // shape.page_size] * shape.page_size
    slots += position % shape.page_size
    write_kv(kv_layer, kv_rows(slots, kv_layer), k, v)
    return kv_layer, pages, k, v


@pytest.mark.gpu
def test_one_graph_reads_chunks_of_every_length_and_context():
    pytest.importorskip("flashinfer")
    torch.manual_seed(1)
    shape, length, size = shape_of(), 3000, 64
    kv_layer, pages, k, v = filled(shape, length)
    static = FlashInferPrefill(shape, SPECS).static(size, len(pages))
    q = torch.randn(size, shape.num_qo_heads, shape.head_dim, device="cuda").half()
    outs = [torch.empty_like(q) for _ in SPECS]
    static.rehearse(size)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for spec, out in zip(SPECS, outs, strict=True):
            static.run(q, kv_layer, out, spec)
    for end, new in ((64, 64), (3000, 64), (1, 1), (2999, 1), (1000, 33), (33, 20)):
        static.plan([PrefillChunk(pages[: -(-end // shape.page_size)], end, new)])
        graph.replay()
        for spec, out in zip(SPECS, outs, strict=True):
            expected = causal(q[:new], k[:end], v[:end], spec, end - new)
            assert (out[:new].cpu().double() - expected).abs().max() < 2e-3


@pytest.mark.gpu
def test_a_short_chunk_of_a_long_context_with_a_large_group():
    """It is split among all programs, whose partial results pass FlashInfer's usual workspace."""
    pytest.importorskip("flashinfer")
    torch.manual_seed(2)
    shape = AttentionShape(16, 2, 128, 16, torch.float16, torch.device("cuda"))
    length, new = 40_000, 16
    kv_layer, pages, k, v = filled(shape, length)
    paged = FlashInferPrefill(shape, SPECS[:1])
    q = torch.randn(new, shape.num_qo_heads, shape.head_dim, device="cuda").half()
    out = torch.empty_like(q)
    paged.plan([PrefillChunk(pages, length, new)])
    paged.run(q, kv_layer, out, SPECS[0])
    expected = causal(q, k, v, SPECS[0], length - new)
    assert (out.cpu().double() - expected).abs().max() < 2e-3
