"""How a ragged batch is cut into tasks: pure functions of the host's lengths.

A tile is one page. A task is a run of consecutive tiles of one row, for all KV heads; the CUDA
kernels cut by KV head too. Bounds always come from the row's own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Task(NamedTuple):
    """Keys ``begin <= position < end`` of ``row``, in the tiles from ``first_tile`` onwards."""

    row: int
    first_tile: int
    begin: int
    end: int


def visible_range(length: int, window: int) -> tuple[int, int]:
    """(begin, end) of the keys that a query at position length - 1 sees; window 0 means all."""
    return (max(0, length - window) if window else 0), length


def row_tasks(
    row: int, length: int, window: int, page_size: int, tiles_per_task: int
) -> list[Task]:
    """Cut one row into non-empty tasks of ``tiles_per_task`` tiles; the last may be shorter."""
    begin, end = visible_range(length, window)
    tasks = []
    for tile in range(begin // page_size, -(-end // page_size), tiles_per_task):
        task_end = min(end, (tile + tiles_per_task) * page_size)
        tasks.append(Task(row, tile, max(begin, tile * page_size), task_end))
    return tasks


def visible_tiles(length: int, window: int, page_size: int) -> int:
    """Tiles that hold at least one visible key."""
    begin, end = visible_range(length, window)
    return -(-end // page_size) - begin // page_size


def split_tasks(row: int, length: int, window: int, page_size: int, num_splits: int) -> list[Task]:
    """The rectangular schedule's view of one row: at most ``num_splits`` equal runs of tiles.

    A row with fewer tiles than splits leaves the rest empty, and empty splits make no task.
    """
    tiles = visible_tiles(length, window, page_size)
    return row_tasks(row, length, window, page_size, -(-tiles // num_splits))


def workqueue_tasks(
    lengths: Sequence[int], window: int, page_size: int, num_splits: int
) -> tuple[list[Task], list[int]]:
    """The compact list over all rows, and ``split_offsets``.

    ``num_splits`` is that of the longest row; shorter rows get as many tasks as their tiles fill.
    The partial states of row i go to slots split_offsets[i] to split_offsets[i + 1] - 1.
    """
    longest = max(visible_tiles(length, window, page_size) for length in lengths)
    tiles_per_task = -(-longest // num_splits)
    tasks: list[Task] = []
    split_offsets = [0]
    for row, length in enumerate(lengths):
        tasks += row_tasks(row, length, window, page_size, tiles_per_task)
        split_offsets.append(len(tasks))
    return tasks, split_offsets
