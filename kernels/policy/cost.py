"""How long one layer's decode attention takes under a schedule, from a few fitted constants.

PersistentKV's form, KVBytes/beta * max(1, Cmin/C) + L * lambda + MergeBytes/beta, charges an idle
device by one factor for the whole schedule. Here the schedule is followed from its first program to
its last, and what it leaves unused is charged as if it had been read. The rest is linear in the
constants, so that a least-squares fit on the device finds them:

    calls * call + tiles * tile + path * path + tasks * task + merges * merge
        + plans * plan / layers + eager

What that misses is remembered beside it: for schedules of each kind that was measured, by how much
they took longer than the constants say.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the policies' names are known without torch
    from ..attention.batch import AttentionShape

_ALL_PAGES = 1 << 60
_PARTS = (0.5, 0.97, 1, 2)  # of the device, that a grid of splits is to fill
_HALF, _UNSURE = 0.75, 0.01  # of it, and by what a grid that fills less has to win: its time varies
# Of the programs that fill the device, and of its bandwidth: shares measured on an H200.
_BANDWIDTH = ((0.0, 0.0), (0.25, 0.55), (0.5, 0.85), (0.6, 0.89), (1.0, 1.0))
_MIN_TOKENS = 64  # that the Triton kernels give a program at least; FlashInfer twice as many
# Tokens that a program reads, where they saturate, while it starts and ends a piece of a few; and
# while that waits for a step of its loop.
_PIECE_TOKENS, _WAIT_TOKENS = 83, 40
_PADDING = 4  # TileConfig's: percent by which workqueue's shares may grow to have one piece each
_STEP_TOKENS, _PIPELINE = 64, 3  # of their inner loop: tokens a step, steps in flight
_LATE_ROWS = 2  # tile_config's: up to which the next kernel is let in only as the last one ends
_QUANTISED = 0.75  # of the bandwidth that programs share: three for two, half the bytes a step
_KINDS = 4  # of schedules, to a factor of two
_HIDDEN_BYTES = 20 << 20  # of KV that the device gathers while the host starts a row of sdpa


@dataclass(frozen=True)
class Work:
    """What a schedule asks of the device for one layer.

    calls: attention calls. tiles: pages of one KV head read, padding and, on CUDA, idle bandwidth
    included. path: on CPU pages on the busiest worker, on CUDA steps that fill its pipeline and
    those that the next call waits. tasks: those it starts, one after the other. merges: partial
    states to merge on CUDA, merge calls on CPU. plans: pieces of planning, once per step. kind: on
    CUDA, what schedules of about the same programs and tokens have in common.
    """

    calls: int
    tiles: float
    path: float
    tasks: int
    merges: int
    plans: int
    kind: str = ""


@dataclass(frozen=True)
class StrategyCost:
    """Microseconds per unit of each field of Work.

    eager: more for each layer of a step that no CUDA graph holds, whose other launches the host
    makes one by one. error: what predictions were off by when the constants were fitted, as a share
    of the time, in half of the cases. missed: by kind of schedule, what it took over what the
    constants of a layer's own work say.
    """

    call: float
    tile: float
    path: float
    task: float
    merge: float
    plan: float
    eager: float = 0.0
    error: float = 0.0
    missed: dict[str, float] = field(default_factory=dict)

    def predict(self, work: Work, num_layers: int) -> float:
        """Microseconds of one layer, its share of the step's planning included."""
        us = self.fitted(work) * self.missed.get(work.kind, 1.0)
        return us + work.plans * self.plan / num_layers + self.eager

    def fitted(self, work: Work) -> float:
        """Microseconds by the constants alone of what a layer does itself."""
        return (
            work.calls * self.call
            + work.tiles * self.tile
            + work.path * self.path
            + work.tasks * self.task
            + work.merges * self.merge
        )


class CostModel:
    """Work and time of each strategy for one shape on one device.

    workers: what runs side by side, threads on CPU and programs of a kernel on CUDA.
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

    def best(self, strategy: str, tiles: Sequence[int]) -> tuple[float, int]:
        """(microseconds, num_splits) at the num_splits for which they are least.

        One that fills the device by half has to win by more than the others.
        """
        splits = split_choices(strategy, tiles, self.shape, self.workers)
        us = {each: self.predict(strategy, tiles, each) for each in splits}
        enough = _HALF * self.workers / (len(tiles) * self.shape.num_kv_heads)
        return min(
            ((us[each], each) for each in splits),
            key=lambda each: each[0] * (1 + _UNSURE * (each[1] < enough)),
        )


def split_choices(
    strategy: str, tiles: Sequence[int], shape: AttentionShape, workers: int
) -> list[int]:
    """The num_splits worth comparing, up to a tile a split, where it matters.

    Powers of two on CPU; on CUDA those that fill the device once, nearly, half, or twice.
    """
    if shape.device.type == "cpu":
        if strategy == "sdpa":
            return [1]
        return [1 << i for i in range(min(max(tiles), 8).bit_length())]
    if strategy != "split":
        return [1]
    fill = workers / (len(tiles) * shape.num_kv_heads)
    return sorted({max(1, min(max(tiles), int(fill * part))) for part in _PARTS})


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
    heads = shape.num_kv_heads
    if strategy == "sdpa":
        page_bytes = 2 * heads * shape.page_size * shape.head_dim * shape.kv_dtype.itemsize
        hidden = _HIDDEN_BYTES // page_bytes
        busiest = -(-heads // workers) * sum(max(row, hidden) for row in tiles)
        return Work(len(tiles), sum(tiles) * heads, busiest, len(tiles), 0, len(tiles))
    shortest = max(1, _MIN_TOKENS // shape.page_size)
    if strategy == "split":
        pieces = [max(1, min(num_splits, row // shortest)) for row in tiles]
    elif strategy == "workqueue":
        share, pieces = _workqueue_share(tiles, heads, workers, shortest)
        if not pieces:
            return _equal_shares(tiles, share, shape, workers)
    else:
        chunk = _flashinfer_chunk(tiles, workers // heads, 2 * shortest)
        pieces = [-(-row // chunk) for row in tiles]
    parts = [row / each for each, row in zip(pieces, tiles, strict=True)]
    if strategy == "split":
        parts = [math.ceil(part) for part in parts]
    grid = [(heads * each, part) for each, part in zip(pieces, parts, strict=True)]
    programs, longest = heads * sum(pieces), max(parts)
    merges = heads * sum([each for each in pieces if each > 1])
    if strategy == "split" and programs > workers:  # all rows' first pieces start first
        grid = [
            (heads, part)
            for piece in range(max(pieces))
            for each, part in zip(pieces, parts, strict=True)
            if piece < each
        ]
    if strategy == "flashinfer":  # its loop takes no shorter steps
        longest = max(longest, 2 * shortest)
    read = _tiles_in_that_time(grid, workers, _QUANTISED if shape.kv_dtype.itemsize == 1 else 1.0)
    path = _path(longest * shape.page_size, programs, workers, len(tiles))
    kind = _kind(longest, programs, tiles, shape)
    return Work(1, read, path, -(-programs // workers), merges, 1, kind)


def _path(tokens: float, programs: int, workers: int, rows: int) -> float:
    """Steps of a program's inner loop until its pipeline is full, and those that the next call
    waits: it may start beside this one's last tiles, as far as its programs find a place there.

    tokens: of the longest program.
    """
    steps = math.ceil(tokens / _STEP_TOKENS)
    if steps == 1:
        return 1
    waits = 1.0 if rows <= _LATE_ROWS else min(1.0, max(0.0, 2 - workers / programs))
    return min(_PIPELINE, steps) + waits


def _kind(longest: float, programs: int, tiles: Sequence[int], shape: AttentionShape) -> str:
    """By programs, tokens of the longest, and how much more than there is to read all would read if
    they were as long."""
    uneven = longest * programs / (sum(tiles) * shape.num_kv_heads)
    sizes = [
        round(_KINDS * math.log2(size)) for size in (programs, longest * shape.page_size, uneven)
    ]
    return " ".join(map(str, sizes)) + (" late" if len(tiles) <= _LATE_ROWS else "")


def _tiles_in_that_time(grid: Sequence[tuple[int, float]], workers: int, share: float) -> float:
    """How much the whole device could read while a grid runs, of which some is left unused.

    grid: (programs, tiles of each), in the order in which they start. Those that run share evenly
    what bandwidth they use together. share: of it, that as many use of what they would of 16 bits.
    """
    running: list[tuple[float, int]] = []  # (tiles that each will have read at its end, programs)
    active, now, read, waiting = 0, 0.0, 0.0, list(reversed(grid))
    while waiting or running:
        if waiting and active < workers:
            programs, tiles = waiting.pop()
            started = min(programs, workers - active)
            heappush(running, (now + tiles, started))
            active += started
            if started < programs:
                waiting.append((programs - started, tiles))
        else:
            end, ended = heappop(running)
            read += (end - now) * active / _bandwidth_used(share * active / workers)
            now, active = end, active - ended
    return read


@cache
def _bandwidth_used(filled: float) -> float:
    """By a device that is ``filled``, 0 < filled <= 1."""
    right = bisect_left(_BANDWIDTH, (filled, 0.0))
    (low, before), (high, after) = _BANDWIDTH[right - 1 : right + 1]
    return before + (after - before) * (filled - low) / (high - low)


def _flashinfer_chunk(tiles: Sequence[int], most: int, shortest: int) -> int:
    """The smallest share of which all rows together have no more than ``most``.

    As FlashInfer plans for a CUDA graph; rows are left whole where there are more of them.
    """
    longest = max(shortest, max(tiles))
    if len(tiles) > most:
        return longest
    shares = range(shortest, longest + 1)
    return shares[bisect_left(shares, -most, key=lambda c: -sum([-(-row // c) for row in tiles]))]


def _workqueue_share(
    tiles: Sequence[int], heads: int, workers: int, overhead: int
) -> tuple[int, list[int]]:
    """As planner_triton does: (share, pieces of each row), no pieces where none are padded."""
    total = sum(tiles) * heads
    least = max(overhead, -(-total // workers))
    most = max(least * _PADDING // 100, overhead - 1)
    for share in range(least, least + most + 1, max(most // 15, 1)):
        pieces = [-(-row // share) for row in tiles]
        if sum(pieces) * heads <= workers:
            return share, pieces
    return max(overhead, -(-(total + overhead * len(tiles) * heads) // workers)), []


def _equal_shares(tiles: Sequence[int], share: int, shape: AttentionShape, workers: int) -> Work:
    """Rows begin inside of shares: programs have several pieces, one after the other.

    A program takes its share's time, but one that has all KV heads of a short row waits for each of
    them in turn.
    """
    heads, overhead = shape.num_kv_heads, max(1, _MIN_TOKENS // shape.page_size)
    pieces = heads * sum([-(-(row + overhead) // share) for row in tiles])
    waits = 0.0
    for row in set(tiles):
        steps = math.ceil(row * shape.page_size / _STEP_TOKENS)
        more = (_PIECE_TOKENS + steps * _WAIT_TOKENS) / shape.page_size - row - overhead
        waits = max(waits, min(heads, share / (row + overhead)) * more)
    slowest = share + waits
    path = _path(slowest * shape.page_size, workers, workers, len(tiles))
    kind = _kind(slowest, workers, tiles, shape)
    return Work(1, slowest * workers, path, 2, pieces, 1, kind)
