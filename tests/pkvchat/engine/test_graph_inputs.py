"""What CUDA graphs read follows the sequences, and nothing of the step before is left."""

from __future__ import annotations

import torch

from pkvchat.engine.graph_inputs import StepInputs
from pkvchat.engine.sequence import Sequence

CPU = torch.device("cpu")


def sequence(name: str, length: int, pages: list[int], cached: int | None = None) -> Sequence:
    cached = length - 1 if cached is None else cached
    return Sequence(name, list(range(100, 100 + length)), num_cached=cached, pages=pages)


def test_rows_come_grow_by_pages_leave_and_give_their_place_to_others():
    inputs = StepInputs(3, 0, 8, CPU)
    steps = (
        [("a", 20, [5, 2]), ("b", 33, [7, 1, 3])],
        [("a", 33, [5, 2, 9]), ("b", 34, [7, 1, 3])],
        [("b", 35, [7, 1, 3])],
        [("b", 36, [7, 1, 3]), ("c", 1, [4]), ("d", 16, [5])],
    )
    for rows in steps:
        assert inputs.write([sequence(*row) for row in rows], None, page_size=16) is None
        lengths = [length for _, length, _ in rows] + [0] * (3 - len(rows))
        assert inputs.batch is not None
        assert inputs.batch.lengths == tuple(lengths)
        assert inputs.batch.seq_lens.tolist() == lengths
        assert inputs.batch.seq_lens.dtype == torch.int32
        assert inputs.token_ids.tolist() == [99 + n if n else 0 for n in lengths]
        assert inputs.positions.tolist() == [max(0, n - 1) for n in lengths]
        assert inputs.logit_rows.tolist() == [0, 1, 2]
        slots = [pages[-1] * 16 + (n - 1) % 16 for _, n, pages in rows] + [0] * (3 - len(rows))
        assert inputs.batch.slot_mapping.tolist() == slots
        for row, (_, _, pages) in enumerate(rows):
            assert inputs.batch.block_table[row, : len(pages)].tolist() == pages


def test_a_prompts_chunk_follows_the_decode_rows():
    """Its last token's logits follow theirs, wherever its rows begin, and whatever it leaves."""
    inputs = StepInputs(3, 5, 8, CPU)
    a, b = sequence("a", 17, [6, 2]), sequence("b", 3, [4])
    prompt = sequence("c", 40, [9, 1, 7], cached=14)

    chunk = inputs.write([a, b], (prompt, 5), page_size=16)
    assert chunk is not None
    assert (chunk.context_len, chunk.num_tokens) == (19, 5)
    assert chunk.block_table.tolist() == [9, 1]
    assert inputs.token_ids.tolist() == [116, 102, 0, 114, 115, 116, 117, 118]
    assert inputs.positions.tolist() == [16, 2, 0, 14, 15, 16, 17, 18]
    slots = [2 * 16, 4 * 16 + 2, 0, 9 * 16 + 14, 9 * 16 + 15, 16, 17, 18]
    assert inputs.slot_mapping.tolist() == slots
    assert inputs.logit_rows.tolist()[:3] == [0, 1, 7]

    prompt.num_cached = 38
    chunk = inputs.write([b], (prompt, 2), page_size=16)
    assert chunk is not None
    assert (chunk.context_len, chunk.num_tokens) == (40, 2)
    assert chunk.block_table.tolist() == [9, 1, 7]
    assert inputs.token_ids.tolist() == [102, 0, 0, 138, 139, 0, 0, 0]
    assert inputs.slot_mapping.tolist() == [66, 0, 0, 7 * 16 + 6, 7 * 16 + 7, 0, 0, 0]
    assert inputs.logit_rows.tolist()[:2] == [0, 4]


def test_a_lone_prompt_has_no_decode_rows():
    inputs = StepInputs(0, 4, 8, CPU)
    chunk = inputs.write([], (sequence("a", 3, [5], cached=0), 3), page_size=16)
    assert inputs.batch is None
    assert chunk is not None
    assert inputs.slot_mapping.tolist() == [80, 81, 82, 0]
    assert inputs.logit_rows.tolist() == [2]
