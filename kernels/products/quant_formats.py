"""GGUF's quantised blocks as planes: the same bytes, arranged so that a GPU loads them wide.

A weight is ``scale * q + bias`` with q an unsigned field of 4, 5, 6 or 8 bits. A row of a matrix
is cut into units of four 32-bit words: a thread loads a unit with one instruction. Fields s of the
lower and of the upper half of word i hold the neighbours ``8 * s + 2 * i`` and the next one: one
mask takes both out of the word, 16 bits apart, where a pair of 16-bit numbers has them. The 5th and
6th bits lie in a plane of their own, a byte or two per word, where the upper half's follow 2 bits
after the lower half's.
Block layouts: github.com/ggml-org/ggml src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class QuantType:
    """block: weights of one GGUF block, ``block_bytes`` long.

    field_bits: of a field in the ``low`` plane. high_bits: more bits per field, in the ``high``
    plane. group: weights that share a scale.
    """

    name: str
    block: int
    block_bytes: int
    field_bits: int
    high_bits: int
    group: int

    @property
    def slots(self) -> int:
        """Fields in a 32-bit word."""
        return 32 // self.field_bits

    @property
    def unit(self) -> int:
        """Weights in four words."""
        return 4 * self.slots


TYPES = {
    kind.name: kind
    for kind in (
        QuantType("Q4_0", 32, 18, 4, 0, 32),
        QuantType("Q4_1", 32, 20, 4, 0, 32),
        QuantType("Q8_0", 32, 34, 8, 0, 32),
        QuantType("Q4_K", 256, 144, 4, 0, 32),
        QuantType("Q5_K", 256, 176, 4, 1, 32),
        QuantType("Q6_K", 256, 210, 4, 2, 16),
    )
}
"""The types with kernels; matrices of any other are dequantised when they are loaded."""

_SLICE_BYTES = 32 << 20  # repacked at once: temporaries take a few times as much


@dataclass(frozen=True)
class Planes:
    """One matrix [rows, in_features] of one type. A type that lacks a plane has it empty.

    low: [rows, in_features / slots] int32. high: [rows, in_features / slots] uint8 (1 high bit)
    or int16 (2).
    scales: Q4_0, Q8_0: fp16 d per block. Q4_1: int32 per block, fp16 d below fp16 m.
        Q4_K, Q5_K: four int32 per block: fp16 d below fp16 dmin; then nibbles, one per group: the
        low bits of its 6-bit scale, of its 6-bit minimum, the two high bits of both.
        Q6_K: int16 per 32 weights, two int8 scales.
    supers: Q6_K: fp16 d per block.
    """

    type: QuantType
    low: torch.Tensor
    high: torch.Tensor
    scales: torch.Tensor
    supers: torch.Tensor

    @property
    def rows(self) -> int:
        return self.low.shape[0]

    @property
    def in_features(self) -> int:
        return self.low.shape[1] * self.type.slots

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.low, self.high, self.scales, self.supers

    def nbytes(self) -> int:
        return sum(plane.nbytes for plane in self.tensors())


def pack(name: str, raw: torch.Tensor) -> Planes:
    """Repack the rows of a GGUF matrix, on their device, a slice at a time.

    raw: [rows, row_bytes] uint8, as in the file. Raises ValueError for a type without kernels or
    rows that are not whole blocks.
    """
    kind = TYPES.get(name)
    if kind is None:
        raise ValueError(f"quant type {name} has no kernels; those with: {', '.join(TYPES)}")
    row_bytes = raw.shape[1]
    if row_bytes % kind.block_bytes:
        raise ValueError(
            f"{name} rows of {row_bytes} bytes are not whole blocks of {kind.block_bytes}"
        )
    slices = raw.split(max(1, _SLICE_BYTES // row_bytes))
    return stack([_pack_slice(kind, rows) for rows in slices])


def _pack_slice(kind: QuantType, raw: torch.Tensor) -> Planes:
    blocks = raw.reshape(len(raw), -1, kind.block_bytes)
    planes = [plane.reshape(len(raw), -1) for plane in _SPLITTERS[kind.name](blocks)]
    return Planes(kind, *planes)


def stack(parts: Sequence[Planes]) -> Planes:
    """Matrices of one type and width, one above the other."""
    if len(parts) == 1:
        return parts[0]
    planes = zip(*(part.tensors() for part in parts), strict=True)
    return Planes(parts[0].type, *(torch.cat(same) for same in planes))


def dequantise(planes: Planes) -> torch.Tensor:
    """[rows, in_features] float32, bit for bit what gguf-py gives for the same blocks."""
    q = fields(planes).float()
    scale, bias = scales_and_biases(planes)
    group = planes.type.group
    return q * scale.repeat_interleave(group, 1) + bias.repeat_interleave(group, 1)


# --- from blocks to planes: each returns (low, high, scales, supers) --------------------------


def _q4_0(blocks: torch.Tensor) -> list[torch.Tensor]:
    d, q = _half(blocks, 0), _nibbles(blocks[..., 2:], 16)
    return [_words(q), _none(q), d, _none(q)]


def _q4_1(blocks: torch.Tensor) -> list[torch.Tensor]:
    q = _nibbles(blocks[..., 4:], 16)
    return [_words(q), _none(q), _view(blocks[..., :4], torch.int32), _none(q)]


def _q8_0(blocks: torch.Tensor) -> list[torch.Tensor]:
    low = _by_word((blocks[..., 2:] ^ 0x80).unflatten(-1, (2, 16)))
    return [_view(low, torch.int32), _none(low), _half(blocks, 0), _none(low)]


def _q4_k(blocks: torch.Tensor) -> list[torch.Tensor]:
    q = _nibbles(blocks[..., 16:], 32)
    return [_words(q), _none(q), _k_scales(blocks), _none(q)]


def _q5_k(blocks: torch.Tensor) -> list[torch.Tensor]:
    bits = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    top = _by_word((blocks[..., None, 16:48] >> bits) & 1)  # [..., group of 32, word, field]
    high = (top << high_at(bits[:, 0], 1)).sum(-1, dtype=torch.uint8)
    q = _nibbles(blocks[..., 48:], 32)
    return [_words(q), high, _k_scales(blocks), _none(q)]


def _q6_k(blocks: torch.Tensor) -> list[torch.Tensor]:
    low, top = blocks[..., :128].unflatten(-1, (2, 1, 64)), blocks[..., 128:192]
    q = torch.cat((low & 15, low >> 4), -2).reshape(*blocks.shape[:2], 8, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    top = (top.unflatten(-1, (2, 1, 32)) >> shifts) & 3
    by_word = _by_word(top.reshape(*blocks.shape[:2], 8, 32)).to(torch.int32)
    field = torch.arange(8, dtype=torch.int32, device=blocks.device)
    high = (by_word << high_at(field, 2)).sum(-1, dtype=torch.int32).to(torch.int16)
    scales = _view(blocks[..., 192:208], torch.int16)
    return [_words(q), high, scales, _half(blocks, 208)]


_SPLITTERS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def _view(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as little-endian ``dtype``; the last dimension shrinks."""
    return data.contiguous().view(dtype)


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    return _view(blocks[..., start : start + 2], torch.float16)


def _none(like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(like.shape[0], 0, dtype=torch.uint8)


def _nibbles(packed: torch.Tensor, run: int) -> torch.Tensor:
    """GGUF's order: of ``run`` bytes, first the low nibbles, then the high. [..., groups, 32]."""
    runs = packed.unflatten(-1, (-1, 1, run))
    return torch.cat((runs & 15, runs >> 4), -2).reshape(*packed.shape[:-1], -1, 32)


def _by_word(q: torch.Tensor) -> torch.Tensor:
    """The weights of units, [..., UNIT], as fields: [..., word, field]."""
    fields: torch.Tensor = q.unflatten(-1, (-1, 4, 2)).movedim(-3, -1).flatten(-2)
    return fields


def _words(q: torch.Tensor) -> torch.Tensor:
    """[..., 32] nibbles to [..., 4] int32."""
    nibbles = _by_word(q)
    return _view(nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), torch.int32)


def high_at(field: torch.Tensor, bits: int) -> torch.Tensor:
    """Where a field's high ``bits`` lie in its word's part of the high plane."""
    return field % 4 * 4 + field // 4 * 2 if bits == 2 else field % 2 * 4 + field // 2


def _k_scales(blocks: torch.Tensor) -> torch.Tensor:
    """Four int32 for a Q4_K or Q5_K block, whose bytes 4..16 hold eight pairs of 6 bits."""
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), -1)
    least = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), -1)
    nibbles = torch.stack((scale & 15, least & 15, (scale >> 4) | ((least >> 4) << 2)), -2)
    packed = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    return _view(torch.cat((blocks[..., :4], packed.flatten(-2)), -1), torch.int32)


# --- from planes to numbers ------------------------------------------------------------------


def fields(planes: Planes) -> torch.Tensor:
    """[rows, in_features] int32, every unsigned q in order."""
    kind, low = planes.type, planes.low.unflatten(-1, (-1, 4, 1))
    field = torch.arange(kind.slots, dtype=torch.int32, device=low.device)
    q: torch.Tensor = (low >> (field * kind.field_bits)) & ((1 << kind.field_bits) - 1)
    if kind.high_bits:
        high = planes.high.to(torch.int32).unflatten(-1, (-1, 4, 1))
        high = (high >> high_at(field, kind.high_bits)) & ((1 << kind.high_bits) - 1)
        q = q | (high << 4)
    in_order: torch.Tensor = q.unflatten(-1, (2, -1)).movedim(-1, -3).flatten(1)
    return in_order


def scales_and_biases(planes: Planes) -> tuple[torch.Tensor, torch.Tensor]:
    """(scale, bias) of every group, [rows, groups] float32."""
    name, scales = planes.type.name, planes.scales
    if name in ("Q4_0", "Q8_0"):
        d = scales.float()
        return d, d * (-8.0 if name == "Q4_0" else -128.0)
    if name == "Q4_1":
        d, m = scales.view(torch.float16).unflatten(-1, (-1, 2)).float().unbind(-1)
        return d, m
    if name == "Q6_K":
        d = scales.view(torch.int8).float() * planes.supers.float().repeat_interleave(16, 1)
        return d, d * -32.0
    header, *nibbles = scales.unflatten(-1, (-1, 4)).unbind(-1)
    d, dmin = header.contiguous().view(torch.float16).unflatten(-1, (-1, 2)).float().unbind(-1)
    at = torch.arange(0, 32, 4, dtype=torch.int32, device=scales.device)
    scale, least, top = ((word[..., None] >> at) & 15 for word in nibbles)
    scale, least = scale | ((top & 3) << 4), least | ((top & 12) << 2)
    return (d[..., None] * scale).flatten(1), (-dmin[..., None] * least).flatten(1)
