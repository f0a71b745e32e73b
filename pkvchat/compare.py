"""``pkvchat compare``: the same prompts under several policies, side by side.

Every prompt is a chat of its own, answered greedily. The policies take turns at going first, so
that a device that drifts favours none, and a first, unmeasured round warms everything up.
Attention is exact under each of them, so texts are equal but for near ties that rounding decides.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean, stdev

from .errors import ChatError, startup_errors
from .messages import ChatMessage, Close, Delta, Event, Failed, Finished, SetPolicy, Steps, Submit
from .meter import p50_p95
from .options import EngineOptions
from .progress_line import ProgressLine
from .sampling import SamplingParams
from .service import ChatService
from .sparkline import sparkline
from .startup import check_options
from .steps import StepRecord

_WARM_TOKENS = 4
_FEWEST_RUNS = 4  # that a verdict can come from
# Student's t by degrees of freedom, 99% between -t and t. Any published table has it.
_STUDENT_T = {3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355, 9: 3.250, 10: 3.169}
_STUDENT_T |= {12: 3.055, 15: 2.947, 20: 2.845, 30: 2.750, 40: 2.704, 60: 2.660, 120: 2.617}
_PLOT_CELLS = 72
_AROUND = 24  # characters shown from where two texts part


@dataclass(frozen=True)
class Answer:
    """One prompt's text under one policy; the figures are Finished's."""

    prompt: str
    text: str
    reason: str
    new_tokens: int
    ttft_s: float


@dataclass(frozen=True)
class Round:
    """What one policy made of prompts that were answered together, and its decode steps."""

    policy: str
    answers: list[Answer]
    steps: list[StepRecord]


@dataclass(frozen=True)
class Parting:
    """Where prompt ``number``'s text (from 1) leaves the one that the first policy gave.

    at: characters before that. texts: what follows, the first policy's and this one's.
    """

    policy: str
    number: int
    at: int
    texts: tuple[str, str]


def split_prompts(text: str) -> list[str]:
    """The prompts of a file: blocks between blank lines, or its lines where none is blank."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    if "" not in lines:
        return [line for line in lines if line]
    return [block.strip("\n") for block in "\n".join(lines).split("\n\n") if block.strip()]


def run(
    options: EngineOptions,
    params: SamplingParams,
    policies: Sequence[str],
    prompts: Sequence[str],
    batch: int,
    output: str,
    plot: str | None = None,
) -> int:
    """Answer ``prompts``, ``batch`` at a time, under each policy and print; returns the exit code.

    output: a name in PRINTERS. plot: a file for the picture of the steps' times. Raises ChatError.
    """
    draw = plotter(plot) if plot else None  # what is missing is said before anything is measured
    greedy = replace(params, temperature=0.0)
    with closing(ProgressLine(sys.stderr)) as progress:
        with startup_errors():
            for policy in policies[1:]:
                check_options(replace(options, policy=policy))
            service = ChatService(replace(options, policy=policies[0]), progress)
        for note in service.ready.notes:
            progress.note(note)
        rounds = list(compare(service, greedy, policies, prompts, batch, progress))
        service.close()
    PRINTERS[output](policies, rounds)
    if draw:
        draw(policies, rounds)
    return 0


# --- answering -----------------------------------------------------------------------------------


def compare(
    service: ChatService,
    params: SamplingParams,
    policies: Sequence[str],
    prompts: Sequence[str],
    batch: int,
    progress: Callable[[str, int, int], None],
) -> Iterator[Round]:
    """One round per policy for each ``batch`` of prompts. Raises ChatError."""
    groups = [prompts[start : start + batch] for start in range(0, len(prompts), batch)]
    for policy in policies:
        progress("warming up", 0, 0)
        answer(service, policy, groups[0], replace(params, max_tokens=_WARM_TOKENS))
    for number, group in enumerate(groups):
        first = number % len(policies)
        for policy in (*policies[first:], *policies[:first]):
            progress("answering", number, len(groups))
            yield answer(service, policy, group, params)


def answer(
    service: ChatService, policy: str, prompts: Sequence[str], params: SamplingParams
) -> Round:
    """All ``prompts`` at once, each in a chat of its own that is closed afterwards.

    Raises ChatError for a policy that cannot run here or a prompt that does not fit.
    """
    chats = {f"compare-{number}": prompt for number, prompt in enumerate(prompts)}
    events = service.handle(SetPolicy(policy))
    for chat, prompt in chats.items():
        events += service.handle(Submit(chat, (ChatMessage("user", prompt),), params))
    while not service.idle:
        events += service.poll()
    for chat in chats:
        service.handle(Close(chat))
    return _round(policy, chats, events)


def _round(policy: str, chats: dict[str, str], events: Iterable[Event]) -> Round:
    texts = dict.fromkeys(chats, "")
    ends: dict[str, Finished] = {}
    steps: list[StepRecord] = []
    for event in events:
        match event:
            case Delta(chat, text):
                texts[chat] += text
            case Finished(chat):
                ends[chat] = event
            case Steps(records):
                steps += records
            case Failed(chat_id, line):
                where = f"prompt {chats[chat_id][:40]!r}: " if chat_id in chats else ""
                raise ChatError(f"{where}{line}")
    answers = [
        Answer(prompt, texts[chat], ends[chat].reason, ends[chat].new_tokens, ends[chat].ttft_s)
        for chat, prompt in chats.items()
    ]
    return Round(policy, answers, steps)


# --- what came of it -----------------------------------------------------------------------------


def answers_of(policy: str, rounds: Iterable[Round]) -> list[Answer]:
    """In the prompts' order."""
    return [a for one in rounds if one.policy == policy for a in one.answers]


def steps_of(policy: str, rounds: Iterable[Round]) -> list[StepRecord]:
    return [step for one in rounds if one.policy == policy for step in one.steps]


def tokens_per_s(steps: Sequence[StepRecord]) -> float | None:
    """Of decoding: tokens over the steps' own time; None where there was no step."""
    seconds = sum(step.step_ms for step in steps) / 1e3
    return sum(step.batch for step in steps) / seconds if seconds else None


def ratios(policy: str, first: str, rounds: Sequence[Round]) -> list[float]:
    """How many times as fast as ``first`` each run of ``policy`` decoded the same prompts."""
    speeds = ([tokens_per_s(r.steps) for r in rounds if r.policy == p] for p in (policy, first))
    return [one / other for one, other in zip(*speeds, strict=True) if one and other]


def likely_ratio(found: Sequence[float]) -> tuple[float, float]:
    """Where the true ratio lies with 99% probability: the t interval of the mean logarithm.

    Of logarithms, so that neither of two policies is favoured. found: at least _FEWEST_RUNS.
    """
    degrees = len(found) - 1
    t = _STUDENT_T[max(n for n in _STUDENT_T if n <= degrees)]
    error = stdev(map(math.log, found)) / math.sqrt(len(found))
    middle = geometric_mean(found)
    return middle * math.exp(-t * error), middle * math.exp(t * error)


def partings(policies: Sequence[str], rounds: Sequence[Round]) -> list[Parting]:
    """Every text that differs from the first policy's."""
    reference = answers_of(policies[0], rounds)
    found = []
    for policy in policies[1:]:
        for number, (one, other) in enumerate(
            zip(reference, answers_of(policy, rounds), strict=True), 1
        ):
            if one.text != other.text:
                at = _equal_start(one.text, other.text)
                ends = (one.text[at : at + _AROUND], other.text[at : at + _AROUND])
                found.append(Parting(policy, number, at, ends))
    return found


def _equal_start(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


# --- what is printed -----------------------------------------------------------------------------


def print_markdown(policies: Sequence[str], rounds: Sequence[Round]) -> None:
    """A table, where texts part, and the steps' times in block characters."""
    header = ["policy", "tokens", "tokens/s", "step ms p50", "p95", "steps by strategy"]
    rows = [header, *(_cells(policy, rounds) for policy in policies)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    rule = ["-" * (width - 1) + ":" for width in widths]
    for row in (header, rule, *rows[1:]):
        print("| " + " | ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) + " |")
    print()
    _print_speed_ups(policies, rounds)
    _print_texts(policies, rounds)
    print()
    _print_plot(policies, rounds)


def _cells(policy: str, rounds: Sequence[Round]) -> list[str]:
    steps = steps_of(policy, rounds)
    p50, p95 = p50_p95(step.step_ms for step in steps)
    shares = Counter(step.strategy for step in steps).most_common()
    return [
        policy,
        f"{sum(answer.new_tokens for answer in answers_of(policy, rounds)):,}",
        *((_rate(steps), f"{p50:.2f}", f"{p95:.2f}") if steps else "---"),
        ", ".join(f"{name} {count / len(steps):.0%}" for name, count in shares),
    ]


def _rate(steps: Sequence[StepRecord]) -> str:
    rate = tokens_per_s(steps)
    return "-" if rate is None else f"{rate:.1f}"


def _print_speed_ups(policies: Sequence[str], rounds: Sequence[Round]) -> None:
    """A difference is one only beyond what runs of the same policies differ by."""
    first, *others = policies
    if not any(one.steps for one in rounds):
        print(
            "No speed: no answer had a decode step, since the first token comes from reading the "
            "prompt. Give -n 2 or more."
        )
    for policy in others:
        found = ratios(policy, first, rounds)
        if not found:
            continue
        runs = f"{len(found)} run{'s' if len(found) > 1 else ''}"
        says = f"{policy} / {first}: {geometric_mean(found):.3f} in {runs}"
        if len(found) < _FEWEST_RUNS:
            print(
                f"{says}, too few to tell: give prompts for {_FEWEST_RUNS} batches or more "
                "(-b N is a batch's prompts)."
            )
            continue
        low, high = likely_ratio(found)
        says += f" ({low:.3f} to {high:.3f} at 99%), "
        if low <= 1 <= high:
            print(f"{says}no difference beyond the runs' spread.")
        else:
            print(f"{says}so {policy} is {'faster' if low > 1 else 'slower'}.")


def _print_texts(policies: Sequence[str], rounds: Sequence[Round]) -> None:
    parted = partings(policies, rounds)
    texts = len(answers_of(policies[0], rounds)) * (len(policies) - 1)
    print(f"{texts - len(parted)} of {texts} texts are equal to {policies[0]}'s.")
    for one in parted:
        ours, theirs = one.texts
        print(f"Prompt {one.number} at character {one.at}: {ours!r}, {one.policy} {theirs!r}.")


def _print_plot(policies: Sequence[str], rounds: Sequence[Round]) -> None:
    times = {p: [step.step_ms for step in steps_of(p, rounds)] for p in policies}
    every = [ms for values in times.values() for ms in values]
    if not every:
        return
    low, (_, high) = min(every), p50_p95(every)  # an outlier would flatten all the rest
    print(f"step ms, from {low:.2f} (▁) to {high:.2f} (█, and above), first to last step")
    width = max(len(policy) for policy in policies)
    for policy, values in times.items():
        print(f"{policy:>{width}} {sparkline(values, _PLOT_CELLS, (low, high))}")


def print_json(policies: Sequence[str], rounds: Sequence[Round]) -> None:
    """One object: figures by policy, where texts part, and every answer and step.

    Speed and times are null where no answer had a decode step.
    """
    figures = {}
    for policy in policies:
        steps = steps_of(policy, rounds)
        p50, p95 = p50_p95(step.step_ms for step in steps) if steps else (None, None)
        figures[policy] = {
            "new_tokens": sum(answer.new_tokens for answer in answers_of(policy, rounds)),
            "tokens_per_s": tokens_per_s(steps),
            "ratios": ratios(policy, policies[0], rounds),
            "step_ms_p50": p50,
            "step_ms_p95": p95,
            "strategies": dict(Counter(step.strategy for step in steps)),
        }
    parted = [asdict(parting) for parting in partings(policies, rounds)]
    every = [asdict(one) for one in rounds]
    print(json.dumps({"policies": figures, "partings": parted, "rounds": every}, indent=2))


def print_jsonl(_policies: Sequence[str], rounds: Sequence[Round]) -> None:
    """A line per round."""
    for one in rounds:
        print(json.dumps(asdict(one)))


PRINTERS = {"md": print_markdown, "json": print_json, "jsonl": print_jsonl}


def plotter(path: str) -> Callable[[Sequence[str], Sequence[Round]], None]:
    """Draws each policy's step times, a colour per strategy, into ``path``.

    Raises ChatError where matplotlib is missing or cannot write such a file.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ChatError(f"--plot {path} needs matplotlib: pip install 'pkvchat[plot]'") from error
    known = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix.lower().lstrip(".") not in known:
        raise ChatError(f"--plot {path}: name a file that ends in .png, .svg or .pdf")
    if not Path(path).parent.is_dir():
        raise ChatError(f"--plot {path}: name a file in a directory that exists")

    def draw(policies: Sequence[str], rounds: Sequence[Round]) -> None:
        figure = Figure(figsize=(10, 2.5 * len(policies)), layout="constrained")
        axes = figure.subplots(len(policies), sharex=True, sharey=True, squeeze=False)[:, 0]
        strategies = sorted({step.strategy for one in rounds for step in one.steps})
        for policy, axis in zip(policies, axes, strict=True):
            steps = steps_of(policy, rounds)
            for number, strategy in enumerate(strategies):
                at = [i for i, step in enumerate(steps) if step.strategy == strategy]
                times = [steps[i].step_ms for i in at]
                axis.plot(at, times, ".", color=f"C{number}", markersize=4, label=strategy)
            axis.set(title=f"{policy}, {_rate(steps)} tokens/s", ylabel="step ms")
            axis.legend(loc="upper right")
        axes[-1].set_xlabel("step")
        try:
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise ChatError(f"--plot: cannot write {path}: {error.strerror}") from error

    return draw
