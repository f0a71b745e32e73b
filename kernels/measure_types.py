"""Times products and attention in each dtype, for a calibration record's choice of dtypes.

Times are the best of several: what disturbs a measurement only ever makes it longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from itertools import cycle
from typing import TypeVar

import torch

from .attend import attend
from .batch import AttentionShape, LayerSpec
from .calibration import DeviceTypes, Progress
from .gather import Gather, Scratch
from .kv import allocate_kv
from .linear import Linear, LinearTypes
from .packed import GROUP, Codes, PackedLinear
from .tasks import Task

K = TypeVar("K", bound=Hashable)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # from the most exact to the least
_GAIN = 0.9  # what is less exact must take less than this share of the time
_FEW_ROWS = (2, 4, 8, 16, 32, 64)
_MANY_ROWS = 128
_OUT, _IN = 1024, 768  # of the matrices timed
_COLD_BYTES = 32 << 20  # beyond a core's caches: a decode step finds its weights in memory
_CONTEXT = 2048  # tokens of the attention timed


def measure_types(progress: Progress) -> DeviceTypes:
    """Which dtypes this CPU is fast in; one without fast 16-bit arithmetic ends with float32."""
    stage = "measuring this processor"
    progress(stage, 0, 4)
    uniform = {dtype: _cold_linears(LinearTypes.uniform(dtype)) for dtype in _DTYPES}
    one = _best({dtype: _products(uniform[dtype], 1, dtype) for dtype in _DTYPES}, seconds=0.4)
    many = _best({dtype: _products(uniform[dtype], _MANY_ROWS, dtype) for dtype in _DTYPES}, 0.4)
    few_rows, many_rows = _pick(one), _pick(many)
    progress(stage, 1, 4)
    packed = _best(
        {bits: _products(_cold_packed(bits), 1, torch.bfloat16) for bits in (4, 8)}, seconds=0.3
    )
    packed_bits = max((bits for bits in packed if packed[bits] < _GAIN * one[few_rows]), default=0)
    progress(stage, 2, 4)
    few_limit = _few_limit(few_rows, many_rows)
    progress(stage, 3, 4)
    kv = _pick(_best({dtype: _attention(dtype) for dtype in _DTYPES}, seconds=0.4))
    progress(stage, 4, 4)
    halved = packed_bits or torch.bfloat16 in (few_rows, many_rows)
    return DeviceTypes(
        LinearTypes(few_rows, few_rows, many_rows, few_limit, packed_bits),
        activation=torch.bfloat16 if halved else torch.float32,
        kv=kv,
    )


def _few_limit(few_rows: torch.dtype, many_rows: torch.dtype) -> int:
    """The most rows for which ``few_rows`` beats converting the weights to ``many_rows``."""
    if few_rows == many_rows:
        return max(_FEW_ROWS)
    as_few = _cold_linears(LinearTypes(few_rows, few_rows, many_rows, few_limit=max(_FEW_ROWS)))
    as_many = _cold_linears(LinearTypes(few_rows, few_rows, many_rows, few_limit=0))
    few = _best({rows: _products(as_few, rows, few_rows) for rows in _FEW_ROWS}, seconds=0.4)
    many = _best({rows: _products(as_many, rows, many_rows) for rows in _FEW_ROWS}, seconds=0.4)
    return max((rows for rows in _FEW_ROWS if few[rows] <= many[rows]), default=1)


def _pick(times: Mapping[torch.dtype, float]) -> torch.dtype:
    """The fastest, as far as it gains enough on those more exact than it."""
    picked = _DTYPES[0]
    for dtype in _DTYPES[1:]:
        if times[dtype] < _GAIN * times[picked]:
            picked = dtype
    return picked


def _best(jobs: Mapping[K, Callable[[], object]], seconds: float) -> dict[K, float]:
    """The best microseconds of each job, all taking turns: one to warm up, at least two timed."""
    best = dict.fromkeys(jobs, float("inf"))
    deadline = time.perf_counter() + seconds
    turn = 0
    while turn < 3 or time.perf_counter() < deadline:
        for key, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                best[key] = min(best[key], (time.perf_counter() - start) * 1e6)
        turn += 1
    return best


def _products(
    linears: Sequence[Linear | PackedLinear], rows: int, dtype: torch.dtype
) -> Callable[[], object]:
    """One product of ``rows`` rows in ``dtype``, each time with the next matrix."""
    x, turn = torch.ones(rows, _IN, dtype=dtype), cycle(linears)
    return lambda: next(turn)(x)


def _cold_linears(types: LinearTypes) -> list[Linear]:
    count = _COLD_BYTES // (_OUT * _IN * types.weight.itemsize)
    return [Linear(torch.ones(_OUT, _IN, dtype=types.weight), types=types) for _ in range(count)]


def _cold_packed(bits: int) -> list[PackedLinear]:
    maps = torch.ones(_OUT, _IN // GROUP)
    codes = Codes(torch.ones(_OUT, _IN, dtype=torch.uint8), maps, maps, bits)
    linear = PackedLinear(codes, few_limit=1)
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
