"""What reading a prompt does to the answers that decode beside it.

    python benchmarks/beside.py --random-weights llama-3-8b --quant Q4_K_M -p 6000 -d 1000 -b 1

``-b`` chats with ``-d`` tokens each decode; then another chat's prompt of ``-p`` tokens is read
beside them, ``-r`` times. The first one finds nothing measured and no graph captured. Times between
two tokens of the first chat, in milliseconds. The last line is JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from pkvchat.bench import RandomWeights, start
from pkvchat.clean import message
from pkvchat.engine.engine import Engine
from pkvchat.errors import UsageError
from pkvchat.flags import Parser, add_bench_flags
from pkvchat.progress_line import ProgressLine
from pkvchat.sampling import SamplingParams
from pkvchat.settings import Settings

UNDISTURBED = 100  # tokens
CHAT, PROMPT = "chat 0", "prompt"


@dataclass(frozen=True)
class Gaps:
    """Milliseconds between two tokens. prompt_s: that the prompt beside them took, 0 for none."""

    mean: float
    p50: float
    p95: float
    longest: float
    prompt_s: float = 0.0


def main() -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    add_bench_flags(parser)
    parser.set_defaults(prompt_tokens="6000", depths="1000", repetitions="3")
    try:
        args = parser.parse_args()
    except UsageError as error:
        sys.exit(f"{parser.prog}: {message(error)}")
    (prompt,), (depth,), (batch,) = args.prompt_tokens, args.depths, args.batches
    weights = RandomWeights(args.random_weights, args.quant) if "random_weights" in args else None
    options = Settings().with_values(vars(args)).engine
    context = depth + prompt * (args.repetitions + 1) + 20 * UNDISTURBED
    with closing(ProgressLine(sys.stderr)) as progress:
        engine = start(replace(options, context=context), weights, progress).engine
    vocab = engine.runner.model.config.vocab_size
    endless = SamplingParams(temperature=0, max_tokens=-1)
    for chat in range(batch):
        engine.submit(f"chat {chat}", [(7 * chat + 31 * i) % vocab for i in range(depth)], endless)
    while any(seq.num_answered < 2 for seq in engine.scheduler.active()):
        engine.step()
    tokens_until(engine, 6 * UNDISTURBED)  # makes the graphs, those of the policy's trials too
    alone = gaps(tokens_until(engine, UNDISTURBED))
    rows = {"undisturbed": alone}
    for run in range(1, args.repetitions + 1):
        ids = [(run + 17 * i) % vocab for i in range(prompt)]
        engine.submit(PROMPT, ids, replace(endless, max_tokens=1))
        began = time.perf_counter()
        arrivals = tokens_until(engine, None)
        rows[f"prompt {run}"] = gaps(arrivals, time.perf_counter() - began)
        engine.close(PROMPT)
        tokens_until(engine, UNDISTURBED // 4)
    for name, row in rows.items():
        speed = f", {prompt / row.prompt_s:.0f} prompt tokens/s" if row.prompt_s else ""
        print(
            f"{name}: mean {row.mean:.2f} ({row.mean / alone.mean:.2f}x), p50 {row.p50:.2f}, "
            f"p95 {row.p95:.2f}, longest {row.longest:.1f} ms{speed}"
        )
    print(json.dumps({name: asdict(row) for name, row in rows.items()}))


def tokens_until(engine: Engine, count: int | None) -> list[float]:
    """When the first chat's next ``count`` tokens came; None: those until the prompt is read."""
    arrivals: list[float] = []

    def reading() -> bool:
        return engine.scheduler.sequences[PROMPT].answer is not None

    more: Callable[[], bool] = reading if count is None else lambda: len(arrivals) <= count
    while more():
        output = engine.step()
        arrivals += [time.perf_counter() for t in output.tokens if t.chat_id == CHAT]
        for _, line in output.notices:
            print(f"note: {line}", file=sys.stderr)
    return arrivals


def gaps(arrivals: list[float], prompt_s: float = 0.0) -> Gaps:
    times = sorted((b - a) * 1e3 for a, b in pairwise(arrivals))
    return Gaps(
        statistics.mean(times),
        statistics.median(times),
        times[len(times) * 95 // 100],
        times[-1],
        prompt_s,
    )


if __name__ == "__main__":
    main()
