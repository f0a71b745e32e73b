"""The paged KV cache: its allocation, and writes into it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .batch import AttentionShape


def page_bytes(num_layers: int, shape: AttentionShape) -> int:
    """Bytes that one page takes over all layers, K and V."""
    elements = 2 * shape.num_kv_heads * shape.page_size * shape.head_dim
    return num_layers * elements * shape.dtype.itemsize


def allocate_kv(num_layers: int, num_pages: int, shape: AttentionShape) -> list[torch.Tensor]:
    """One uninitialised ``[num_pages, 2, num_kv_heads, page_size, head_dim]`` tensor per layer.

    Nobody reads a slot before it is written; on CPU, memory is then only taken as pages are used.
    """
    size = (num_pages, 2, shape.num_kv_heads, shape.page_size, shape.head_dim)
    return [torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(num_layers)]


def kv_rows(slot_mapping: torch.Tensor, kv_layer: torch.Tensor) -> torch.Tensor:
    """Where N tokens' K/V go, once for all layers of one size.

    slot_mapping: [N] int64, page * page_size + offset. Returns [N * 2 * num_kv_heads] int64, the
    rows of a layer seen as [rows, head_dim]: each token's K heads, then its V heads.
    """
    _, two, heads, page_size, _ = kv_layer.shape
    page = torch.div(slot_mapping, page_size, rounding_mode="floor")
    first = page * (two * heads * page_size) + slot_mapping % page_size
    lanes = torch.arange(two * heads, device=slot_mapping.device) * page_size
    return (first.unsqueeze(1) + lanes).flatten()


def write_kv(kv_layer: torch.Tensor, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Store the K/V of N tokens. k, v: [N, num_kv_heads, head_dim], cast to the cache's dtype.

    rows: from ``kv_rows``.
    """
    if kv_layer.device.type == "cuda":
        from .kv_triton import write_kv_triton

        write_kv_triton(kv_layer, rows, k, v)
        return
    head_dim = kv_layer.shape[4]
    new = torch.cat((k, v), dim=1).view(-1, head_dim).to(kv_layer.dtype)
    kv_layer.view(-1, head_dim).index_copy_(0, rows, new)


def copy_pages(kv_layers: Sequence[torch.Tensor], src: Sequence[int], dst: Sequence[int]) -> None:
    """Copy whole pages within each layer: page src[i] to page dst[i]."""
    device = kv_layers[0].device
    source, target = torch.tensor(src, device=device), torch.tensor(dst, device=device)
    for kv_layer in kv_layers:
        kv_layer[target] = kv_layer[source]
