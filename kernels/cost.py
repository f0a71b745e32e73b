"""How long one layer's decode attention takes under a schedule, from a few fitted constants.

PersistentKV's form, KVBytes/beta * max(1, Cmin/C) + L * lambda + MergeBytes/beta, charges an idle
device by a factor. Here the bytes are charged twice, as a whole and on the busiest worker, which
is linear in the constants, so that a least-squares fit on the device finds them:

    calls * call + tiles * tile + path * path + tasks * task + merges * merge
        + plans * plan / layers + eager
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the policies' names are known without torch
    from .batch import AttentionShape

_ALL_PAGES = 1 << 60
_RESIDENT = 2  # programs that a streaming multiprocessor holds of each kernel here
_MIN_TOKENS = 64  # that the Triton kernels give a program at least
_FLASHINFER_MIN_TOKENS = 128  # likewise
_HIDDEN_BYTES = 20 << 20  # of KV that the device gathers while the host starts a row of sdpa


@dataclass(frozen=True)
class Work:
    """What a schedule asks of the device for one layer.

    calls: launches on CUDA, attention calls on CPU. tiles: pages of one KV head read, padding
    included. path: those on the busiest worker. tasks: the tasks it starts. merges: partial states
    to merge on CUDA, merge calls on CPU. plans: pieces of planning, once per step.
    """

    calls: int
    tiles: int
    path: int
    tasks: int
    merges: int
    plans: int


@dataclass(frozen=True)
class StrategyCost:
    """Microseconds per unit of each field of Work.

    eager: more for each layer of a step that no CUDA graph holds, whose other launches the host
    makes one by one. error: what predictions were off by when the constants were fitted, as a share
    of the time, in half of the cases.
    """

    call: float
    tile: float
    path: float
    task: float
    merge: float
    plan: float
    eager: float = 0.0
    error: float = 0.0

    def predict(self, work: Work, num_layers: int) -> float:
        """Microseconds of one layer, its share of the step's planning included."""
        return (
            work.calls * self.call
            + work.tiles * self.tile
            + work.path * self.path
            + work.tasks * self.task
            + work.merges * self.merge
            + work.plans * self.plan / num_layers
            + self.eager
        )


class CostModel:
    """Work and time of each strategy for one shape on one device.

    workers: what runs side by side, threads on CPU and streaming multiprocessors on CUDA.
    windows: in tokens, of those of the num_layers layers that have a sliding window.
    """

    def __init__(
        self,
        shape: AttentionShape,
        workers: int,
        costs: dict[str, StrategyCost],
        num_layers: int,
        windows: Sequence[int] = (),
    ) -> None:
        self.shape, self.workers = shape, workers
        self.costs, self.num_layers = costs, num_layers
        # Pages that a layer sees at most, and the share of the layers that do.
        self._seen = [
            (window // shape.page_size + 1, count / num_layers)
            for window, count in Counter(windows).items()
        ]
        if len(windows) < num_layers:
            self._seen.append((_ALL_PAGES, 1 - len(windows) / num_layers))

    def predict(self, strategy: str, tiles: Sequence[int], num_splits: int) -> float:
        """Microseconds of an average layer for rows of ``tiles`` pages each."""
        longest, us = max(tiles), 0.0
        for most, share in self._seen:
            seen = tiles if most >= longest else [min(row, most) for row in tiles]
            work = strategy_work(strategy, seen, num_splits, self.shape, self.workers)
            us += share * self.costs[strategy].predict(work, self.num_layers)
        return us


def split_choices(
    strategy: str, tiles: Sequence[int], shape: AttentionShape, workers: int
) -> list[int]:
    """The num_splits worth comparing, up to a tile a split, where it matters.

    Powers of two on CPU; on CUDA those that fill the device once, half, or twice.
    """
    if shape.device.type == "cpu":
        if strategy == "sdpa":
            return [1]
        return [1 << i for i in range(min(max(tiles), 8).bit_length())]
    if strategy != "split":
        return [1]
    fill = _RESIDENT * workers / (len(tiles) * shape.num_kv_heads)
    return sorted({max(1, min(max(tiles), int(fill * part))) for part in (0.5, 1, 2)})


def strategy_work(
    strategy: str, tiles: Sequence[int], num_splits: int, shape: AttentionShape, workers: int
) -> Work:
    """tiles: pages of each row."""
    if shape.device.type == "cpu":
        return _cpu_work(strategy, tiles, num_splits, shape.num_kv_heads, workers)
    return _cuda_work(strategy, tiles, num_splits, shape, workers)


def _cpu_work(
    strategy: str, tiles: Sequence[int], num_splits: int, heads: int, workers: int
) -> Work:
    rows = len(tiles)
    if strategy == "workqueue":
        each = -(-max(tiles) // num_splits)
        tasks = sum(-(-row // each) for row in tiles)
        waves = -(-tasks * heads // workers)
        return Work(1, tasks * each * heads, waves * each, waves, int(tasks > rows), 1)
    path = total_waves = merges = 0
    for row in tiles:  # one after another
        each = -(-row // (1 if strategy == "sdpa" else num_splits))
        splits = -(-row // each)
        waves = -(-splits * heads // workers)
        path += waves * each
        total_waves += waves
        merges += splits > 1
    return Work(rows, sum(tiles) * heads, path, total_waves, merges, rows)


def _cuda_work(
    strategy: str, tiles: Sequence[int], num_splits: int, shape: AttentionShape, workers: int
) -> Work:
    heads, rows, total = shape.num_kv_heads, len(tiles), sum(tiles) * shape.num_kv_heads
    if strategy == "sdpa":
        page_bytes = 2 * heads * shape.page_size * shape.head_dim * shape.kv_dtype.itemsize
        hidden = _HIDDEN_BYTES // page_bytes
        path = -(-heads // workers) * sum(max(row, hidden) for row in tiles)
        return Work(rows, total, path, rows, 0, rows)
    slots = _RESIDENT * workers
    if strategy == "split":
        shortest = max(1, _MIN_TOKENS // shape.page_size)
        programs, pieces, share = _cut(tiles, num_splits, shortest)
        waves = -(-programs * heads // slots)
        path = max(share, -(-total * waves // (programs * heads)))
        return Work(2, total, path, waves, pieces * heads, 1)
    if strategy == "workqueue":
        return _workqueue_work(tiles, heads, slots, shape.page_size)
    # Equal shares, whatever the rows; a piece more where a row begins inside one.
    share = max(_FLASHINFER_MIN_TOKENS // shape.page_size, 1, -(-total // slots))
    pieces = heads * sum([-(-row // share) for row in tiles])
    return Work(2, total, share, -(-rows * heads // slots), pieces, 1)


def _cut(tiles: Sequence[int], num_splits: int, shortest: int) -> tuple[int, int, int]:
    """(programs, partial states, longest share in tiles) of one KV head in split's grid."""
    programs = pieces = longest = 0
    for row in tiles:
        splits = row // shortest
        if splits > num_splits:
            splits = num_splits
        if splits > 1:
            pieces += splits
        else:
            splits = 1
        programs += splits
        share = -(-row // splits)
        if share > longest:
            longest = share
    return programs, pieces, longest


def _workqueue_work(tiles: Sequence[int], heads: int, slots: int, page_size: int) -> Work:
    """As planner_triton cuts shares: padded to whole pieces where that costs next to nothing."""
    total, overhead = sum(tiles) * heads, max(1, _MIN_TOKENS // page_size)
    least = max(overhead, -(-total // slots))
    for share in range(least, least + overhead):
        pieces = sum([-(-row // share) for row in tiles])
        if pieces * heads <= slots:
            whole = sum([row <= share for row in tiles])
            return Work(2, total, share, 1, (pieces - whole) * heads, 1)
    segments = len(tiles) * heads
    share = max(overhead, -(-(total + overhead * segments) // slots))
    pieces = sum([-(-(row + overhead) // share) for row in tiles]) * heads
    return Work(2, total, share, 1 + -(-segments // slots), pieces, 1)
