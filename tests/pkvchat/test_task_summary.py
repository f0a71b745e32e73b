"""The words for a step's tasks, against the plans that the strategies make."""

from __future__ import annotations

import pytest

from pkvchat.steps import StepRecord
from pkvchat.task_summary import task_summary


def record(strategy: str, lengths: tuple[int, ...], num_splits: int) -> StepRecord:
    return StepRecord(1, strategy, "", len(lengths), lengths, num_splits, {}, 1.0, 1.0, 1, 9)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        # 64 and 3 pages in 4 splits: 16 pages each, and 1 page each with one split left over.
        ("split", "7 tasks of 1 to 16 pages, 1 split empty; by row 4 · 3"),
        ("workqueue", "5 tasks of 3 to 16 pages in one list; by row 4 · 1"),
        ("sdpa", "no task list: 67 pages gathered"),
        ("flashinfer", "no task list: 67 pages planned by FlashInfer"),
    ],
)
def test_what_each_strategy_made_of_a_batch(strategy: str, words: str) -> None:
    assert task_summary(record(strategy, (1024, 40), 4), 16) == words


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("split", "1 task of 1 page, 0 splits empty; by row 1"),
        ("workqueue", "1 task of 1 page in one list; by row 1"),
        ("sdpa", "no task list: 1 page gathered"),
    ],
)
def test_one_of_a_thing_is_no_plural(strategy: str, words: str) -> None:
    assert task_summary(record(strategy, (9,), 1), 16) == words


def test_the_inspector_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, pkvchat.task_summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
