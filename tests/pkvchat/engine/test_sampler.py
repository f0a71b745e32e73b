from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.engine.in_flight import Sampled
from pkvchat.engine.sampler import Sampler
from pkvchat.engine.sequence import Answer, Sequence
from pkvchat.sampling import SamplingParams

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)


def sequence(params: SamplingParams, name: str = "a", tokens: list[int] | None = None) -> Sequence:
    tokens = tokens or [0]
    answer = Answer(params, frozenset(), len(tokens), 1, params.seed or 0, max_tokens=999)
    return Sequence(name, tokens, answer=answer)


def pick(
    sampler: Sampler,
    logits: torch.Tensor,
    sequences: list[Sequence],
    former: Sampled | None = None,
) -> list[int]:
    tokens: list[int] = sampler.sample(logits, sequences, former).token_ids.tolist()
    return tokens


def draws(logits: torch.Tensor, params: SamplingParams, count: int = 400) -> set[int]:
    sampler, seq = Sampler(torch.device("cpu")), sequence(params)
    sampler.begin("a", params.seed or 0)
    return {pick(sampler, logits[None].clone(), [seq])[0] for _ in range(count)}


PROBS = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15])


def test_greedy_takes_the_first_maximum() -> None:
    params = replace(OFF, temperature=0.0)
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]])
    rows = [sequence(params, "a"), sequence(params, "b")]
    assert pick(Sampler(torch.device("cpu")), logits, rows) == [1, 0]


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 1}, {1}),
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.4}, {1}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.71}, {1, 3, 4}),
        ({"min_p": 0.3}, {1, 3, 4}),
        ({"min_p": 1.0}, {1}),
        # top-p sees what top-k left: 0.4/0.7 already reaches 0.55
        ({"top_k": 2, "top_p": 0.55}, {1}),
        # the temperature comes last: it never changes who is kept
        ({"top_p": 0.5, "temperature": 5.0}, {1, 3}),
    ],
)
def test_filters(change: dict[str, float], allowed: set[int]) -> None:
    assert draws(PROBS.log(), replace(OFF, **change)) == allowed


def test_frequencies_follow_the_probabilities() -> None:
    sampler, seq = Sampler(torch.device("cpu")), sequence(OFF)
    sampler.begin("a", 1)
    logits = PROBS.log()[None]
    counts = torch.zeros(5)
    for _ in range(4000):
        counts[pick(sampler, logits.clone(), [seq])[0]] += 1
    assert torch.allclose(counts / 4000, PROBS, atol=0.03)


def test_temperature_sharpens() -> None:
    sampler, seq = Sampler(torch.device("cpu")), sequence(replace(OFF, temperature=0.25))
    sampler.begin("a", 1)
    hits = sum(pick(sampler, PROBS.log()[None].clone(), [seq])[0] == 1 for _ in range(2000))
    expected = 0.4**4 / float((PROBS**4).sum())
    assert abs(hits / 2000 - expected) < 0.04


@pytest.mark.parametrize(("tokens", "last_n", "expected"), [([0, 1], 64, 2), ([0, 1, 2], 1, 0)])
def test_repeat_penalty_looks_at_recent_tokens(
    tokens: list[int], last_n: int, expected: int
) -> None:
    params = replace(OFF, temperature=0.0, repeat_penalty=2.0, repeat_last_n=last_n)
    logits = torch.tensor([[3.0, 2.9, 2.0, -1.0]])
    sampler = Sampler(torch.device("cpu"))
    assert pick(sampler, logits.clone(), [sequence(params, tokens=tokens)]) == [expected]
    # The same where the host does not know the last token yet.
    behind = sequence(params, tokens=tokens[:-1])
    behind.num_pending = 1
    former = Sampled(torch.tensor([7, tokens[-1]]), {sequence(params): 0, behind: 1})
    assert pick(sampler, logits.clone(), [behind], former) == [expected]


def test_repeat_penalty_pushes_negative_logits_down() -> None:
    params = replace(OFF, temperature=0.0, repeat_penalty=4.0)
    logits = torch.tensor([[-1.0, -2.0]])
    assert pick(Sampler(torch.device("cpu")), logits, [sequence(params, tokens=[0])]) == [1]


@given(seed=st.integers(0, 2**63 - 1), others=st.integers(0, 4))
@settings(max_examples=20, deadline=None)
def test_an_answer_does_not_depend_on_its_neighbours(seed: int, others: int) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(seed % 1000))

    def text(extra: int) -> list[int]:
        sampler = Sampler(torch.device("cpu"))
        rows = [sequence(replace(OFF, seed=i), f"other{i}") for i in range(extra)]
        rows.append(sequence(replace(OFF, seed=seed)))
        for row in rows:
            sampler.begin(row.chat_id, row.answer.seed if row.answer else 0)
        return [pick(sampler, logits.repeat(extra + 1, 1), rows)[-1] for _ in range(10)]

    assert text(0) == text(others)


def test_rows_with_filters_of_their_own_are_drawn_together() -> None:
    """As each would be alone: with no top-k, with two kinds of it, greedy, and penalised."""
    kinds = [
        replace(OFF, seed=5),
        replace(OFF, seed=6, top_k=3, temperature=3.0),
        replace(OFF, temperature=0.0),
        replace(OFF, seed=7, top_k=3, top_p=0.6, min_p=0.2),
        replace(OFF, seed=8, top_k=2, repeat_penalty=9.0),
    ]
    logits = torch.randn(len(kinds), 40, generator=torch.Generator().manual_seed(0))

    def texts(*chosen: int) -> list[list[int]]:
        sampler = Sampler(torch.device("cpu"))
        rows = [sequence(kinds[i], str(i), [3, 4]) for i in chosen]
        for row in rows:
            sampler.begin(row.chat_id, row.answer.seed if row.answer else 0)
        return [pick(sampler, logits[list(chosen)].clone(), rows) for _ in range(30)]

    together = list(zip(*texts(0, 1, 2, 3, 4), strict=True))
    for i in range(len(kinds)):
        assert [token for (token,) in texts(i)] == list(together[i])
