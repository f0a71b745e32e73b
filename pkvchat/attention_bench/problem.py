"""What engines are measured on: pages of random K and V, batches over them, queries."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pkvchat.kernels.attention.batch import SCALE_BYTES, AttentionShape, DecodeBatch, LayerSpec
from pkvchat.kernels.attention.kv import allocate_kv, fill_random, page_bytes

from ..engine.memory import free_memory, human
from ..errors import ChatError

_COLD_BYTES = {"cuda": 256 << 20, "cpu": 64 << 20}  # several times any L2, a core's caches


class KvPool:
    """Pages of random K and V for one shape, from which problems take their layers."""

    def __init__(self, shape: AttentionShape, num_pages: int) -> None:
        """Raises ChatError where the device has no room."""
        self.shape = shape
        need, free = page_bytes(num_pages, shape), free_memory(shape.device)
        if need > free:
            raise ChatError(
                f"the KV pages of this benchmark take {human(need)} and {human(free)} are free: "
                "lower --max-active or --steps, or choose shorter lengths"
            )
        (self.pages,) = allocate_kv(1, num_pages, shape)
        fill_random(self.pages)

    def layers(self, num_pages: int, count: int) -> list[torch.Tensor]:
        """``count`` layers' KV of ``num_pages`` pages each."""
        assert num_pages * count <= len(self.pages), "the pool is too small"
        return list(self.pages[: num_pages * count].split(num_pages))


def num_cold_layers(kv_bytes: int, device: torch.device) -> int:
    """Layers to take in turn so that each one's KV has left the caches when its turn comes."""
    return max(2, -(-_COLD_BYTES[device.type] // kv_bytes))


def kv_bytes(lengths: Sequence[int], shape: AttentionShape) -> int:
    """Bytes of one layer's K and V, and of their scales, that a batch reads."""
    vector = shape.head_dim * shape.kv_dtype.itemsize + (SCALE_BYTES if shape.quantised else 0)
    return sum(lengths) * 2 * shape.num_kv_heads * vector


def decode_batch(
    pages: Sequence[Sequence[int]], lengths: Sequence[int], width: int, device: torch.device
) -> DecodeBatch:
    """A batch of rows on the physical ``pages``; width: of the block table, in pages."""
    table = torch.zeros(len(pages), width, dtype=torch.int32)
    for row, owned in enumerate(pages):
        table[row, : len(owned)] = torch.tensor(owned, dtype=torch.int32)
    return DecodeBatch(
        table.to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        torch.zeros(len(pages), dtype=torch.int64, device=device),
        tuple(lengths),
    )


class StaticBatch:
    """A batch that stays in its place while its contents change, for a CUDA graph to read."""

    def __init__(self, like: DecodeBatch) -> None:
        self.batch = DecodeBatch(
            like.block_table.clone(),
            like.seq_lens.clone(),
            like.slot_mapping,
            like.lengths,
            static=True,
        )

    def load(self, source: DecodeBatch) -> DecodeBatch:
        """Take in another batch of as many rows."""
        self.batch.block_table.copy_(source.block_table)
        self.batch.seq_lens.copy_(source.seq_lens)
        self.batch.lengths = source.lengths
        return self.batch


class Queries:
    """Random queries of one layer, and where the output goes; [rows, num_qo_heads, head_dim]."""

    def __init__(self, shape: AttentionShape, rows: int) -> None:
        size = (rows, shape.num_qo_heads, shape.head_dim)
        self.q = torch.randn(size, device=shape.device).to(shape.dtype)
        self.out = torch.empty_like(self.q)
        self.spec = LayerSpec(scale=shape.head_dim**-0.5)
