"""``pkvchat bench``: the engine's speed, in the shape of llama.cpp's llama-bench.

ppN reads a prompt of N tokens, tgN decodes N tokens, "@ dD" does so with D tokens in the context
before. Token ids are random, decoding is greedy, and unmeasured runs come first: one, or two where
there are CUDA graphs, since a step that a run has only one of is captured in the second.
The bound of a step is the time to read the weights and the KV once, at this device's bandwidth.
Several policies take turns, run by run, so that what drifts in the machine drifts for all of them.
"""

from __future__ import annotations

import platform
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import torch

from pkvchat.kernels.attention.kv import page_bytes
from pkvchat.kernels.bandwidth import read_bandwidth
from pkvchat.kernels.policy.calibration import Calibrator
from pkvchat.kernels.policy.policy import Decision, Policy
from pkvchat.kernels.progress import Progress
from pkvchat.models.random_weights import num_parameters, random_model

from .bench_table import PRINTERS, Row
from .clean import one_line
from .engine.engine import Engine
from .engine.memory import free_memory
from .errors import ChatError, startup_errors
from .machine import device_name, versions
from .options import EngineOptions
from .progress_line import ProgressLine
from .sampling import SamplingParams
from .startup import build_engine, check_options, prepare, start_engine


@dataclass(frozen=True)
class Case:
    """One line of the table; either ``prompt`` or ``new`` is 0."""

    prompt: int
    new: int
    depth: int

    @property
    def name(self) -> str:
        what = f"pp{self.prompt}" if self.prompt else f"tg{self.new}"
        return f"{what} @ d{self.depth}" if self.depth else what

    @property
    def context(self) -> int:
        """Tokens a sequence holds at most, and one that is sampled and not kept."""
        return self.depth + 1 + max(self.prompt, self.new) + 1

    @property
    def flag(self) -> str:
        """The one that most of its tokens come from."""
        return max((self.depth, "-d"), (self.prompt, "-p"), (self.new, "-n"))[1]

    @property
    def mean_length(self) -> float:
        """Tokens of a sequence that a decode step reads, over all steps."""
        return self.depth + 1 + (self.new - 1) / 2


def cases(prompts: Iterable[int], news: Iterable[int], depths: Iterable[int]) -> list[Case]:
    """Every test at each depth; 0 prompt or new tokens is no test."""
    prompts, news = list(prompts), list(news)
    return [
        case
        for depth in depths
        for case in (*(Case(p, 0, depth) for p in prompts), *(Case(0, n, depth) for n in news))
        if case.prompt or case.new
    ]


@dataclass(frozen=True)
class RandomWeights:
    """A model that needs no file; see models.random_weights."""

    shape: str
    quant: str


@dataclass(frozen=True)
class Subject:
    """What is measured. make_policy: see startup.Built. notes: what a person should know."""

    name: str
    num_parameters: int
    engine: Engine
    make_policy: Callable[[str], Policy]
    notes: Sequence[str]


@dataclass
class Samples:
    """What a policy's runs of a case gave: tokens/s of each, and of the last one how many decode
    steps each strategy had and what share of their time the device waited for the host.
    """

    speeds: list[float]
    strategies: Counter[str]
    idle: float


def run(
    options: EngineOptions,
    cases: Sequence[Case],
    batches: Sequence[int],
    policies: Sequence[str],
    repetitions: int,
    output: str,
    weights: RandomWeights | None = None,
) -> int:
    """Measure and print; ``output`` is a name in PRINTERS. Returns the exit code.

    weights: random ones in the place of the options' model.
    """
    if cases:
        with closing(ProgressLine(sys.stderr)) as progress:
            PRINTERS[output](
                _rows(options, cases, batches, policies, repetitions, weights, progress)
            )
    return 0


def _rows(
    options: EngineOptions,
    cases: Sequence[Case],
    batches: Sequence[int],
    policies: Sequence[str],
    repetitions: int,
    weights: RandomWeights | None,
    progress: ProgressLine,
) -> Iterator[Row]:
    longest = max(cases, key=lambda case: case.context)
    context = longest.context
    options = replace(options, context=context, context_flag=longest.flag, policy=policies[0])
    with startup_errors():
        for name in policies[1:]:
            check_options(replace(options, policy=name))
        bandwidth = read_bandwidth(prepare(options))  # before the KV cache takes the memory
        subject = start(options, weights, progress)
        for note in subject.notes:
            progress.note(note)
        made = {name: subject.make_policy(name) for name in policies}
    engine = subject.engine
    check_room(engine, context, max(batches))
    for batch in batches:
        bench = Bench(engine, engine.runner.model.config.vocab_size, batch)
        for case in cases:
            samples = bench.compare(case, made, repetitions, progress)
            progress.close()
            bound = bound_ts(engine, case, batch, bandwidth)
            against = statistics.mean(samples[policies[-1]].speeds) if len(policies) > 1 else None
            for name in policies:
                row = result(case, samples[name], bound, against)
                yield row | describe(subject, name, batch)
        bench.close()


def start(options: EngineOptions, weights: RandomWeights | None, progress: Progress) -> Subject:
    """Raises what start_engine raises."""
    if weights is None:
        started = start_engine(options, progress)
        name, count, notes = started.ready.model, started.loaded.num_parameters, started.ready.notes
        return Subject(name, count, started.engine, started.make_policy, notes)
    device = prepare(options)
    model = random_model(
        weights.shape,
        weights.quant,
        device=device,
        context=options.context,
        memory=free_memory(device),
        progress=progress,
    )
    calibrator = Calibrator(device, progress)
    built = build_engine(model, model.dtype, options, calibrator)
    name, count = f"{weights.shape} {weights.quant}, random", num_parameters(weights.shape)
    return Subject(name, count, built.engine, built.make_policy, calibrator.notes)


def check_room(engine: Engine, context: int, batch: int) -> None:
    """Raises ChatError where the pool has no room for ``batch`` sequences of ``context`` tokens."""
    need = batch * engine.scheduler.pages_for(context)
    if need > engine.pool.capacity:
        raise ChatError(
            f"{batch} sequences of {context} tokens need {need} KV pages and there are "
            f"{engine.pool.capacity}: lower -b, -p, -n or -d, or give a larger --kv-memory"
        )


class Settled:
    """A policy that is told of no steps, and so tries no other strategy than it thinks fastest.

    A chat makes up for what a trial costs once, a few runs of 128 tokens do not; implements Policy.
    """

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy

    def choose(self, lengths: tuple[int, ...]) -> Decision:
        return self._policy.choose(lengths)

    def observe(self, lengths: tuple[int, ...], decision: Decision, step_us: float) -> None:
        pass


class Bench:
    """Runs cases on one engine. warm_ups: runs after which another captures and compiles nothing.

    Of the last run: ``strategies`` counts the decode steps of each, ``step_ms`` is their time and
    ``idle_ms`` what the device of it waited for the host.
    """

    def __init__(self, engine: Engine, vocab_size: int, batch: int) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._random = random.Random(0)
        self._contexts: dict[str, list[int]] = {f"bench-{i}": [] for i in range(batch)}
        self.warm_ups = 1 if engine.runner.graphs is None else 2
        self.strategies: Counter[str] = Counter()
        self.step_ms = self.idle_ms = 0.0

    def compare(
        self, case: Case, policies: Mapping[str, Policy], repetitions: int, progress: Progress
    ) -> dict[str, Samples]:
        """Measure the case under each policy in turn, ``repetitions`` times after warming up."""
        samples = {name: Samples([], Counter(), 0.0) for name in policies}
        rounds = self.warm_ups + repetitions
        for done in range(rounds):
            progress(case.name, done, rounds)
            for name, policy in policies.items():
                self._engine.set_policy(Settled(policy))
                speed = self.measure(case)
                if done >= self.warm_ups:
                    samples[name].speeds.append(speed)
                samples[name].strategies = Counter(self.strategies)
                samples[name].idle = self.idle_ms / self.step_ms if self.step_ms else 0.0
        return samples

    def close(self) -> None:
        """Give the sequences' pages back."""
        for chat_id in self._contexts:
            self._engine.close(chat_id)

    def measure(self, case: Case) -> float:
        """Tokens per second over all sequences."""
        self._fill(case.depth)
        # A prompt has been read when its first new token is there. Decoding begins with one token
        # that has no KV yet, so that every new one costs a decode step.
        prompts = {c: t + self._tokens(case.prompt or 1) for c, t in self._contexts.items()}
        self.strategies.clear()
        self.step_ms = self.idle_ms = 0.0
        start = time.perf_counter()
        cached = self._answer(prompts, case.new or 1)
        elapsed = time.perf_counter() - start
        assert cached == case.depth * len(prompts), "the KV of the context has been lost"
        return len(prompts) * (case.prompt or case.new) / elapsed

    def _fill(self, depth: int) -> None:
        """Leave each sequence with the KV of ``depth`` tokens; what it has of them is kept."""
        for chat_id, tokens in self._contexts.items():
            tokens += self._tokens(depth - len(tokens))
            del tokens[depth:]
            if not depth:
                self._engine.close(chat_id)
        if depth:
            self._answer(self._contexts, 1)

    def _answer(self, prompts: dict[str, list[int]], new: int) -> int:
        """Returns how many of the prompts' tokens had their KV already."""
        params = SamplingParams(temperature=0, max_tokens=new)
        cached = sum(self._engine.submit(c, tokens, params) for c, tokens in prompts.items())
        while not self._engine.idle:
            output = self._engine.step()
            for _, line in output.notices:
                print(f"note: {one_line(line)}", file=sys.stderr)
            record = output.record
            if record is not None:
                self.strategies[record.strategy] += 1
                self.step_ms += record.step_ms
                self.idle_ms += record.idle_ms
        return cached

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocab_size) for _ in range(count)]


# --- what a row says -----------------------------------------------------------------------------


def bound_ts(engine: Engine, case: Case, batch: int, bandwidth: float | None) -> float | None:
    """Tokens per second of steps that read each weight and the KV once and do nothing else.

    bandwidth: see read_bandwidth. A prompt takes as few steps as its chunks allow; what it comes
    near is the device's arithmetic, not this. None without a bandwidth, and for mixtures of
    experts, whose steps read what the router chooses.
    """
    model, shape, chunk = engine.runner.model, engine.runner.shape, engine.pace.max_chunk
    if bandwidth is None or model.config.experts:
        return None
    if case.new:
        steps, tokens, lengths = 1, batch, [case.mean_length]
    else:
        tokens = batch * case.prompt
        steps = -(-tokens // chunk)
        ends = (*range(chunk, case.prompt, chunk), case.prompt)
        lengths = [case.depth + end for end in ends]
    seen = sum(min(spec.window or n, n) for spec in model.layer_specs for n in lengths)
    kv_bytes = batch * seen * page_bytes(1, shape) / shape.page_size
    return tokens * bandwidth / (steps * model.step_nbytes() + kv_bytes)


def result(case: Case, samples: Samples, bound: float | None, against: float | None) -> Row:
    """One row's figures. against: the speed of the last policy, None where there is one only."""
    speeds = samples.speeds
    mean = statistics.mean(speeds)
    return {
        "test": case.name,
        "n_prompt": case.prompt,
        "n_gen": case.new,
        "n_depth": case.depth,
        "avg_ts": mean,
        "stddev_ts": statistics.stdev(speeds) if len(speeds) > 1 else 0.0,
        "samples_ts": list(speeds),
        "bound_ts": bound,
        "bound_share": mean / bound if bound else None,
        "ratio": mean / against if against else None,
        "strategies": dict(samples.strategies),
        "idle_share": samples.idle if case.new else None,
    }


def describe(subject: Subject, policy: str, batch: int) -> Row:
    """What every row says about where and with what it was measured."""
    model, shape = subject.engine.runner.model, subject.engine.runner.shape
    return {
        "model": subject.name,
        "model_size": model.nbytes(),
        "model_n_params": subject.num_parameters,
        "backend": shape.device.type.upper(),
        "device": device_name(shape.device),
        "threads": torch.get_num_threads(),
        "policy": policy,
        "batch": batch,
        "dtype": str(model.dtype).removeprefix("torch."),
        "kv_dtype": str(shape.kv_dtype).removeprefix("torch."),
        "page_size": shape.page_size,
        "versions": {"python": platform.python_version()} | versions(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
