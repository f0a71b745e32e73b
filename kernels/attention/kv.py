"""The paged KV cache: its allocation, and writes into it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .batch import QUANT_MAX, SCALE_BYTES, AttentionShape

_RANDOM_PAGES = 509  # a prime: pages that repeat are at no distance that an error would have
MIN_MAGNITUDE = 1e-12  # a row of zeros has a scale, too


def page_bytes(num_layers: int, shape: AttentionShape) -> int:
    """Bytes that one page takes over all layers, K and V and their scales."""
    elements = 2 * shape.num_kv_heads * shape.page_rows * shape.head_dim
    return num_layers * elements * shape.kv_dtype.itemsize


def allocate_kv(num_layers: int, num_pages: int, shape: AttentionShape) -> list[torch.Tensor]:
    """One uninitialised ``[num_pages, 2, num_kv_heads, page_rows, head_dim]`` tensor per layer.

    Nobody reads a slot before it is written; on CPU, memory is then only taken as pages are used.
    """
    size = (num_pages, 2, shape.num_kv_heads, shape.page_rows, shape.head_dim)
    return [torch.empty(size, dtype=shape.kv_dtype, device=shape.device) for _ in range(num_layers)]


def tokens_per_page(kv_layer: torch.Tensor) -> int:
    """page_size, of which AttentionShape.page_rows made the layer's rows."""
    rows, head_dim = kv_layer.shape[3:]
    if kv_layer.dtype not in QUANT_MAX:
        return rows
    return rows * head_dim // (head_dim + SCALE_BYTES)


def kv_rows(slot_mapping: torch.Tensor, kv_layer: torch.Tensor) -> torch.Tensor:
    """Where N tokens' K/V go, once for all layers of one size.

    slot_mapping: [N] int64, page * page_size + offset. Returns [N * 2 * num_kv_heads] int64, the
    rows of a layer seen as [rows, head_dim]: each token's K heads, then its V heads.
    """
    _, two, heads, page_rows, _ = kv_layer.shape
    page_size = tokens_per_page(kv_layer)
    page = torch.div(slot_mapping, page_size, rounding_mode="floor")
    first = page * (two * heads * page_rows) + slot_mapping % page_size
    lanes = torch.arange(two * heads, device=slot_mapping.device) * page_rows
    return (first.unsqueeze(1) + lanes).flatten()


def write_kv(kv_layer: torch.Tensor, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Store the K/V of N tokens. k, v: [N, num_kv_heads, head_dim], cast to the cache's dtype.

    rows: from ``kv_rows``.
    """
    if kv_layer.device.type == "cuda":
        from .kv_triton import write_kv_triton

        write_kv_triton(kv_layer, rows, k, v)
        return
    page_rows, head_dim = kv_layer.shape[3:]
    new = torch.cat((k, v), dim=1).view(-1, head_dim)
    if kv_layer.dtype not in QUANT_MAX:
        kv_layer.view(-1, head_dim).index_copy_(0, rows, new.to(kv_layer.dtype))
        return
    values, scales = quantise(new, kv_layer.dtype)
    # Moves of bytes, whatever they mean: not every operation knows float8.
    kv_layer.view(torch.int8).view(-1, head_dim).index_copy_(0, rows, values.view(torch.int8))
    at = scale_index(rows, tokens_per_page(kv_layer), page_rows, head_dim)
    kv_layer.view(-1).view(torch.float32).index_copy_(0, at, scales)


def scale_index(rows: torch.Tensor, page_size: int, page_rows: int, head_dim: int) -> torch.Tensor:
    """Where the scales of ``rows`` (see kv_rows) are in the layer seen as float32."""
    first = (rows // page_rows * page_rows + page_size) * (head_dim // SCALE_BYTES)
    return first + rows % page_rows


def quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x: [N, d] float. Returns [N, d] of a dtype in QUANT_MAX and [N] float32 scales.

    Symmetric, one scale a row: its largest magnitude becomes the dtype's largest.
    """
    x, limit = x.float(), QUANT_MAX[dtype]
    scale = x.abs().amax(dim=-1).clamp_min(MIN_MAGNITUDE) / limit
    x = x / scale.unsqueeze(-1)
    return (x if dtype.is_floating_point else x.round()).to(dtype), scale


def dequantise(
    pages: torch.Tensor, page_size: int, head_dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """The values of heads' pages, [..., page_rows * head_dim] of a quantised layer.

    Returns [..., page_size, head_dim] of ``dtype``.
    """
    values = pages[..., : page_size * head_dim].float().unflatten(-1, (page_size, head_dim))
    scales = pages.view(torch.float32)[..., page_size * head_dim // SCALE_BYTES :][..., :page_size]
    return torch.mul(values, scales.unsqueeze(-1)).to(dtype)


def fill_random(kv_layer: torch.Tensor) -> None:
    """Write K/V like a model's, for measurements: zeros would hide wrong reads."""
    page_size, (_, _, heads, _, head_dim) = tokens_per_page(kv_layer), kv_layer.shape
    pages = kv_layer.view(torch.uint8)
    first, *others = pages.split(_RANDOM_PAGES)
    slots = torch.arange(len(first) * page_size, device=kv_layer.device)
    k, v = torch.randn(2, len(slots), heads, head_dim, device=kv_layer.device).unbind()
    write_kv(kv_layer, kv_rows(slots, kv_layer), k, v)
    for part in others:
        part.copy_(first[: len(part)])


def copy_pages(kv_layers: Sequence[torch.Tensor], src: Sequence[int], dst: Sequence[int]) -> None:
    """Copy whole pages within each layer: page src[i] to page dst[i]."""
    device = kv_layers[0].device
    source, target = torch.tensor(src, device=device), torch.tensor(dst, device=device)
    for kv_layer in kv_layers:
        pages = kv_layer.view(torch.int8) if kv_layer.dtype in QUANT_MAX else kv_layer
        pages[target] = pages[source]
