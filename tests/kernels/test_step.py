"""KV writes, chunked prefill, and steps that mix decode rows with chunks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, LayerSpec, PrefillChunk
from pkvchat.kernels.attention.kv import allocate_kv, copy_pages, kv_rows, page_bytes, write_kv
from pkvchat.kernels.attention.registry import create_strategy
from pkvchat.kernels.attention.step import StepAttention

SHAPE = AttentionShape(6, 2, 64, 16, torch.float32, torch.device("cpu"))


def poisoned_kv(num_pages, shape=SHAPE):
    kv_layers = allocate_kv(1, num_pages, shape)
    for kv_layer in kv_layers:
        kv_layer.fill_(float("nan"))
    return kv_layers


def slots_of(pages, start, end, page_size=16):
    positions = torch.arange(start, end)
    return pages[positions // page_size].long() * page_size + positions % page_size


def tokens(n, seed, shape=SHAPE):
    generator = torch.Generator().manual_seed(seed)

    def draw(heads):
        return torch.randn(n, heads, shape.head_dim, generator=generator)

    return draw(shape.num_qo_heads), draw(shape.num_kv_heads), draw(shape.num_kv_heads)


def causal(q, k, v, spec):
    """[n, num_qo_heads, head_dim] fp64, over one whole sequence."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    distance = torch.arange(q.shape[1]).unsqueeze(1) - torch.arange(q.shape[1])
    hidden = distance < 0
    if spec.window:
        hidden |= distance >= spec.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if spec.sinks is not None:
        sinks = spec.sinks.double()[:, None, None].expand(-1, len(hidden), 1)
        scores, v = torch.cat((scores, sinks), 2), F.pad(v, (0, 0, 0, 1))
    return (scores.softmax(-1) @ v).transpose(0, 1)


SPECS = [
    LayerSpec(0.125),
    LayerSpec(0.125, window=20),
    LayerSpec(0.125, window=1000),
    LayerSpec(0.125, softcap=4.0),
    LayerSpec(0.125, window=33, softcap=4.0),
    LayerSpec(0.125, sinks=torch.linspace(-3, 5, 6)),
    LayerSpec(0.125, 33, 4.0, torch.linspace(-3, 5, 6)),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("cuts", [(100,), (1, 99), (16, 48, 36), (33, 33, 33, 1), (64, 1, 1, 34)])
def test_chunked_prefill_equals_whole(spec, cuts):
    q, k, v = tokens(100, seed=1)
    kv_layers, pages = poisoned_kv(12), torch.tensor([9, 2, 7, 1, 5, 11, 3], dtype=torch.int32)
    outs, start = [], 0
    for n in cuts:
        end = start + n
        chunk = PrefillChunk(pages[: -(-end // 16)], end, n)
        attend = StepAttention(kv_layers, [spec], slots_of(pages, start, end), None, None, [chunk])
        qkv = torch.cat((q, k, v), dim=1)[start:end]
        outs.append(attend(0, qkv, None, None))
        start = end
    assert (torch.cat(outs).double() - causal(q, k, v, spec)).abs().max() < 1e-5


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", ["sdpa", "split", "workqueue"])
def test_one_step_decodes_two_rows_and_reads_two_chunks(name, spec):
    """Each sequence's new rows come out as if it were alone and read at once."""
    ends = (40, 17, 50, 8)  # of the sequences after this step
    news = (1, 1, 30, 8)
    kv_layers = poisoned_kv(16)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(3)).int() + 1
    pages = order.split([3, 2, 4, 1, 5])
    data = [tokens(end, seed) for seed, end in enumerate(ends)]
    slots = []
    for (_, k, v), own, end, new in zip(data, pages, ends, news, strict=False):
        before = slots_of(own, 0, end - new)
        write_kv(kv_layers[0], kv_rows(before, kv_layers[0]), k[: end - new], v[: end - new])
        slots.append(slots_of(own, end - new, end))
    table = torch.zeros(2, 3, dtype=torch.int32)
    for row in range(2):
        table[row, : len(pages[row])] = pages[row]
    decode = DecodeBatch(table, torch.tensor(ends[:2]).int(), torch.cat(slots[:2]), ends[:2])
    strategy = create_strategy(name, SHAPE)
    strategy.plan(decode, 2)
    chunks = [PrefillChunk(pages[i], ends[i], news[i]) for i in (2, 3)]
    attend = StepAttention(kv_layers, [spec], torch.cat(slots), decode, strategy, chunks)
    q, k, v = (
        torch.cat([d[i][-new:] for d, new in zip(data, news, strict=True)]) for i in (0, 1, 2)
    )
    expected = [causal(*d, spec)[-new:] for d, new in zip(data, news, strict=True)]
    out = attend(0, torch.cat((q, k, v), dim=1), None, None)
    assert (out.double() - torch.cat(expected)).abs().max() < 1e-5


def test_write_kv_touches_only_its_slots():
    shape = AttentionShape(4, 2, 64, 32, torch.float16, torch.device("cpu"))
    (kv_layer,) = poisoned_kv(4, shape)
    slots = torch.tensor([2 * 32 + 31, 1 * 32 + 0, 3 * 32 + 7])
    _, k, v = tokens(3, 0, shape)
    write_kv(kv_layer, kv_rows(slots, kv_layer), k, v)
    for i, slot in enumerate(slots.tolist()):
        page, offset = divmod(slot, 32)
        assert torch.equal(kv_layer[page, 0, :, offset], k[i].half())
        assert torch.equal(kv_layer[page, 1, :, offset], v[i].half())
    assert kv_layer.isnan().sum() == kv_layer.numel() - 3 * 2 * 2 * 64


def test_copy_pages_copies_whole_pages_of_all_layers():
    kv_layers = [layer.normal_() for layer in allocate_kv(2, 6, SHAPE)]
    before = [layer.clone() for layer in kv_layers]
    copy_pages(kv_layers, [1, 4], [5, 2])
    for old, new in zip(before, kv_layers, strict=True):
        assert torch.equal(new[[5, 2]], old[[1, 4]])
        assert torch.equal(new[[0, 1, 3, 4]], old[[0, 1, 3, 4]])


def test_page_bytes_is_what_allocate_takes():
    kv_layers = allocate_kv(3, 7, SHAPE)
    assert sum(layer.nbytes for layer in kv_layers) == 7 * page_bytes(3, SHAPE)
