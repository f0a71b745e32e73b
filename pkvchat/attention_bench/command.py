"""Runs the benchmark: from flags to results, and from results to what is printed or drawn."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.kv import page_bytes
from pkvchat.kernels.policy.calibration import Calibrator
from pkvchat.kernels.progress import Progress

from ..clean import visible
from ..engine.memory import free_memory, human
from ..errors import ChatError, UsageError, startup_errors
from ..machine import device_and_threads, versions
from ..progress_line import ProgressLine
from ..startup import pick_device
from .cases import Case, grid, named_cases
from .engines import Roster
from .floor import Floor
from .layers import CaseProblem, case_pages, measure_case, pool_pages
from .options import BenchOptions, check_outputs
from .problem import KvPool, kv_bytes
from .report import markdown
from .results import Results, merge, read_results
from .server import Server, Workload, workload
from .serving import count_calls, serve
from .trace_file import read_trace
from .traces import PAPER_SETTINGS, Request, Setting, make_requests, setting

_GRID_BYTES = {"cuda": 4 << 30, "cpu": 128 << 20}  # of one layer's KV, at most

Heads = tuple[int, int]


def run(given: Mapping[str, Any]) -> int:
    """given: flags by their names in BenchOptions, and ``output``, ``output_file``, ``plot``,
    ``sources``. Returns the exit code."""
    output_file, plot = given.get("output_file"), given.get("plot")
    check_outputs(output_file, plot)
    if "sources" in given:
        if given.keys() & {each.name for each in fields(BenchOptions)}:
            raise UsageError("--from measures nothing: it goes with -o, --output and --plot alone")
        results = merge([read_results(path) for path in given["sources"]])
    else:
        with closing(ProgressLine(sys.stderr)) as progress, startup_errors():
            results = measure(given, progress)
    text = results.to_json() if given["output"] == "json" else markdown(results)
    if output_file is None:
        print(visible(text), end="")  # a trace's name is a file's
    else:
        _write(output_file, text)
    if plot is not None:
        from .plot import draw

        draw(results, plot)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ChatError(f"cannot write {path}: {error.strerror}") from error


def measure(given: Mapping[str, Any], progress: Progress) -> Results:
    """What there is when it is interrupted, with a note of it."""
    device = pick_device(given.get("device", "auto"))
    options = BenchOptions.of(device.type, given)
    workloads, cases = _workloads(options, device), _cases(options, device)
    if not workloads and not cases:
        most = human(_GRID_BYTES[device.type])
        raise UsageError(
            f"no batch of the grid has at most {most} of KV in a layer: lower --batch or --length"
        )
    bench = AttentionBench(options, device, progress)
    try:
        for heads in dict.fromkeys([*([options.heads] if workloads else []), *cases]):
            mine = workloads if heads == options.heads else []
            bench.measure(heads, mine, cases.get(heads, []))
    except KeyboardInterrupt:
        if not (bench.results.cases or bench.results.traces):
            raise
        bench.results.notes.append("interrupted before all was measured")
    return bench.results


def _about(options: BenchOptions, device: torch.device) -> dict[str, Any]:
    qo_heads, kv_heads = options.heads
    kv_dtype = f" over {options.kv_dtype} KV" if options.kv_dtype else ""
    shape = (
        f"{options.dtype}{kv_dtype}, {qo_heads} query heads over {kv_heads} KV heads unless the "
        f"case says otherwise, head_dim {options.head_dim}, page_size {options.page_size}"
    )
    return {
        "device": device_and_threads(device),
        "versions": versions(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["pkvchat", *sys.argv[1:]]),
        "shape": shape,
        "options": {name: str(value) for name, value in asdict(options).items()},
    }


# --- what is decoded -----------------------------------------------------------------------------


def _workloads(options: BenchOptions, device: torch.device) -> list[Workload]:
    """The traces that are asked for, or all of them where nothing is.

    Raises ChatError for one whose KV there is no memory for.
    """
    two_layers = 2 * page_bytes(1, _shape(options, options.heads, device))  # the fewest of a pool
    max_pages = free_memory(device) // two_layers
    if options.trace_file is not None:
        each = setting(options.trace_file.stem, options.max_active or 8)
        return [_workload(options, each, read_trace(options.trace_file), None, max_pages)]
    return [
        _workload(options, each, make_requests(each, seed, options.page_size), seed, max_pages)
        for seed in options.seeds
        for each in _settings(options)
    ]


def _workload(
    options: BenchOptions,
    each: Setting,
    requests: Sequence[Request],
    seed: int | None,
    max_pages: int,
) -> Workload:
    return workload(
        each.name,
        requests,
        each.max_active,
        seed,
        options.steps or each.steps,
        options.page_size,
        options.hole_fraction,
        max_pages,
    )


def _settings(options: BenchOptions) -> Iterator[Setting]:
    everything = not (options.traces or options.cases or options.grid)
    names = [s.name for s in PAPER_SETTINGS] if everything else options.traces
    if options.max_active is not None:
        yield from (setting(name, options.max_active) for name in dict.fromkeys(names))
        return
    yield from (each for each in PAPER_SETTINGS if each.name in names)


def _cases(options: BenchOptions, device: torch.device) -> dict[Heads, list[Case]]:
    """Batches by their heads: those asked for; named ones, or a CPU's small grid, by default."""
    everything = not (options.traces or options.trace_file or options.cases or options.grid)
    names = options.cases or (("all",) if everything and device.type == "cuda" else ())
    cases = [
        case for case in named_cases() if "all" in names or any(name in case.name for name in names)
    ]
    if options.cases and not cases:
        known = ", ".join(case.name for case in named_cases())
        raise UsageError(f"--cases {','.join(options.cases)}: no such batch; there are {known}")
    if options.grid or (everything and device.type == "cpu"):
        cases += _grid(options, device)
    by_heads: dict[Heads, list[Case]] = {}
    for case in cases:
        by_heads.setdefault((case.num_qo_heads, case.num_kv_heads), []).append(case)
    return by_heads


def _grid(options: BenchOptions, device: torch.device) -> Iterator[Case]:
    qo_heads = options.heads[0]
    for group in options.groups:
        if group > qo_heads:
            raise UsageError(f"--group {group}: {qo_heads} query heads make no such groups")
    one_head = _shape(options, (1, 1), device)
    max_tokens = _GRID_BYTES[device.type] // kv_bytes([1], one_head)
    yield from grid(options.batches, options.lengths, options.groups, qo_heads, max_tokens)


def _shape(options: BenchOptions, heads: Heads, device: torch.device) -> AttentionShape:
    dtype = getattr(torch, options.dtype)
    kv_dtype = getattr(torch, options.kv_dtype) if options.kv_dtype else dtype
    return AttentionShape(*heads, options.head_dim, options.page_size, dtype, device, kv_dtype)


# --- measuring -----------------------------------------------------------------------------------


class AttentionBench:
    """Measures what has the same heads together: engines and KV pages are made once for them.

    ``results`` grows as it goes, so that an interrupted run still has some.
    """

    def __init__(self, options: BenchOptions, device: torch.device, progress: Progress) -> None:
        self.options, self.device, self.progress = options, device, progress
        self.results = Results(_about(options, device), options.layers)
        self.calibrator = Calibrator(device, progress)

    def measure(self, heads: Heads, workloads: Sequence[Workload], cases: Sequence[Case]) -> None:
        """Raises ChatError where an engine is wrong, or there is no memory."""
        shape = _shape(self.options, heads, self.device)
        roster = Roster(self.options.engines, shape, self.calibrator)
        one_page = page_bytes(1, shape)
        pages = [pool_pages(case, one_page, shape.page_size, self.device) for case in cases]
        pages += [
            each.num_pages * each.pool_layers(one_page, shape.page_size, self.device)
            for each in workloads
        ]
        pool = KvPool(shape, max(pages))
        floor = Floor(pool)
        self._cases(cases, pool, roster, floor)
        self._traces(workloads, pool, roster, floor)
        missing = [f"{name}: {why}" for name, why in roster.missing.items()]
        for note in (*missing, *self.calibrator.notes):
            if note not in self.results.notes:
                self.results.notes.append(note)

    def _cases(self, cases: Sequence[Case], pool: KvPool, roster: Roster, floor: Floor) -> None:
        engines = roster.engines(self.options.layers)
        width = max((max(case_pages(c, pool.shape.page_size)) for c in cases), default=0)
        for number, case in enumerate(cases):
            problem = CaseProblem(case, pool, width, self.options.between)
            progress = self._part_of(case.name, number, len(cases))
            self.results.cases.append(measure_case(problem, engines, floor, progress))

    def _part_of(self, stage: str, number: int, count: int) -> Callable[[int, int], None]:
        """Progress of one among ``count`` that are as long."""
        return lambda done, total: self.progress(stage, number * total + done, count * total)

    def _traces(
        self, workloads: Sequence[Workload], pool: KvPool, roster: Roster, floor: Floor
    ) -> None:
        """Counters come last, since what looks at kernels slows down those after it."""
        options = self.options
        calls, model = roster.engines(1), roster.engines(options.layers)
        for each in workloads:
            server = Server(each, pool, options.layers)
            found = serve(server, calls, model, floor, options.repeats, self.progress)
            self.results.traces.append(found)
        firsts = {f"{each.name} B{each.max_active}": each for each in reversed(workloads)}
        for label, each in firsts.items():
            server = Server(each, pool, options.layers)
            self.results.counters[label] = count_calls(server, calls)
