"""Products of few rows on a GPU: checked, then timed against the bytes they read and cuBLAS's bf16.

    python benchmarks/quantised_matmul.py [--sweep] [--json FILE]

Times are device times per product, in a CUDA graph over so many matrices that each one is cold in
L2; medians. --sweep also times every tile configuration. Then come the products of experts, and
last a whole layer, all but its attention.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from triton.runtime.errors import OutOfResources

from pkvchat.kernels.norm import add_rms_norm
from pkvchat.kernels.products.gemv_triton import MAX_ROWS
from pkvchat.kernels.products.gemv_triton import gemv as dense_gemv
from pkvchat.kernels.products.linear import Linear, LinearTypes
from pkvchat.kernels.products.quant_formats import TYPES, Planes, dequantise, pack
from pkvchat.kernels.products.quant_gemm_triton import GemmConfig, gemm, gemm_config
from pkvchat.kernels.products.quant_gemv_triton import GemvConfig, gemv
from pkvchat.kernels.products.quant_linear import QuantLinear, multiply_written_out
from pkvchat.kernels.products.quant_skinny_triton import SkinnyConfig, skinny

CEILING = 4535e9  # bytes/s: a plain read-only kernel over 4 GB on an H200
COLD_BYTES = 300 << 20
DEVICE = torch.device("cuda")

Run = Callable[[Planes, torch.Tensor, torch.Tensor], None]

SHAPES = [  # Llama-3-8B's, as Q4_K_M mixes the types
    ("Q4_K", 4096, 4096),
    ("Q4_K", 6144, 4096),
    ("Q4_K", 28672, 4096),
    ("Q4_K", 4096, 14336),
    ("Q6_K", 4096, 14336),
    ("Q6_K", 1024, 4096),
    ("Q6_K", 128256, 4096),
]
OTHERS = [(name, 6144, 4096) for name in ("Q5_K", "Q8_0", "Q4_0", "Q4_1")]


@dataclass(frozen=True)
class Case:
    type: str
    rows: int
    width: int
    num_rows: int  # of x
    label: str
    run: Run


def random_planes(name: str, rows: int, width: int) -> Planes:
    """Random bits; the fp16 scales are made small and finite."""
    kind = TYPES[name]
    size = (rows, width // kind.block, kind.block_bytes)
    raw = torch.randint(0, 256, size, dtype=torch.uint8, device=DEVICE)
    for start in {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(name, (0,)):
        scale = torch.randn(*size[:2], 1, device=DEVICE).mul_(1e-3).half()
        raw[..., start : start + 2] = scale.view(torch.uint8)
    return pack(name, raw.flatten(1))


def few_rows(config: GemvConfig | None, planes: Planes, x: torch.Tensor, out: torch.Tensor) -> None:
    gemv(planes, x, out, None, config)


def skinny_rows(
    config: SkinnyConfig | None, planes: Planes, x: torch.Tensor, out: torch.Tensor
) -> None:
    skinny(planes, x, out, config=config)


def several_rows(
    config: GemmConfig | None, planes: Planes, x: torch.Tensor, out: torch.Tensor
) -> None:
    gemm(planes, x, out, None, config or gemm_config(planes, len(x)))


def written_out(planes: Planes, x: torch.Tensor, out: torch.Tensor) -> None:
    multiply_written_out(planes, x, out, None)


def default_cases() -> Iterator[Case]:
    for shape in SHAPES + OTHERS:
        for num_rows in (1, 2):
            yield Case(*shape, num_rows, "gemv", partial(few_rows, None))
        for num_rows in (2, 4, 8):
            yield Case(*shape, num_rows, "skinny", partial(skinny_rows, None))
        for num_rows in (8, 16, 32, 64):
            yield Case(*shape, num_rows, "gemm", partial(several_rows, None))
        for num_rows in (32, 64, 512):
            yield Case(*shape, num_rows, "written out", written_out)


def sweep_cases() -> Iterator[Case]:
    for shape in SHAPES:
        for rows, warps in ((2, 4), (4, 4), (8, 4), (4, 2), (8, 2), (16, 2), (8, 1), (16, 1)):
            for num_rows in (1, 2, 4):
                if rows * num_rows <= 32:
                    label = f"gemv {rows}/{warps}"
                    yield Case(*shape, num_rows, label, partial(few_rows, GemvConfig(rows, warps)))
        for rows, warps in ((16, 4), (16, 8), (16, 16), (32, 2), (32, 4), (32, 8), (64, 2)):
            for num_rows in (2, 8):
                skinny_config = SkinnyConfig(rows, warps)
                label = f"skinny {rows}/{warps}"
                yield Case(*shape, num_rows, label, partial(skinny_rows, skinny_config))
        for rows, warps, stages in ((32, 2, 3), (64, 4, 3), (128, 4, 3), (128, 8, 3)):
            for parts in (1, 2, 4, 8, 16):
                tiles = parts * shape[1] // rows
                if (tiles < 128 and parts < 16) or (tiles > 3200 and parts > 1):
                    continue
                for num_rows, x_rows in ((32, 32), (64, 64)):
                    config = GemmConfig(rows, x_rows, parts, warps, stages)
                    label = f"gemm {rows}/{x_rows}/{warps}/{stages} x{parts}"
                    yield Case(*shape, num_rows, label, partial(several_rows, config))


def graph_us(calls: list[Callable[[], object]], repeats: int = 7) -> float:
    """Median device time of one call, replaying all of them in one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        times = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return sorted(times[1:])[len(times[1:]) // 2]


def measure(cases: list[Case]) -> list[dict[str, object]]:
    """One record a case, and one for cuBLAS per shape and number of rows."""
    found: list[dict[str, object]] = []
    for shape in dict.fromkeys((case.type, case.rows, case.width) for case in cases):
        ours = [case for case in cases if (case.type, case.rows, case.width) == shape]
        first = random_planes(*shape)
        copies = math.ceil(COLD_BYTES / first.nbytes()) if first.nbytes() < COLD_BYTES else 2
        matrices = [first] + [random_planes(*shape) for _ in range(copies - 1)]
        weight = dequantise(first)
        dense = [torch.randn_like(weight, dtype=torch.bfloat16) for _ in range(max(2, copies // 3))]
        for num_rows in sorted({case.num_rows for case in ours}):
            x = torch.randn(num_rows, shape[2], device=DEVICE).bfloat16()
            out = torch.empty(num_rows, shape[1], dtype=torch.bfloat16, device=DEVICE)
            expected = F.linear(x.float(), weight)
            head = {"type": shape[0], "out": shape[1], "in": shape[2], "x_rows": num_rows}
            us = graph_us([partial(F.linear, x, matrix) for matrix in dense])
            bound = dense[0].nbytes / CEILING * 1e6
            found.append({**head, "label": "cuBLAS bf16", "us": us, "error": 0.0, "bound": bound})
            if num_rows <= MAX_ROWS:
                us = graph_us([partial(dense_gemv, matrix, x, out) for matrix in dense])
                error = float((out.float() - x.float() @ dense[-1].float().T).norm() / out.norm())
                head["label"] = "gemv bf16"
                found.append({**head, "us": us, "error": error, "bound": bound})
            for case in ours:
                if case.num_rows != num_rows:
                    continue
                out.fill_(float("nan"))
                try:
                    case.run(first, x, out)
                except OutOfResources:
                    continue
                error = float((out.float() - expected).norm() / expected.norm())
                us = graph_us([partial(case.run, planes, x, out) for planes in matrices])
                bound = first.nbytes() / CEILING * 1e6
                found.append(
                    {**head, "label": case.label, "us": us, "error": error, "bound": bound}
                )
    return found


EXPERTS = [  # count, chosen, out, in: of Qwen3-30B-A3B, and of Mixtral-8x7B
    (128, 8, 768, 2048),
    (128, 8, 2048, 768),
    (8, 2, 14336, 4096),
    (8, 2, 4096, 14336),
]


def chosen_rows(
    product: Callable[..., None],
    weight: Any,
    x: torch.Tensor,
    chosen: torch.Tensor,
    out: torch.Tensor,
) -> None:
    product(weight, x, out, chosen=chosen)


def measure_experts() -> Iterator[dict[str, object]]:
    """Products with the experts that each row chose; the bound is of each chosen matrix once."""
    for count, chosen, out_features, width in EXPERTS:
        planes = random_planes("Q4_K", count * out_features, width)
        meaning = dequantise(planes).view(count, out_features, width)
        weight = meaning.bfloat16()
        for num_rows in (1, 8):
            choices = [
                torch.rand(num_rows, count, device=DEVICE).topk(chosen).indices
                for _ in range(2 * count // chosen)
            ]
            x = torch.randn(num_rows, width, device=DEVICE).bfloat16()
            out = x.new_empty(num_rows * chosen, out_features)
            share = sum(len(choice.unique()) for choice in choices) / len(choices) / count
            runs = (
                ("Q4_K", planes.nbytes(), meaning, partial(chosen_rows, gemv, planes)),
                ("bf16", weight.nbytes, weight, partial(chosen_rows, dense_gemv, weight)),
            )
            for name, nbytes, exact, run in runs:
                us = graph_us([partial(run, x, choice, out) for choice in choices])
                picked = exact[choices[-1]].float().flatten(0, 1)
                expected = (picked @ x.float().repeat_interleave(chosen, 0)[..., None])[..., 0]
                yield {
                    "type": name,
                    "out": f"{chosen} of {count}, {out_features}",
                    "in": width,
                    "x_rows": num_rows,
                    "label": "routed",
                    "us": us,
                    "error": float((out.float() - expected).norm() / expected.norm()),
                    "bound": nbytes * share / CEILING * 1e6,
                }


LAYER = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
LAYERS = 12  # more than L2 holds


def layer_us(gemv_rows: int, quantised: str = "", num_rows: int = 1) -> float:
    """A layer's norms and products. gemv_rows: see Linear. quantised: their type."""

    def product(out: int, width: int) -> Linear | QuantLinear:
        if quantised:
            return QuantLinear.of_planes(random_planes(quantised, out, width))
        weight = torch.randn(out, width, device=DEVICE) * width**-0.5
        linear = Linear(weight, types=LinearTypes.uniform(torch.bfloat16))
        linear.gemv_rows = gemv_rows
        return linear

    layers = [[product(*size) for size in LAYER] for _ in range(LAYERS)]
    norm = torch.ones(4096, dtype=torch.bfloat16, device=DEVICE)
    first = torch.ones(num_rows, 4096, dtype=torch.bfloat16, device=DEVICE)

    def body() -> None:
        update = residual = first
        for qkv, output, gate_up, down in layers:
            x, residual = add_rms_norm(update, residual, norm, 1e-5)
            update = output(qkv(x)[:, :4096])
            x, residual = add_rms_norm(update, residual, norm, 1e-5)
            update = down(gate_up.gated(x, "silu"))

    return graph_us([body]) / LAYERS


def _compile(cases: list[Case]) -> None:
    """Runs each case once, so that its kernels are in Triton's cache."""
    for case in cases:
        planes = random_planes(case.type, case.rows, case.width)
        x = torch.randn(case.num_rows, case.width, device=DEVICE).bfloat16()
        with suppress(OutOfResources):
            case.run(planes, x, x.new_empty(case.num_rows, case.rows))
    torch.cuda.synchronize()


def compile_all(cases: list[Case], processes: int) -> None:
    shares = [cases[i::processes] for i in range(processes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_compile, shares)


def report(found: list[dict[str, object]]) -> None:
    print("| type | out x in | rows | kernel | us | share of bound | error |")
    print("|---|---|---|---|---|---|---|")
    for row in found:
        share = f"{row['bound'] / row['us']:.0%}" if row["bound"] else "-"
        print(
            f"| {row['type']} | {row['out']}x{row['in']} | {row['x_rows']} | {row['label']}"
            f" | {row['us']:.1f} | {share} | {row['error']:.0e} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--processes", type=int, default=1, help="that compile beforehand")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    cases = list(default_cases()) + (list(sweep_cases()) if args.sweep else [])
    if args.processes > 1:
        compile_all(cases, args.processes)
    found = measure(cases) + list(measure_experts())
    if args.json:
        Path(args.json).write_text(json.dumps(found))
    report(found)
    bound = sum(out * width for out, width in LAYER) * 2 / CEILING * 1e6
    bound_q4 = bound * TYPES["Q4_K"].block_bytes / TYPES["Q4_K"].block / 2
    dense = (("cuBLAS", layer_us(0)), ("gemv", layer_us(1)))
    print("\nA layer without attention, us: one row, bf16", end=" ")
    print(", ".join(f"{name} {us:.1f}" for name, us in dense), f"(bound {bound:.1f});", end=" ")
    quantised = [f"{rows} rows {layer_us(0, 'Q4_K', rows):.1f}" for rows in (1, 2, 4, 8, 16)]
    print(f"Q4_K {', '.join(quantised)} (bound {bound_q4:.1f})")


if __name__ == "__main__":
    main()
