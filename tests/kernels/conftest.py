"""Paged problems with poisoned leftovers, and their answer in fp64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, LayerSpec
from pkvchat.kernels.attention.kv import allocate_kv, dequantise, quantise
from pkvchat.kernels.attention.strategy import Strategy


@dataclass
class PagedProblem:
    """One decode batch over scattered pages; everything that must not be read holds NaN."""

    shape: AttentionShape
    batch: DecodeBatch
    q: torch.Tensor
    kv_layer: torch.Tensor

    def expected(self, spec: LayerSpec) -> torch.Tensor:
        """[B, num_qo_heads, head_dim] fp64 on the CPU; rows of length 0 are zero."""
        shape, kv_layer, table = self.shape, self.kv_layer.cpu(), self.batch.block_table
        size = (shape.num_kv_heads, shape.group_size, shape.head_dim)
        if shape.quantised:
            kv_layer = dequantise(kv_layer.flatten(3), shape.page_size, shape.head_dim, torch.float)
        kv_layer = kv_layer.double()
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        for row, length in enumerate(self.batch.lengths):
            if length == 0:
                continue
            pages = table[row, : -(-length // shape.page_size)].long().cpu()
            kv = kv_layer[pages].permute(1, 2, 0, 3, 4).flatten(2, 3)
            first = max(0, length - spec.window) if spec.window else 0
            k, v = kv[:, :, first:length]
            scores = self.q[row].cpu().double().view(size) @ k.transpose(1, 2) * spec.scale
            if spec.softcap:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            if spec.sinks is not None:
                sinks = spec.sinks.cpu().double().view(*size[:2], 1)
                scores, v = torch.cat((scores, sinks), 2), F.pad(v, (0, 0, 0, 1))
            out[row] = (scores.softmax(dim=-1) @ v).flatten(0, 1)
        return out

    def run(self, strategy: Strategy, spec: LayerSpec, num_splits: int = 4) -> torch.Tensor:
        out = torch.full_like(self.q, float("nan"))
        strategy.plan(self.batch, num_splits)
        strategy.run(self.q, self.kv_layer, out, spec)
        return out


def make_paged_problem(
    shape: AttentionShape, lengths: Sequence[int], seed: int = 0, max_pages: int = 0
) -> PagedProblem:
    """Random rows on randomly scattered pages. max_pages: width of the block table, at least."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // shape.page_size) for length in lengths]
    num_pages = sum(counts) + 3  # scratch page 0 and two that no row owns
    size = (num_pages, 2, shape.num_kv_heads, shape.page_size, shape.head_dim)
    kv_layer = torch.randn(size, generator=generator)
    unread = torch.ones(num_pages, shape.page_size, dtype=torch.bool)
    table = torch.zeros(len(counts), max(max_pages, *counts, 1), dtype=torch.int32)
    order = torch.randperm(num_pages - 1, generator=generator)[: sum(counts)] + 1
    for row, pages in enumerate(order.split(counts)):
        table[row, : len(pages)] = pages
        live = torch.arange(len(pages) * shape.page_size) < lengths[row]
        unread[pages] = ~live.view(len(pages), shape.page_size)
    kv_layer.permute(0, 3, 1, 2, 4)[unread] = float("nan")
    q = torch.randn(len(counts), shape.num_qo_heads, shape.head_dim, generator=generator)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=shape.device)
    batch = DecodeBatch(table.to(shape.device), seq_lens, seq_lens.long(), tuple(lengths))
    if shape.quantised:
        kv_layer = quantised(kv_layer, shape)
    return PagedProblem(
        shape, batch, q.to(shape.device, shape.dtype), kv_layer.to(shape.device, shape.kv_dtype)
    )


def quantised(kv: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """A layer of ``shape`` on the CPU. kv: [num_pages, 2, num_kv_heads, page_size, head_dim]."""
    cpu = dataclasses.replace(shape, device=torch.device("cpu"))
    (layer,) = allocate_kv(1, len(kv), cpu)
    values, scales = quantise(kv.flatten(0, 3), shape.kv_dtype)
    raw = layer.view(torch.int8)
    raw.fill_(-1)
    raw[:, :, :, : shape.page_size] = values.view(torch.int8).view(kv.shape)
    first = shape.page_size * shape.head_dim // 4
    at = slice(first, first + shape.page_size)
    raw.flatten(3).view(torch.float)[..., at] = scales.view(kv.shape[:4])
    return layer


@pytest.fixture(scope="session")
def paged_problem() -> Callable[..., PagedProblem]:
    return make_paged_problem


@pytest.fixture(scope="session")
def triton_device() -> torch.device:
    """Where the Triton kernels run here: compiled on a GPU, else in the interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
