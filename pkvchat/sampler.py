"""Picks the next token of every row, on the device that holds the logits.

Filters run in llama.cpp's order: repeat penalty, top-k, top-p, min-p, and the temperature last.
Each answer draws from its own generator, so that what else is in the batch changes nothing.
"""

from __future__ import annotations

import torch

from .sequence import Answer, Sequence


class Sampler:
    """Between ``begin`` and ``forget`` a chat has its generator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._generators: dict[str, torch.Generator] = {}

    def begin(self, chat_id: str, seed: int) -> None:
        self._generators[chat_id] = torch.Generator(self.device).manual_seed(seed)

    def forget(self, chat_id: str) -> None:
        self._generators.pop(chat_id, None)

    def sample(self, logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
        """logits: [R, vocab_size] float32, one row per sequence; penalties change it in place.

        Returns R token ids.
        """
        answers = [s.answer for s in sequences]
        for row, seq in enumerate(sequences):
            if seq.answer is not None and seq.answer.params.repeat_penalty != 1.0:
                _penalise(logits[row], seq, seq.answer)
        tokens = logits.argmax(-1)
        for row, answer in enumerate(answers):
            if answer is not None and answer.params.temperature > 0:
                generator = self._generators[sequences[row].chat_id]
                tokens[row] = _draw(logits[row], answer, generator)
        return [int(t) for t in tokens.tolist()]


def _penalise(logits: torch.Tensor, seq: Sequence, answer: Answer) -> None:
    """Divide recent tokens' logits by the penalty, multiply those below 0 (arXiv:1909.05858)."""
    last = answer.params.repeat_last_n
    recent = seq.tokens if last < 0 else seq.tokens[max(0, len(seq.tokens) - last) :]
    if recent:
        ids = torch.tensor(sorted(set(recent)), device=logits.device)
        seen = logits[ids]
        penalty = answer.params.repeat_penalty
        logits[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)


def _draw(logits: torch.Tensor, answer: Answer, generator: torch.Generator) -> torch.Tensor:
    """One token of a row, [] int64. Candidates are sorted, the likeliest first."""
    params = answer.params
    k = params.top_k if 0 < params.top_k < logits.numel() else logits.numel()
    scores, ids = logits.topk(k)
    probs = scores.softmax(0)
    keep = probs.cumsum(0) - probs < params.top_p  # up to the one that reaches top_p
    keep &= probs >= params.min_p * probs[0]
    keep[0] = True
    weights = (scores / params.temperature).masked_fill(~keep, -torch.inf).softmax(0)
    return ids[torch.multinomial(weights, 1, generator=generator)[0]]
