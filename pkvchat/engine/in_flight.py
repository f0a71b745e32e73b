"""A step between the moment it is enqueued and the moment its tokens are known to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pkvchat.kernels.policy.policy import Decision

from .mark import Mark
from .sequence import Answer, Sequence
from .upload import upload


@dataclass(eq=False)
class Sampled:
    """Tokens that a step has picked. token_ids: [R] int64 on the device; rows: whose each one is.

    The step after it reads a sequence's pending token here.
    """

    token_ids: torch.Tensor
    rows: dict[Sequence, int]

    def fill(self, token_ids: torch.Tensor, sequences: list[Sequence]) -> None:
        """Write the pending tokens among those that ``sequences`` begin a step with.

        token_ids: [at least len(sequences)] int64, in their order.
        """
        targets = [i for i, seq in enumerate(sequences) if seq.num_pending]
        sources = [self.rows[sequences[i]] for i in targets]
        count = len(targets)
        if targets == sources == list(range(count)):  # the same batch as before: one copy
            token_ids[:count] = self.token_ids[:count]
        else:
            device = token_ids.device
            token_ids[upload(targets, device)] = self.token_ids[upload(sources, device)]


@dataclass(eq=False)
class InFlight:
    """answers: for whom each token is; a sequence may have ended that answer, and begun another.

    arriving: [R] int64, the tokens on the host, from ``done`` on.
    prefills: whose prompts it reads, and how many tokens each one then has of its KV.
    lengths: of the decode rows. num_prefill: tokens of prompts beside them.
    began: from where its time counts: the end of the step before, if that was still running.
    launched: its inputs are on the device, and the host may write over its copies.
    usual: it is not the first of its kind, which took longer.
    """

    sampled: Sampled
    answers: dict[Sequence, Answer]
    arriving: torch.Tensor
    prefills: list[tuple[Sequence, int]]
    lengths: tuple[int, ...]
    num_prefill: int
    decision: Decision | None
    began: Mark
    launched: Mark
    done: Mark
    usual: bool

    def still_wants(self, seq: Sequence) -> bool:
        """The answer that this step worked for is still under way."""
        return seq.answer is self.answers[seq]

    @property
    def step_s(self) -> float:
        return self.done.since(self.began)

    @property
    def idle_s(self) -> float:
        """How long the device waited for the host; its inputs' way there counts as waiting."""
        return self.launched.since(self.began)
