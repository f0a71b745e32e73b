"""Decode attention against FlashInfer and the read-only floor, side by side in one run.

Each figure is the median device time of one layer in a CUDA graph over enough layers that every
layer's KV is cold. ``python benchmarks/attention.py`` prints a Markdown table; ``--json FILE``
keeps the figures. Needs a CUDA device; FlashInfer's columns stay empty without it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import triton

from pkvchat.kernels.bandwidth_triton import read_kernel
from pkvchat.kernels.batch import AttentionShape, DecodeBatch, LayerSpec
from pkvchat.kernels.flashinfer import FlashInfer
from pkvchat.kernels.sdpa import Sdpa
from pkvchat.kernels.split_triton import SplitTriton
from pkvchat.kernels.strategy import Strategy, StrategyUnavailable
from pkvchat.kernels.workqueue_triton import WorkqueueTriton

PAGE_SIZE = 16
HEAD_DIM = 128
COLD_BYTES = 256 << 20  # several times any L2
SPEC = LayerSpec(scale=HEAD_DIM**-0.5)


@dataclass(frozen=True)
class Case:
    name: str
    lengths: tuple[int, ...]
    num_qo_heads: int = 32
    num_kv_heads: int = 8
    bar: float = 0.0  # FlashInfer's time over ours, at least

    @property
    def kv_bytes(self) -> int:
        """Bytes of one layer's K and V that the batch reads."""
        return sum(self.lengths) * self.num_kv_heads * HEAD_DIM * 2 * 2


def ragged(kind: str, rows: int, seed: int = 20260623) -> tuple[int, ...]:
    """Lengths like those in the middle of the paper's traces of the same name."""
    rng = random.Random(seed)
    if kind == "bimodal":
        return tuple(
            rng.randint(24576, 65536) if row % 4 == 0 else rng.randint(2048, 12288)
            for row in range(rows)
        )
    if kind == "uniform":
        return tuple(rng.randint(4096, 32768) for _ in range(rows))
    return tuple(
        max(1024, 2048 + int(65536 / rng.randint(1, 32) ** 0.5) + rng.randint(-512, 512))
        for _ in range(rows)
    )


CASES = (
    Case("B1 4k", (4096,), bar=1.20),
    Case("B1 8k", (8192,), bar=1.15),
    Case("B1 16k", (16384,), bar=1.10),
    Case("B1 32k", (32768,), bar=1.05),
    Case("B1 64k", (65536,), bar=1.02),
    Case("B1 128k", (131072,), bar=1.02),
    Case("B2 8k", (8192,) * 2, bar=1.05),
    Case("B2 16k", (16384,) * 2, bar=1.05),
    Case("B4 8k", (8192,) * 4, bar=1.05),
    Case("B4 16k", (16384,) * 4, bar=1.05),
    Case("B8 bimodal", ragged("bimodal", 8), bar=1.02),
    Case("B8 uniform", ragged("uniform", 8), bar=1.02),
    Case("B8 zipf", ragged("zipf", 8), bar=1.02),
    Case("B8 1k", (1024,) * 8, bar=1.18),
    Case("B16 2k", (2048,) * 16, bar=1.18),
    Case("G8 B4 bimodal", ragged("bimodal", 4), 32, 4, bar=1.0),
    Case("G1 B4 bimodal", ragged("bimodal", 4), 32, 32, bar=1.0),
    Case("G7 B4 bimodal", ragged("bimodal", 4), 28, 4, bar=1.0),
)


def num_layers(case: Case) -> int:
    return max(8, -(-COLD_BYTES // case.kv_bytes))


def new_pool(cases: Sequence[Case], dtype: torch.dtype) -> torch.Tensor:
    """Random values for the largest case's layers: zeros would hide wrong reads."""
    numel = max(num_layers(case) * (case.kv_bytes // 2 + (1 << 20)) for case in cases)
    return torch.empty(numel, dtype=dtype, device="cuda").normal_()


class Problem:
    """A case's tensors: scattered pages, and one KV cache per layer carved from ``pool``."""

    def __init__(self, case: Case, pool: torch.Tensor, between: bool) -> None:
        device = pool.device
        self.case = case
        self.between = between
        self.shape = AttentionShape(
            case.num_qo_heads, case.num_kv_heads, HEAD_DIM, PAGE_SIZE, pool.dtype, device
        )
        counts = [-(-length // PAGE_SIZE) for length in case.lengths]
        num_pages = sum(counts) + 1  # page 0 is scratch
        size = (num_pages, 2, case.num_kv_heads, PAGE_SIZE, HEAD_DIM)
        numel = torch.Size(size).numel()
        self.kv_layers = [
            pool[i * numel : (i + 1) * numel].view(size) for i in range(num_layers(case))
        ]
        order = torch.randperm(num_pages - 1, generator=torch.Generator().manual_seed(0)) + 1
        table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
        for row, pages in enumerate(order.split(counts)):
            table[row, : len(pages)] = pages
        seq_lens = torch.tensor(case.lengths, dtype=torch.int32, device=device)
        self.batch = DecodeBatch(table.to(device), seq_lens, seq_lens.long(), case.lengths)
        rows = len(case.lengths)
        self.q = torch.randn(rows, case.num_qo_heads, HEAD_DIM, device=device).to(pool.dtype)
        self.out = torch.empty_like(self.q)

    @cached_property
    def expected(self) -> torch.Tensor:
        """The first layer's output from torch, in fp32."""
        reference, out = Sdpa(self.shape), torch.empty_like(self.q, dtype=torch.float32)
        reference.plan(self.batch, 1)
        reference.run(self.q.float(), self.kv_layers[0], out, SPEC)
        return out

    def layer_us(self, strategy: Strategy, num_splits: int = 1) -> float:
        """Median device time per layer in microseconds, after a check of the first layer."""
        strategy.plan(self.batch, num_splits)
        self.out.fill_(float("nan"))
        strategy.run(self.q, self.kv_layers[0], self.out, SPEC)
        error = (self.out.float() - self.expected).abs()
        if not (error.max() < 2e-3 and error.mean() < 3e-4):
            raise AssertionError(f"{self.case.name}, {strategy.name}: max |e| {error.max():.2e}")

        q = self.q.clone()

        def layers() -> None:
            for kv_layer in self.kv_layers:
                strategy.run(q, kv_layer, self.out, SPEC)
                if self.between:
                    q.copy_(self.out)

        return graph_us(layers) / len(self.kv_layers)


def graph_us(body: Callable[[], None], replays: int = 5, samples: int = 15) -> float:
    """Median time in microseconds of one replay of ``body`` as a CUDA graph."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    graph.replay()
    times = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / replays)
    return statistics.median(times)


def floor_us(problem: Problem) -> float:
    """Time to read as many bytes as one layer's KV and do nothing with them."""
    numel = problem.case.kv_bytes // 4
    device = problem.q.device
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    sink = torch.empty(processors * 8, dtype=torch.int32, device=device)
    best = float("inf")
    for per_processor, block in ((2, 4096), (4, 4096), (8, 2048)):

        def layers(programs: int = processors * per_processor, block: int = block) -> None:
            for kv_layer in problem.kv_layers:
                source = kv_layer.view(torch.int32)
                read_kernel[(programs,)](source, sink, numel, BLOCK=block, STAGES=4, num_warps=8)

        best = min(best, graph_us(layers) / len(problem.kv_layers))
    return best


def flashinfer_us(problem: Problem) -> float:
    """FlashInfer's better path, CUDA cores or tensor cores; inf where it is absent."""
    times = [float("inf")]
    for tensor_cores in (True, False):
        try:
            times.append(problem.layer_us(FlashInfer(problem.shape, tensor_cores)))
        except StrategyUnavailable:
            continue  # not installed, or a group size that the CUDA cores' kernel lacks
    return min(times)


def split_us(problem: Problem) -> tuple[float, int]:
    """The best time over num_splits, and which."""
    strategy = SplitTriton(problem.shape)
    widest = strategy.max_splits(len(problem.batch))
    choices = [n for n in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64) if n <= widest]
    return min((problem.layer_us(strategy, n), n) for n in choices)


def measure(case: Case, pool: torch.Tensor, between: bool) -> dict[str, Any]:
    problem = Problem(case, pool, between)
    split, num_splits = split_us(problem)
    workqueue = problem.layer_us(WorkqueueTriton(problem.shape))
    return {
        "case": case.name,
        "kv_mb": case.kv_bytes / 1e6,
        "floor_us": floor_us(problem),
        "flashinfer_us": flashinfer_us(problem),
        "split_us": split,
        "num_splits": num_splits,
        "workqueue_us": workqueue,
        "bar": case.bar,
    }


COLUMNS = ("case", "KV MB", "floor us", "FlashInfer us", "split us (n)", "workqueue us")
RATIO = ("FlashInfer / best", "bar")


def cells(row: dict[str, Any]) -> list[str]:
    times = [row[f"{name}_us"] for name in ("floor", "flashinfer", "split", "workqueue")]
    floor, flashinfer, split, workqueue = (f"{us:.1f}" for us in times)
    ratio = f"{times[1] / min(times[2:]):.2f}"
    split = f"{split} ({row['num_splits']})"
    name, megabytes, bar = row["case"], f"{row['kv_mb']:.1f}", f"{row['bar']:.2f}"
    return [name, megabytes, floor, flashinfer, split, workqueue, ratio, bar]


def table_line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", help="only cases whose name contains this")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument(
        "--between", action="store_true", help="a small kernel between layers that depends on both"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device is visible; this benchmark needs one")
    cases = [c for c in CASES if not args.case or any(name in c.name for name in args.case)]
    pool = new_pool(cases, getattr(torch, args.dtype))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(table_line(COLUMNS + RATIO))
    print(table_line(["---"] * len(COLUMNS + RATIO)))
    rows = []
    for case in cases:
        rows.append(measure(case, pool, args.between))
        print(table_line(cells(rows[-1])), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
