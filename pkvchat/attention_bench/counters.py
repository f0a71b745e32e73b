"""What one attention call asks of the device: kernels, pieces of rows, partial states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch
from pkvchat.kernels.attention.strategy import Strategy
from pkvchat.kernels.attention.tasks import split_tasks, workqueue_tasks

from .results import Counters


def schedule(
    strategy: Strategy, shape: AttentionShape, batch: DecodeBatch, num_splits: int
) -> Counters:
    """All but the launches, of one call under ``num_splits``."""
    if not batch.seq_lens.is_cuda:
        return cpu_counters(strategy.name, shape, batch.lengths, num_splits)
    segments = cuda_segments(strategy, shape, batch, num_splits)
    if segments is None:
        return Counters()
    pieces, programs, busy = segments
    states = sum(n for n in pieces if n > 1)
    return Counters(None, sum(pieces), busy / programs, states * state_bytes(shape))


def state_bytes(shape: AttentionShape) -> int:
    """Of one group's softmax state: acc, m and l in float32."""
    return shape.group_size * (shape.head_dim + 2) * 4


def cpu_counters(
    name: str, shape: AttentionShape, lengths: Sequence[int], num_splits: int
) -> Counters:
    """A task is a run of pages of one row, for all KV heads; none is empty."""
    page_size = shape.page_size
    if name == "workqueue":
        tasks, _ = workqueue_tasks(lengths, 0, page_size, num_splits)
    elif name == "split":
        tasks = [
            task
            for row, length in enumerate(lengths)
            for task in split_tasks(row, length, 0, page_size, num_splits)
        ]
    else:
        return Counters(tasks=len(lengths), filled=1.0, merge_bytes=0)
    by_row = Counter(task.row for task in tasks)
    states = sum(n for n in by_row.values() if n > 1) * shape.num_kv_heads
    return Counters(tasks=len(tasks), filled=1.0, merge_bytes=states * state_bytes(shape))


def cuda_segments(
    strategy: Strategy, shape: AttentionShape, batch: DecodeBatch, num_splits: int
) -> tuple[list[int], int, int] | None:
    """Pieces of each (row, KV head), programs launched, and those that had work.

    None for strategies whose kernels are not ours.
    """
    if strategy.name not in ("split", "workqueue"):
        return None
    from pkvchat.kernels.attention.split_triton import SplitTriton
    from pkvchat.kernels.attention.workqueue_triton import WorkqueueTriton

    assert isinstance(strategy, SplitTriton | WorkqueueTriton)
    config, heads = strategy.config, shape.num_kv_heads
    units = [-(-length // config.unit) for length in batch.lengths]
    if isinstance(strategy, SplitTriton):
        shortest = max(1, config.min_share // config.unit)
        widest = strategy.max_splits(len(batch))
        splits = [max(1, min(num_splits, widest, each // shortest)) for each in units]
        pieces = [each for each in splits for _ in range(heads)]
        return pieces, widest * len(splits) * heads, sum(pieces)
    plan, fill = strategy.planner(window=0)
    fill(batch.seq_lens)
    share, overhead, step = plan.share.tolist()
    pieces = []
    for row, begin in enumerate(plan.row_cost[: len(units)].tolist()):
        cost = -(-(units[row] + overhead) // step) * step
        for head in range(heads):
            first = begin + head * cost + overhead
            pieces.append((first + units[row] - 1) // share - first // share + 1)
    busy = int((plan.starts[:, 0] < len(units)).sum())
    return pieces, config.num_programs, busy


def count_launches(calls: Sequence[Callable[[], object]]) -> list[int | None]:
    """Kernels that run in each call, as the driver reports them; its own copies and fills are none.

    None where a driver lets nobody look.
    """
    from torch.profiler import ProfilerActivity, profile

    for call in calls:
        call()  # compile, allocate
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for call in calls:
            torch.cuda._sleep(1)  # marks where a call begins
            call()
        torch.cuda.synchronize()
    names = [
        event.name
        for event in sorted(found.events() or (), key=lambda event: event.time_range.start)
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    ]
    marks = [i for i, name in enumerate(names) if "spin" in name]
    if len(marks) != len(calls):
        return [None for _ in calls]
    ends = [*marks[1:], len(names)]
    return [end - mark - 1 for mark, end in zip(marks, ends, strict=True)]
