"""The plan of tasks: every visible key in exactly one task, every task in its own slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pkvchat.kernels.attention.tasks import (
    split_tasks,
    visible_range,
    visible_tiles,
    workqueue_tasks,
)

lengths = st.lists(st.integers(1, 3000), min_size=1, max_size=9)
windows = st.sampled_from([0, 1, 16, 100, 1024, 5000])
page_sizes = st.sampled_from([16, 32, 64])
splits = st.integers(1, 200)


def covers(tasks, length, window, page_size):
    """The tasks of one row are whole, in order, gapless, and start on tiles."""
    begin, end = visible_range(length, window)
    assert [task.begin for task in tasks] == [begin, *(task.end for task in tasks[:-1])]
    assert tasks[-1].end == end
    for task in tasks:
        assert task.begin < task.end
        assert task.first_tile == task.begin // page_size
    for task in tasks[1:]:
        assert task.begin % page_size == 0


@given(length=st.integers(1, 5000), window=windows, page_size=page_sizes, num_splits=splits)
def test_splits_cover_a_row_once(length, window, page_size, num_splits):
    tasks = split_tasks(7, length, window, page_size, num_splits)
    covers(tasks, length, window, page_size)
    assert len(tasks) <= min(num_splits, visible_tiles(length, window, page_size))
    assert {task.row for task in tasks} == {7}


@given(lengths=lengths, window=windows, page_size=page_sizes, num_splits=splits)
def test_workqueue_covers_all_rows_once_in_compact_slots(lengths, window, page_size, num_splits):
    tasks, split_offsets = workqueue_tasks(lengths, window, page_size, num_splits)
    assert split_offsets[0] == 0
    assert split_offsets[-1] == len(tasks)
    for row, length in enumerate(lengths):
        own = tasks[split_offsets[row] : split_offsets[row + 1]]
        assert {task.row for task in own} == {row}
        covers(own, length, window, page_size)
        assert len(own) <= num_splits


@given(lengths=lengths, page_size=page_sizes, num_splits=splits)
def test_no_task_is_longer_than_the_longest_rows_share(lengths, page_size, num_splits):
    tasks, _ = workqueue_tasks(lengths, 0, page_size, num_splits)
    share = -(-visible_tiles(max(lengths), 0, page_size) // num_splits)
    assert max(-(-task.end // page_size) - task.first_tile for task in tasks) <= share
