"""What CUDA graphs read: the inputs of one step, in buffers that stay where they are."""

from __future__ import annotations

import numpy as np
import torch

from pkvchat.kernels.attention.batch import DecodeBatch, PrefillChunk

from .in_flight import Sampled
from .sequence import Sequence
from .upload import upload

Prompt = tuple[Sequence, int]  # how many of its tokens a step reads


class StepInputs:
    """Of steps with up to ``rows`` decode rows and, after them, up to ``chunk`` prompt tokens.

    token_ids, positions, slot_mapping: [rows + chunk] int64. logit_rows: [rows, and one more where
    there is a chunk] int64. batch: of the decode rows, None without any. All on the device.
    """

    def __init__(self, rows: int, chunk: int, max_pages: int, device: torch.device) -> None:
        """max_pages: of one sequence, at most."""
        self.rows, self.chunk = rows, chunk
        total = rows + chunk
        size = 5, total + total % 2  # each vector begins at 16 bytes, as kernels like it
        self._numbers = torch.zeros(size, dtype=torch.int64, device=device)
        self._pinned = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._host = self._pinned.numpy()
        self._host_lens = self._host[4].view(np.int32)[:rows]
        self._host[3] = np.arange(size[1])
        self._written: list[list[int]] = [[] for _ in range(rows)]  # pages of the table's rows
        self.token_ids, self.positions, self.slot_mapping, logit_rows, lengths = self._numbers[
            :, :total
        ]
        self.logit_rows = logit_rows[: rows + (chunk > 0)]
        self.batch = None
        if rows:
            self.batch = DecodeBatch(
                block_table=torch.zeros(rows, max_pages, dtype=torch.int32, device=device),
                seq_lens=lengths.view(torch.int32)[:rows],  # so that one copy brings all five
                slot_mapping=self.slot_mapping[:rows],
                lengths=(0,) * rows,
                static=True,
            )

    def write(
        self,
        decodes: list[Sequence],
        prompt: Prompt | None,
        page_size: int,
        former: Sampled | None = None,
    ) -> PrefillChunk | None:
        """Bring a step's inputs to the device; returns the prompt's chunk.

        Rows past the last decode row and past the chunk's end are empty, and write to the scratch
        page. The logits are those of the decode rows, then that of the chunk's last token. former:
        where pending tokens are. The device must have got the inputs of the step before.
        """
        host, count = self._host, len(decodes)
        host[:3, count : self.rows] = 0
        lengths = [0] * self.rows
        for row, seq in enumerate(decodes):
            position = seq.num_cached
            token = 0 if seq.num_pending else seq.tokens[position]
            host[:3, row] = token, position, seq.slot(position, page_size)
            lengths[row] = seq.num_tokens
        if prompt is not None:
            host[3] = np.arange(host.shape[1])
            host[3, count] = self._write_chunk(*prompt, page_size)
        self._host_lens[:] = lengths
        self._numbers.copy_(self._pinned, non_blocking=True)
        if former is not None:
            former.fill(self.token_ids, decodes)
        if self.batch is not None:
            self.batch.lengths = tuple(lengths)
            for row, seq in enumerate(decodes):
                self._write_pages(self.batch.block_table, row, seq.pages)
        if prompt is None:
            return None
        seq, tokens = prompt
        end = seq.num_cached + tokens
        pages = upload(seq.pages[: -(-end // page_size)], self._numbers.device, torch.int32)
        return PrefillChunk(pages, end, tokens)

    def _write_chunk(self, seq: Sequence, count: int, page_size: int) -> int:
        """Returns the row of the last token."""
        start, end = seq.num_cached, seq.num_cached + count
        positions = range(start, end)
        slots = [seq.slot(i, page_size) for i in positions]
        chunk = self._host[:3, self.rows : self.rows + self.chunk]
        chunk[:, count:] = 0
        chunk[:, :count] = seq.tokens[start:end], positions, slots
        return self.rows + count - 1

    def _write_pages(self, table: torch.Tensor, row: int, pages: list[int]) -> None:
        """Most steps have no new page, and of one that grows only the new ones are written."""
        written = self._written[row]
        if written == pages:
            return
        start = len(written) if written == pages[: len(written)] else 0
        table[row, start : len(pages)] = upload(pages[start:], table.device, torch.int32)
        self._written[row] = list(pages)
