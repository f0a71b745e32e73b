"""How the Triton decode kernels are launched for a shape, and what they are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .batch import AttentionShape

_TILE_BYTES = 32768  # of K and V together, as they are multiplied
# Rows of a batch, up to which the products behind attention are of a matrix and vectors, as
# gemv_triton.MAX_ROWS has it. Those load weights before they wait, and took Llama-3-8B 2% longer in
# bfloat16 where they came in early.
_VECTORS = 2


@dataclass(frozen=True)
class TileConfig:
    """How the kernels are launched for one shape; tokens unless said otherwise."""

    tile: int  # per step of the inner loop
    num_stages: int  # tiles of K and V in flight per program
    num_programs: int  # of workqueue; split's grid goes up to twice as many
    group_pad: int  # query heads per KV head, padded for the matrix units
    dim_pad: int
    unit: int  # granularity of shares; a tile begins at a page boundary or lies in one page
    pdl: bool  # programmatic dependent launch: start while the kernel in front drains
    num_warps: int = 4
    gluon: bool = False  # the loop written out for Hopper; see attend_hopper
    overhead: int = 64  # what starting a segment costs
    min_share: int = 64  # what a program takes at least, so that short rows have few pieces
    padding: int = 4  # percent by which workqueue's shares may grow to have one piece each


@dataclass(frozen=True)
class KernelShape:
    """What the kernels are compiled for: one compile-time argument in the place of many.

    unit and tile are in tokens, min_share in units.
    """

    num_kv_heads: int
    group: int
    head_dim: int
    page_size: int
    page_rows: int
    group_pad: int
    dim_pad: int
    unit: int
    min_share: int
    tile: int
    num_stages: int
    has_softcap: bool
    early: bool  # let the next kernel in while the last tiles arrive, not after them
    gluon: bool

    @classmethod
    def of(
        cls, shape: AttentionShape, config: TileConfig, has_softcap: bool, rows: int
    ) -> KernelShape:
        return cls(
            num_kv_heads=shape.num_kv_heads,
            group=shape.group_size,
            head_dim=shape.head_dim,
            page_size=shape.page_size,
            page_rows=shape.page_rows,
            group_pad=config.group_pad,
            dim_pad=config.dim_pad,
            unit=config.unit,
            min_share=max(1, config.min_share // config.unit),
            tile=config.tile,
            num_stages=config.num_stages,
            has_softcap=has_softcap,
            early=rows > _VECTORS,
            gluon=config.gluon,
        )


def tile_config(shape: AttentionShape) -> TileConfig:
    """The launch for ``shape`` on its device; on a CPU, a small one for the interpreter.

    Measured on an H200 (benchmarks/h200-attention.md): two programs fill a multiprocessor's
    shared memory, three where the cache is quantised, whose loop waits longer for the products.
    """
    dim_pad = power_of_two(shape.head_dim)
    itemsize = max(2, shape.kv_dtype.itemsize)
    tile = max(16, min(128, _TILE_BYTES // (2 * dim_pad * itemsize)))
    stages, programs, pdl, gluon = 1, 6, False, False
    if shape.device.type == "cuda":
        device = torch.cuda.get_device_properties(shape.device)
        gluon = device.major == 9 and gluon_takes(shape)
        per_multiprocessor = 3 if gluon and shape.quantised else 2
        programs = per_multiprocessor * device.multi_processor_count
        stages, pdl = 3, device.major >= 9
    return TileConfig(
        tile=tile,
        num_stages=stages,
        num_programs=programs,
        group_pad=max(16, power_of_two(shape.group_size)),
        dim_pad=dim_pad,
        unit=min(shape.page_size, tile),
        pdl=pdl,
        gluon=gluon,
    )


def gluon_takes(shape: AttentionShape) -> bool:
    """Whether attend_hopper is written for a shape."""
    dim_pad = power_of_two(shape.head_dim)
    return (
        shape.kv_dtype.itemsize <= 2
        and shape.group_size <= 16
        and shape.page_size >= 16
        and shape.head_dim * shape.kv_dtype.itemsize % 16 == 0
        and (128 if shape.quantised else 64) <= dim_pad <= 128
    )


def power_of_two(n: int) -> int:
    """The least one that is n or more; n >= 1."""
    return 1 << (n - 1).bit_length()
