"""The inputs every attention strategy shares: head shape, KV layout, one decode batch.

KV cache of one layer: ``[num_pages, 2, num_kv_heads, page_rows, head_dim]`` (HND; index 0 of
dimension 1 is K, 1 is V). A head's page has a row for each token; in a quantised cache a few rows
more, whose bytes are the tokens' scales in float32. Page 0 is scratch: padded rows write there and
nobody reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

# Quantised caches: the dtypes, each with its largest value.
QUANT_MAX = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
SCALE_BYTES = 4


@dataclass(frozen=True)
class AttentionShape:
    """What is fixed for the life of a KV cache.

    dtype: that attention computes in; queries of another are cast to it. kv_dtype: of the cache,
    ``dtype`` itself or one of ``QUANT_MAX``, then with a scale for each token and head. Raises
    ValueError for what no strategy takes.
    """

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    device: torch.device
    kv_dtype: torch.dtype = None  # type: ignore[assignment]  # dtype

    def __post_init__(self) -> None:
        if self.kv_dtype is None:
            object.__setattr__(self, "kv_dtype", self.dtype)
        for name in ("num_qo_heads", "num_kv_heads", "head_dim", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least 1")
        if self.num_qo_heads % self.num_kv_heads:
            raise ValueError(
                f"num_qo_heads is {self.num_qo_heads}, and must be a multiple of num_kv_heads, "
                f"{self.num_kv_heads}"
            )
        if self.kv_dtype not in (self.dtype, *QUANT_MAX):
            allowed = ", ".join(map(str, (self.dtype, *QUANT_MAX)))
            raise ValueError(f"kv_dtype is {self.kv_dtype}, and must be one of {allowed}")
        if self.quantised and self.head_dim % SCALE_BYTES:
            raise ValueError(
                f"head_dim is {self.head_dim}, and must be a multiple of {SCALE_BYTES} for "
                f"{self.kv_dtype} KV"
            )

    @property
    def group_size(self) -> int:
        """Query heads per KV head (G)."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def quantised(self) -> bool:
        return self.kv_dtype in QUANT_MAX

    @property
    def page_rows(self) -> int:
        """Rows of a head's page, those of its scales included."""
        if not self.quantised:
            return self.page_size
        return self.page_size + -(-self.page_size * SCALE_BYTES // self.head_dim)


@dataclass(frozen=True)
class LayerSpec:
    """What may differ between the layers of one model.

    scale: multiplies q.k before the soft cap (1/sqrt(head_dim) for most models).
    window: a query at position i sees keys at positions > i - window; 0 means all.
    softcap: scores become softcap * tanh(scores / softcap); 0 means none.
    sinks: [num_qo_heads] float32, for each head the score of a key without a value (gpt-oss), which
        the window does not hide and the soft cap does not touch; None means none.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = field(default=None, compare=False)


@dataclass
class DecodeBatch:
    """One decode step's rows: each row is one sequence with one new token, KV already written.

    block_table: [B, max_pages] int32, logical to physical pages; entries past a row's end are
        any valid page number (0 by convention) and are never read.
    seq_lens: [B] int32, tokens in the sequence including the new one.
    slot_mapping: [B] int64, where the new token's K/V go: page * page_size + offset.
    lengths: seq_lens on the host, for the policy and for host planners.
    static: the tensors stay where they are from step to step, for a CUDA graph to read.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    lengths: tuple[int, ...]
    static: bool = False

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass
class PrefillChunk:
    """Consecutive new tokens of one sequence, KV already written.

    block_table: [num_pages] int32, the pages that cover ``context_len`` tokens.
    context_len: tokens in the sequence including this chunk.
    num_tokens: tokens of this chunk; they sit at positions context_len - num_tokens onwards.
    """

    block_table: torch.Tensor
    context_len: int
    num_tokens: int
