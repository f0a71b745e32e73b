"""What ``/bench`` runs: a short bench on the engine that chats use, between their steps."""

from __future__ import annotations

import statistics

from pkvchat.kernels.bandwidth import read_bandwidth

from .bench import Bench, Case, bound_ts
from .engine.engine import Engine, RequestRefused

_PROMPT, _NEW = 128, 32
_REPETITIONS = 2


class ShortBench:
    """One measured run per ``step``, so that answers and commands have their turn between.

    Takes free pages only: the KV that chats have stays. Raises RequestRefused where there are too
    few of them, or an answer runs.
    """

    def __init__(self, engine: Engine) -> None:
        if not engine.idle:
            raise RequestRefused("an answer runs: stop it before /bench")
        self._engine = engine
        longest = engine.context - 2
        self._cases = [Case(min(_PROMPT, longest), 0, 0), Case(0, min(_NEW, longest), 0)]
        self._samples: list[list[float]] = [[] for _ in self._cases]
        self._bench = Bench(engine, engine.runner.model.config.vocab_size, batch=1)
        self._runs = self._bench.warm_ups + _REPETITIONS  # of a case
        self._check_room()

    def _check_room(self) -> None:
        need = max(self._engine.scheduler.pages_for(case.context) for case in self._cases)
        free = self._engine.pool.num_free
        if need > free:
            raise RequestRefused(
                f"/bench needs {need} free KV pages and there are {free}: close a chat, or start "
                "with a larger --kv-memory"
            )

    def step(self) -> str:
        """Run once; returns the table with the last run, "" before. Raises RequestRefused."""
        self._check_room()
        case, samples = next(
            (case, samples)
            for case, samples in zip(self._cases, self._samples, strict=True)
            if len(samples) < self._runs
        )
        samples.append(self._bench.measure(case))
        if len(self._samples[-1]) < self._runs:
            return ""
        self._bench.close()
        return self._table()

    def _table(self) -> str:
        bandwidth = read_bandwidth(self._engine.device)
        lines = [f"{'test':<8}{'tokens/s':>18}{'bound':>10}{'of it':>8}"]
        for case, samples in zip(self._cases, self._samples, strict=True):
            measured = samples[self._bench.warm_ups :]
            mean = statistics.mean(measured)
            speed = f"{mean:.1f} ± {statistics.stdev(measured):.1f}"
            bound = bound_ts(self._engine, case, 1, bandwidth)
            of_it = f"{bound:>10.1f}{mean / bound:>8.1%}" if bound else ""
            lines.append(f"{case.name:<8}{speed:>18}{of_it}")
        return "\n".join(lines)
