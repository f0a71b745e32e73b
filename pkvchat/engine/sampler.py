"""Picks the next token of every row, on the device that holds the logits, without waiting for it.

Filters run in llama.cpp's order: repeat penalty, top-k, top-p, min-p, and the temperature last.
Each answer draws from its own generator, so that what else is in the batch changes nothing.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from .in_flight import Sampled
from .sequence import Answer, Sequence
from .upload import upload


class Sampler:
    """Between ``begin`` and ``forget`` a chat has its generator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._generators: dict[str, torch.Generator] = {}

    def begin(self, chat_id: str, seed: int) -> None:
        self._generators[chat_id] = torch.Generator(self.device).manual_seed(seed)

    def forget(self, chat_id: str) -> None:
        self._generators.pop(chat_id, None)

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, sequences: list[Sequence], former: Sampled | None = None
    ) -> Sampled:
        """logits: [R, vocab_size] float32, one row per sequence; penalties change it in place.

        former: where the sequences' pending tokens are.
        """
        drawn: defaultdict[int, list[int]] = defaultdict(list)  # rows by their number of candidates
        for row, seq in enumerate(sequences):
            if seq.answer is not None and seq.answer.params.repeat_penalty != 1.0:
                _penalise(logits[row], seq, seq.answer, former)
            if seq.answer is not None and seq.answer.params.temperature > 0:
                top_k, limit = seq.answer.params.top_k, logits.shape[1]
                drawn[top_k if 0 < top_k < limit else limit].append(row)
        tokens = logits.argmax(-1)
        for k, rows in drawn.items():
            at = upload(rows, self.device)
            tokens[at] = self._draw(logits[at], k, [sequences[row] for row in rows])
        return Sampled(tokens, {seq: row for row, seq in enumerate(sequences)})

    def _draw(self, logits: torch.Tensor, k: int, sequences: list[Sequence]) -> torch.Tensor:
        """[R] int64, a token for each row of ``logits``. Candidates are sorted, likeliest first."""
        params = [seq.answer.params for seq in sequences if seq.answer is not None]
        limits = [[p.temperature, p.top_p, p.min_p] for p in params]
        temperature, top_p, min_p = upload(limits, self.device, torch.float32)[..., None].unbind(1)
        scores, ids = logits.topk(k)
        probs = scores.softmax(1)
        keep = probs.cumsum(1) - probs < top_p  # up to the one that reaches top_p
        keep &= probs >= min_p * probs[:, :1]
        keep[:, 0] = True
        weights = (scores / temperature).masked_fill_(~keep, -torch.inf).softmax(1)
        # The least of exponential variates, each over its weight, is a draw by those weights.
        races = torch.empty_like(weights)
        for race, seq in zip(races, sequences, strict=True):
            race.exponential_(generator=self._generators[seq.chat_id])
        return ids.gather(1, (weights / races).argmax(1, keepdim=True)).squeeze(1)


def _penalise(logits: torch.Tensor, seq: Sequence, answer: Answer, former: Sampled | None) -> None:
    """Divide recent tokens' logits by the penalty, multiply those below 0 (arXiv:1909.05858)."""
    last = answer.params.repeat_last_n
    known = len(seq.tokens) if last < 0 else min(len(seq.tokens), last - seq.num_pending)
    recent = seq.tokens[len(seq.tokens) - known :] if known > 0 else []
    ids = upload(recent, logits.device)
    if seq.num_pending and last != 0:
        assert former is not None, "a pending token comes from the step before"
        row = former.rows[seq]
        ids = torch.cat((ids, former.token_ids[row : row + 1]))
    seen = logits[ids]  # one that stands here twice is changed twice to the same value
    penalty = answer.params.repeat_penalty
    logits[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)
