"""Times products and attention in each dtype, for a calibration record's choice of dtypes.

Times are of one thread's own work, the best of several, so that other programs that want the same
cores do not turn the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import cycle
from typing import TypeVar

import torch

from ..attention.attend import attend
from ..attention.batch import AttentionShape, LayerSpec
from ..attention.gather import Gather, Scratch
from ..attention.kv import allocate_kv
from ..attention.tasks import Task
from ..products.linear import Linear, LinearTypes
from ..products.packed import PackedLinear, dense_types
from ..progress import Progress
from .calibration import DeviceTypes

K = TypeVar("K", bound=Hashable)
_Linears = Sequence[Linear | PackedLinear]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # from the most exact to the least
_GAIN = 0.9  # what is less exact must take less than this share of the time
_HALF = 1.3  # float16, half the bytes of float32, may take this share of one thread's time
_FEW_ROWS = (2, 4, 8, 16, 24, 32, 48, 64)
_MANY_ROWS = 128
_OUT, _IN = 1024, 768  # of the matrices timed
_COLD_BYTES = 32 << 20  # beyond a core's caches: a decode step finds its weights in memory
_CONTEXT = 2048  # tokens of the attention timed


def measure_types(progress: Progress) -> DeviceTypes:
    """Which dtypes this CPU is fast in; one without fast 16-bit arithmetic ends with float32."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(progress)
    finally:
        torch.set_num_threads(threads)


def _measure(progress: Progress) -> DeviceTypes:
    stage, steps = "measuring this processor", 4
    progress(stage, 0, steps)
    uniform = {dtype: _cold_linears(LinearTypes.uniform(dtype)) for dtype in _DTYPES}
    one = _best({dtype: _products(uniform[dtype], 1) for dtype in _DTYPES}, 0.3)
    jobs = {dtype: _products(uniform[dtype], _MANY_ROWS) for dtype in _DTYPES}
    few_rows, many_rows = _pick(one), _pick(_best(jobs, 0.3))
    progress(stage, 1, steps)
    types = LinearTypes(few_rows, few_rows, many_rows, few_limit=max(_FEW_ROWS))
    packed = {bits: _cold_packed(bits) for bits in (4, 8)}
    times = _best({bits: _products(packed[bits], 1) for bits in packed}, 0.2)
    packed_bits = max((b for b in packed if times[b] < _GAIN * one[few_rows]), default=0)
    types = replace(types, packed_bits=packed_bits)
    progress(stage, 2, steps)
    if packed_bits:
        few_limit = _few_limit(packed[4], _cold_linears(dense_types(many_rows)))
    else:
        many = replace(types, few_limit=0)
        few_limit = _few_limit(_cold_linears(types), _cold_linears(many))
    progress(stage, 3, steps)
    kv = _pick(_best({dtype: _attention(dtype) for dtype in _DTYPES}, 0.3))
    progress(stage, steps, steps)
    return DeviceTypes(replace(types, few_limit=few_limit), kv)


def _few_limit(as_few: _Linears, as_many: _Linears) -> int:
    """The most rows for which the path for few rows beats the one for many."""
    few = _best({rows: _products(as_few, rows) for rows in _FEW_ROWS}, 0.3)
    many = _best({rows: _products(as_many, rows) for rows in _FEW_ROWS}, 0.3)
    return max((rows for rows in _FEW_ROWS if few[rows] <= many[rows]), default=1)


def _pick(times: Mapping[torch.dtype, float]) -> torch.dtype:
    """The most exact dtype of those that are about as fast as the fastest."""
    picked = torch.float32
    if times[torch.float16] < _HALF * times[picked]:
        picked = torch.float16
    if times[torch.bfloat16] < _GAIN * times[picked]:
        picked = torch.bfloat16
    return picked


def _best(jobs: Mapping[K, Callable[[], object]], seconds: float) -> dict[K, float]:
    """The best microseconds of each job, all taking turns: one to warm up, at least two timed."""
    best = dict.fromkeys(jobs, float("inf"))
    deadline = time.perf_counter() + seconds
    turn = 0
    while turn < 3 or time.perf_counter() < deadline:
        for key, job in jobs.items():
            start = time.thread_time()
            job()
            if turn:
                best[key] = min(best[key], (time.thread_time() - start) * 1e6)
        turn += 1
    return best


def _products(linears: _Linears, rows: int) -> Callable[[], object]:
    """One product of ``rows`` float32 rows, each time with the next matrix."""
    x, turn = torch.ones(rows, _IN), cycle(linears)
    return lambda: next(turn)(x)


def _cold_linears(types: LinearTypes) -> list[Linear]:
    count = _COLD_BYTES // (_OUT * _IN * types.weight.itemsize)
    return [Linear(torch.ones(_OUT, _IN, dtype=types.weight), types=types) for _ in range(count)]


def _cold_packed(bits: int) -> list[PackedLinear]:
    name, block_bytes = {4: ("Q4_0", 18), 8: ("Q8_0", 34)}[bits]
    raw = torch.ones(_OUT, _IN // 32 * block_bytes, dtype=torch.uint8)
    types = replace(LinearTypes.uniform(torch.float32), dense=False)
    linear = PackedLinear([(name, raw)], types=types)
    return [deepcopy(linear) for _ in range(_COLD_BYTES // linear.nbytes())]


def _attention(dtype: torch.dtype) -> Callable[[], object]:
    """Decode attention of one row over a cold layer of KV in ``dtype``."""
    shape = AttentionShape(8, 4, 64, 16, dtype, torch.device("cpu"))
    pages = _CONTEXT // shape.page_size
    layers = [kv.fill_(1) for kv in allocate_kv(4, pages + 1, shape)]
    table = torch.randperm(pages)[None] + 1
    gather = Gather(shape, table, (_CONTEXT,), [Task(0, 0, 0, _CONTEXT)], Scratch())
    q, turn = torch.ones(1, 4, 2, 64, dtype=dtype), cycle(layers)
    return lambda: attend(q, *gather(next(turn)), LayerSpec(0.125), None)
