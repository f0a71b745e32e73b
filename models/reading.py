"""Tensors out of files, many parts at a time, so that the disk is what limits loading."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

import torch

from .errors import ModelError

PART_BYTES = 16 << 20
THREADS = 8  # a disk wants several reads to choose from; more wait for each other

Part = Callable[[torch.Tensor], None]
"""Work on some part of a tensor, given a buffer of PART_BYTES that no other part uses meanwhile."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in a file. dtype: of its items; uint8 for blocks of quantised ones."""

    file: BinaryIO
    start: int
    dtype: torch.dtype

    def parts(
        self, out: torch.Tensor, *, places: torch.Tensor | None = None, add: float = 0.0
    ) -> Iterator[Part]:
        """Fill ``out``, contiguous, as many items as are stored, any dtype and device.

        places: the row of ``out`` for each stored row. add: to every item.
        """
        rows = out.view(-1, 1) if places is None else out.view(len(out), -1)
        step = max(1, PART_BYTES // (rows.shape[1] * self.dtype.itemsize))
        for first in range(0, len(rows), step):
            yield self._part(rows, slice(first, min(first + step, len(rows))), places, add)

    def _part(
        self, rows: torch.Tensor, part: slice, places: torch.Tensor | None, add: float
    ) -> Part:
        def read(buffer: torch.Tensor) -> None:
            out = rows[part]
            nbytes = out.numel() * self.dtype.itemsize
            start = self.start + part.start * rows.shape[1] * self.dtype.itemsize
            in_place = out.dtype == self.dtype and out.device.type == "cpu"
            if in_place and places is None and not add:
                self._read(out.view(torch.uint8), start)
                return
            self._read(buffer[:nbytes], start)
            values = buffer[:nbytes].view(self.dtype).view(out.shape)
            if add:
                values = values.float() + add
            if places is None:
                out.copy_(values, non_blocking=True)
            else:
                rows[places[part].to(rows.device)] = values.to(rows.device, rows.dtype)

        return read

    def _read(self, out: torch.Tensor, start: int) -> None:
        """out: uint8 on the CPU. Raises ModelError where the file ends too soon."""
        view = out.numpy().data
        # All at once: the system loses its way reading ahead of several readers of one file.
        os.posix_fadvise(self.file.fileno(), start, len(view), os.POSIX_FADV_WILLNEED)
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self.file.fileno(), [view[done:]], start + done)
            except OSError as error:
                raise ModelError(f"{self.file.name}: cannot be read: {error.strerror}") from error
            if not count:
                raise ModelError(f"{self.file.name}: became shorter while it was read")
            done += count


class PartRunner:
    """Runs parts in threads, each with its buffer; what they fill is there after ``wait``."""

    def __init__(self, device: torch.device) -> None:
        """device: where the parts write."""
        self.device = device
        # On a CPU parts are mostly arithmetic: types are converted.
        threads = max(THREADS, torch.get_num_threads()) if device.type == "cpu" else THREADS
        self._threads = ThreadPoolExecutor(threads, "read")
        self._ahead = 2 * threads  # parts given to the threads and not done yet, at most
        self._buffers = threading.local()
        self._pending: deque[Future[None]] = deque()

    def submit(self, parts: Iterable[Part]) -> None:
        """Returns when most of them are done. Raises whatever an earlier part raised."""
        for part in parts:
            if len(self._pending) >= self._ahead:
                self._pending.popleft().result()
            self._pending.append(self._threads.submit(self._run, part))

    def wait(self) -> None:
        """Until all parts are done. Raises whatever one of them raised."""
        while self._pending:
            self._pending.popleft().result()

    def _run(self, part: Part) -> None:
        cuda = self.device.type == "cuda"
        if not hasattr(self._buffers, "mine"):
            self._buffers.mine = torch.empty(PART_BYTES, dtype=torch.uint8, pin_memory=cuda)
        part(self._buffers.mine)
        if cuda:  # the copy out of the buffer is under way
            torch.cuda.current_stream(self.device).synchronize()
