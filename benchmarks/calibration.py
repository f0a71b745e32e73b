"""How well the policy's cost model fits this GPU: each calibration case, measured and predicted.

``python benchmarks/calibration.py`` measures as ``pkvchat calibrate`` does and prints a Markdown
table for each shape: microseconds of a layer, measured ~ predicted, for each num_splits; and what
the policy picks, beside the case that was really fastest with its planning. Then how long the
policy itself takes on the host. It keeps no record, but ``--save kernels/policy/shipped`` writes
those to ship.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import product
from pathlib import Path

import torch

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.registry import STRATEGIES, why_unavailable
from pkvchat.kernels.policy.calibration import Calibration, count_workers
from pkvchat.kernels.policy.measure_costs import Case, costs_of, sample_costs
from pkvchat.kernels.policy.policy import create_policy
from pkvchat.kernels.policy.records import VERSION, shape_key, shipped_name
from pkvchat.startup import QUANTISED, TORCH_DTYPES

NUM_LAYERS = 32  # over which one step's planning is spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", default="32/8", help="query heads/KV heads, ... [%(default)s]")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="bf16")
    parser.add_argument("--kv-dtype", default="", help="of the KV cache, ...: f16, bf16, fp8, q8_0")
    parser.add_argument("--budget", type=float, default=36.0, help="seconds a shape [%(default)s]")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the records to ship there")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device is visible; this benchmark needs one")
    dtype, device = TORCH_DTYPES[args.dtype], torch.device("cuda", 0)
    for heads, kv_dtype in product(args.heads.split(","), args.kv_dtype.split(",")):
        qo_heads, kv_heads = map(int, heads.split("/"))
        kv = {**TORCH_DTYPES, **QUANTISED, "": dtype}[kv_dtype]
        shape = AttentionShape(qo_heads, kv_heads, args.head_dim, args.page_size, dtype, device, kv)
        print(f"\n## {shape_key(shape)['shape']}\n")
        calibration = report(shape, args.budget)
        if args.save:
            save(args.save, shape, calibration)
    time_decisions(shape, calibration)


def report(shape: AttentionShape, budget_s: float) -> Calibration:
    names = [name for name in STRATEGIES if not why_unavailable(name, shape)]
    start = time.perf_counter()
    measured = sample_costs(shape, names, lambda *_: None, budget_s)
    print(f"measured in {time.perf_counter() - start:.1f} s")
    costs = costs_of(shape, measured)

    def predicted(name: str, case: Case) -> float:
        cost, work = costs[name], case.work
        return cost.predict(work, NUM_LAYERS) - cost.eager - work.plans * cost.plan / NUM_LAYERS

    for name, found in measured.items():
        errors = [abs(predicted(name, case) / case.run_us - 1) for case in found.cases]
        print(
            f"{name}: error {costs[name].error:.1%} where strategies are close, "
            f"{statistics.median(errors):.1%} in the median, {max(errors):.1%} at most; "
            f"planning {costs[name].plan:.0f} µs; outside a graph {costs[name].eager:.0f} µs more"
        )
    calibration = Calibration(count_workers(shape), costs)
    policy = create_policy("adaptive", shape, calibration, names, NUM_LAYERS)
    print(f"\n| batch | {' | '.join(names)} | picked | fastest |")
    print("|---" * (len(names) + 3) + "|")
    for lengths in dict.fromkeys(case.batch.lengths for case in measured[names[0]].cases):
        cells, times = [], {}
        for name, found in measured.items():
            cases = [case for case in found.cases if case.batch.lengths == lengths]
            cells.append(" / ".join(f"{c.run_us:.1f} ~ {predicted(name, c):.1f}" for c in cases))
            over = costs[name].predict(cases[0].work, NUM_LAYERS) - predicted(name, cases[0])
            times |= {(name, case.num_splits): case.run_us + over for case in cases}
        decision = policy.choose(lengths)
        fastest = min(times, key=lambda choice: times[choice])
        picked = choice(decision.strategy, decision.num_splits)
        print(f"| {label(lengths)} | {' | '.join(cells)} | {picked} | {choice(*fastest)} |")
    return calibration


def time_decisions(shape: AttentionShape, calibration: Calibration) -> None:
    """Host time of ``choose``, over a chat's steps: rows of different lengths that grow."""
    print("\n| rows | choose, median µs | 99% of steps within |\n|---|---|---|")
    for rows in (1, 2, 4, 8, 16, 32, 64):
        policy = create_policy("adaptive", shape, calibration, list(calibration.costs), NUM_LAYERS)
        times = []
        for step in range(5000):
            lengths = tuple(500 + 137 * row + step for row in range(rows))
            start = time.perf_counter()
            policy.choose(lengths)
            times.append((time.perf_counter() - start) * 1e6)
        print(f"| {rows} | {statistics.median(times):.1f} | {sorted(times)[4950]:.1f} |")


def save(directory: Path, shape: AttentionShape, calibration: Calibration) -> None:
    key = shape_key(shape)
    record = {"version": VERSION, "key": key, "data": calibration.to_json()}
    path = directory / shipped_name(key)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\n{path} written")


def choice(strategy: str, num_splits: int) -> str:
    return f"{strategy} {num_splits}" if num_splits > 1 else strategy


def label(lengths: tuple[int, ...]) -> str:
    even = len(set(lengths)) == 1
    return f"B{len(lengths)} {lengths[0]}" if even else f"B{len(lengths)} {sum(lengths)} ragged"


if __name__ == "__main__":
    main()
