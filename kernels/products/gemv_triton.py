"""A dense matrix times one vector or two, at the speed of reading the matrix; or, of a stack of
matrices, the one that is chosen on the device for each vector.

A program owns ROWS output rows. It asks for the first block of its weights before it waits for the
kernel in front, and for each next one before it multiplies the last: what bounds a decode step is
how many bytes are under way.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,assignment"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_triton import gate
from ..attention.tile_config import power_of_two
from ..launch_triton import has_dependent_launch, launch, multiprocessors


@triton.jit
def issue_loads(x, NATIVE: tl.constexpr):
    """Have what was loaded so far on its way before anything else is computed. x: any number.

    Without it, ptxas moves a load that is ahead of its use to the end of a loop, where the
    registers of its predecessor are free. It moves none over a warp's barrier.
    """
    if NATIVE:  # not interpreted
        tl.inline_asm_elementwise(
            "bar.warp.sync 0xffffffff; mov.b32 $0, $1;",
            "=r,r",
            [x],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def own_rows(r, out_features, ROWS: tl.constexpr, RAGGED: tl.constexpr, GATED: tl.constexpr):
    """Rows r of the program's tile as rows of the matrix, int64. A tile has ROWS, or GATED the
    gates' ROWS above the ups' ROWS.

    RAGGED: out_features is no multiple of ROWS; rows past the last repeat it.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + r % ROWS
    if RAGGED:
        row = tl.minimum(row, out_features - 1)
    if GATED:
        row += (r // ROWS).to(tl.int64) * out_features
    return row


@triton.jit
def store_rows(out_ptr, result, out_features, ROWS: tl.constexpr, ACTIVATION: tl.constexpr):
    """result: of ``own_rows``, float32. ACTIVATION: "" or what gates the one half by the other."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if ACTIVATION != "":
        gates, ups = tl.split(tl.permute(tl.reshape(result, [2, ROWS]), [1, 0]))
        result = gate(gates, ups, ACTIVATION)
    tl.store(out_ptr + n, result.to(out_ptr.dtype.element_ty), mask=n < out_features)


@triton.jit
def chosen_matrix(chosen_ptr, PDL: tl.constexpr):
    """Which of a stack the program multiplies by, int64: program_id(1) counts the choices."""
    if PDL:
        gdc_wait()  # the choice comes from the kernel in front
    return tl.load(chosen_ptr + tl.program_id(1))


@triton.jit(do_not_specialize=["num_x"])
def gemv_kernel(
    x_ptr,
    out_ptr,
    bias_ptr,
    chosen_ptr,
    weight_ptr,
    num_x,
    out_features,
    out_stride,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RAGGED: tl.constexpr,
    CHOICES: tl.constexpr,
    NUM_X: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[m, n] = sum_k w[n, k] * x[m, k] (+ bias[n]) for the num_x <= NUM_X vectors.

    With an ACTIVATION, gated: the matrix has 2 * out_features rows. BLOCK: of a row, in one step.
    CHOICES: of each vector, for which out then has a row each; 0 without a stack.
    """
    GATED: tl.constexpr = ACTIVATION != ""
    if PDL:
        gdc_launch_dependents()
    row = tl.arange(0, 2 * ROWS if GATED else ROWS)
    row = own_rows(row, out_features, ROWS, RAGGED, GATED)
    if CHOICES > 0:
        row += chosen_matrix(chosen_ptr, PDL) * out_features
        x_ptr += tl.program_id(1) // CHOICES * WIDTH
        out_ptr += tl.program_id(1) * out_stride
    k = tl.arange(0, BLOCK)
    at = weight_ptr + row[:, None] * WIDTH + k[None, :]
    block = tl.load(at, mask=(k < WIDTH)[None, :], other=0.0)
    if PDL:
        gdc_wait()  # x comes from the kernel in front, the matrix does not
    totals = ()
    for _ in tl.static_range(NUM_X):
        totals += (tl.zeros([row.shape[0], BLOCK // 8], tl.float32),)
    for start in range(0, WIDTH, BLOCK):
        w = block.to(tl.float32)
        left = WIDTH - start
        block = tl.load(at + (start + BLOCK), mask=(k < left - BLOCK)[None, :], other=0.0)
        new_totals = ()
        for m in tl.static_range(NUM_X):
            mask = (k < left) & (m < num_x)
            x = tl.load(x_ptr + m * WIDTH + start + k, mask=mask, other=0.0).to(tl.float32)
            # A thread holds eight neighbours of a row: this sum is its own.
            product = tl.reshape(w * x[None, :], [row.shape[0], BLOCK // 8, 8])
            new_totals += (totals[m] + tl.sum(product, axis=2),)
        totals = new_totals
    for m in tl.static_range(NUM_X):
        result = tl.sum(totals[m], axis=1)
        if HAS_BIAS:
            result += tl.load(bias_ptr + row).to(tl.float32)
        if m < num_x:
            store_rows(out_ptr + m * out_stride, result, out_features, ROWS, ACTIVATION)


@dataclass(frozen=True)
class GemvConfig:
    """rows: output features per program. block: weights of a row that are loaded at once."""

    rows: int
    block: int
    warps: int


MAX_ROWS = 2  # of x: from there on the library's products are as fast


def gemv_config(weight: torch.Tensor, rows: int, num_x: int) -> GemvConfig:
    """What was fastest on an H200 at Llama-3-8B's shapes (benchmarks/h200-quantised-matmul.md).

    rows: of all that are multiplied by at once.
    """
    width = weight.shape[-1]
    few = rows < 40 * multiprocessors(weight.device)
    if num_x == 1:
        config = GemvConfig(2, 1024, 4) if few else GemvConfig(1, 2048, 4)
    else:
        config = GemvConfig(4, 1024, 4) if few else GemvConfig(2, 4096, 8)
    block = min(config.block, power_of_two(width))
    rows = max(config.rows, 4096 // power_of_two(width))  # or a program has too little to read
    return GemvConfig(rows, block, max(1, min(config.warps, block // 256)))


def gemv(
    weight: torch.Tensor,
    x: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "",
    config: GemvConfig | None = None,
    chosen: torch.Tensor | None = None,
) -> None:
    """x: [N, in], contiguous, N at most MAX_ROWS; weight: [out, in], contiguous; out: [N, out].

    bias: [out]. activation: "silu" or "gelu_tanh" for a weight of gates above ups, and out of half
    as many columns; see ``activation``.
    chosen: [N, k] int64, contiguous, for any N: out[n * k + j] is x[n] times weight[chosen[n, j]];
    weight then is [count, out, in], and each matrix is read once for each that chose it.
    """
    width, (num_out, rows) = x.shape[1], out.shape
    num_x = 1 if chosen is not None else len(x)
    if config is None:
        matrix_rows = rows * (2 if activation else 1)
        config = gemv_config(weight, matrix_rows * num_out // num_x, num_x)
    pdl = has_dependent_launch(x.device)
    launch(
        gemv_kernel,
        (-(-rows // config.rows), 1 if chosen is None else num_out),
        x,
        out,
        x if bias is None else bias,
        x if chosen is None else chosen,
        weight,
        num_x,
        rows,
        out.stride(0),
        WIDTH=width,
        HAS_BIAS=bias is not None,
        ACTIVATION=activation,
        RAGGED=rows % config.rows != 0,
        CHOICES=0 if chosen is None else chosen.shape[1],
        NUM_X=power_of_two(num_x),
        ROWS=config.rows,
        BLOCK=config.block,
        PDL=pdl,
        num_warps=config.warps,
        launch_pdl=pdl,
    )
