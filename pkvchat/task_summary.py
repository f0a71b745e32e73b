"""What a strategy made of one step's batch, in words: for the step inspector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pkvchat.kernels.attention.tasks import Task, split_tasks, workqueue_tasks

from .counted import counted
from .steps import StepRecord


def task_summary(record: StepRecord, page_size: int) -> str:
    """The tasks of a full-attention layer: how many, of how many pages, for each row."""
    lengths, splits = record.seq_lens, record.num_splits
    if record.strategy == "split":
        rows = [split_tasks(i, n, 0, page_size, splits) for i, n in enumerate(lengths)]
        tasks = [task for row in rows for task in row]
        empty = splits * len(rows) - len(tasks)
        return (
            f"{_sizes(tasks, page_size)}, {counted(empty, 'split')} empty; by row {_counts(rows)}"
        )
    if record.strategy == "workqueue":
        tasks, offsets = workqueue_tasks(lengths, 0, page_size, splits)
        rows = [tasks[a:b] for a, b in pairwise(offsets)]
        return f"{_sizes(tasks, page_size)} in one list; by row {_counts(rows)}"
    pages = sum(-(-n // page_size) for n in lengths)
    how = "planned by FlashInfer" if record.strategy == "flashinfer" else "gathered"
    return f"no task list: {counted(pages, 'page')} {how}"


def _sizes(tasks: Sequence[Task], page_size: int) -> str:
    sizes = [-(-task.end // page_size) - task.first_tile for task in tasks]
    least, most = min(sizes), max(sizes)
    size = f"{least:,} to " if least < most else ""
    return f"{counted(len(tasks), 'task')} of {size}{counted(most, 'page')}"


def _counts(rows: Sequence[Sequence[Task]]) -> str:
    return " · ".join(f"{len(row):,}" for row in rows)
