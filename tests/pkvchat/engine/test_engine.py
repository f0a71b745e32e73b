"""The engine on a small random model: the same greedy tokens whatever happens around a chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pkvchat.engine.engine import Engine, RequestRefused
from pkvchat.kernels.attention.qkv import HeadNorm, Rotation, split_qkv
from pkvchat.models.causal_lm import CausalLM
from pkvchat.sampling import SamplingParams

MakeEngine = Callable[..., Engine]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
PROMPTS = {
    "a": [5, 9, 33, 2, 71],
    "b": list(range(1, 60)),
    "c": [7] * 16,
    "d": [(i * 37) % 97 for i in range(100)],
}


def drain(engine: Engine, limit: int = 2000) -> dict[str, list[int]]:
    """Run until idle; every chat's new tokens."""
    out: dict[str, list[int]] = {}
    for _ in range(limit):
        if engine.idle:
            return out
        for token in engine.step().tokens:
            out.setdefault(token.chat_id, []).append(token.token_id)
        engine.scheduler.check_integrity()
    raise AssertionError("the engine never came to rest")


def answer(engine: Engine, prompt: list[int], params: SamplingParams = GREEDY) -> list[int]:
    engine.submit("x", prompt, params)
    return drain(engine)["x"]


@pytest.fixture(scope="module")
def expected(model: CausalLM) -> dict[str, list[int]]:
    """Greedy tokens by plain causal attention over the whole text, without a cache."""

    def attend(
        layer: int, qkv: torch.Tensor, rotation: Rotation | None, norm: HeadNorm | None
    ) -> torch.Tensor:
        q, k, v = split_qkv(qkv, model.config.num_kv_heads, rotation, norm)
        group = q.shape[1] // k.shape[1]
        q, k, v = (
            x.transpose(0, 1)
            for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        )
        scale = model.layer_specs[layer].scale
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale
        ).transpose(0, 1)

    texts = {}
    for name, prompt in PROMPTS.items():
        tokens = list(prompt)
        for _ in range(GREEDY.max_tokens):
            logits = model.forward(
                torch.tensor(tokens),
                torch.arange(len(tokens)),
                attend,
                torch.tensor([len(tokens) - 1]),
            )
            tokens.append(int(logits.argmax()))
        texts[name] = tokens[len(prompt) :]
    return texts


@pytest.mark.parametrize("strategy", ["sdpa", "split", "workqueue"])
def test_alone_and_batched_under_every_strategy(
    make_engine: MakeEngine, expected: dict[str, list[int]], strategy: str
) -> None:
    for name, prompt in PROMPTS.items():
        assert answer(make_engine(strategy=strategy), prompt) == expected[name]
    engine = make_engine(strategy=strategy)
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, GREEDY)
    assert drain(engine) == expected


def test_chats_that_join_while_others_decode(
    make_engine: MakeEngine, expected: dict[str, list[int]]
) -> None:
    engine = make_engine()
    out: dict[str, list[int]] = {name: [] for name in PROMPTS}
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, GREEDY)
        for _ in range(5):
            for token in engine.step().tokens:
                out[token.chat_id].append(token.token_id)
    for chat_id, tokens in drain(engine).items():
        out[chat_id] += tokens
    assert out == expected


def test_prompts_in_small_chunks(make_engine: MakeEngine, expected: dict[str, list[int]]) -> None:
    engine = make_engine(max_chunk=7)
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, GREEDY)
    assert drain(engine) == expected


def test_preempted_answers_are_computed_again(
    make_engine: MakeEngine, expected: dict[str, list[int]]
) -> None:
    """10 pages hold one long chat and a little more: the others are preempted, some repeatedly."""
    engine = make_engine(num_pages=11)
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, GREEDY)
    assert drain(engine) == expected


def test_the_next_turn_keeps_the_cache(make_engine: MakeEngine) -> None:
    engine = make_engine()
    first = answer(engine, PROMPTS["b"])
    longer = PROMPTS["b"] + first + [3, 1, 4]
    cached = engine.submit("x", longer, GREEDY)
    assert cached == len(PROMPTS["b"] + first) - 1
    assert drain(engine)["x"] == answer(make_engine(), longer)


def test_an_edited_turn_recomputes_from_the_change(make_engine: MakeEngine) -> None:
    engine = make_engine()
    answer(engine, PROMPTS["d"])
    edited = [*PROMPTS["d"][:50], 11, *PROMPTS["d"][51:]]
    assert engine.submit("x", edited, GREEDY) == 50
    assert drain(engine)["x"] == answer(make_engine(), edited)


def test_a_fork_goes_its_own_way_and_leaves_the_source_alone(make_engine: MakeEngine) -> None:
    engine = make_engine()
    first = answer(engine, PROMPTS["b"])
    engine.fork("x", "y")
    used = engine.pool.num_used
    assert used == 6 + 1  # 82 cached tokens: 5 full pages shared, one partial page copied
    left, right = PROMPTS["b"] + first + [1], PROMPTS["b"] + first + [2]
    assert engine.submit("x", left, GREEDY) == 82
    assert engine.submit("y", right, GREEDY) == 82
    both = drain(engine)
    assert both == {"x": answer(make_engine(), left), "y": answer(make_engine(), right)}


def test_stop_keeps_what_was_generated(
    make_engine: MakeEngine, expected: dict[str, list[int]]
) -> None:
    engine = make_engine()
    engine.submit("x", PROMPTS["a"], GREEDY)
    tokens = [t.token_id for _ in range(6) for t in engine.step().tokens]
    assert engine.stop("x")
    assert not engine.stop("x")
    assert engine.idle
    assert tokens == expected["a"][:6]
    assert engine.submit("x", PROMPTS["a"] + tokens + [4], GREEDY) == len(PROMPTS["a"]) + 5


@pytest.mark.parametrize("at", [0, 7])
def test_a_stop_token_ends_the_answer(
    make_engine: MakeEngine, expected: dict[str, list[int]], at: int
) -> None:
    engine = make_engine()
    stop = expected["d"][at]
    engine.submit("x", PROMPTS["d"], GREEDY, frozenset([stop]))
    tokens = []
    while not engine.idle:
        tokens += engine.step().tokens
    first = expected["d"].index(stop)
    assert [t.token_id for t in tokens] == expected["d"][: first + 1]
    assert [t.finish for t in tokens] == [None] * first + ["stop"]


def test_max_tokens_and_the_context_end_an_answer(make_engine: MakeEngine) -> None:
    engine = make_engine(context=70)
    engine.submit("x", PROMPTS["b"], SamplingParams(temperature=0.0))
    tokens = []
    while not engine.idle:
        tokens += engine.step().tokens
    assert len(tokens) == 70 - len(PROMPTS["b"])
    assert tokens[-1].finish == "context"
    engine.submit("y", PROMPTS["a"], SamplingParams(temperature=0.0, max_tokens=1))
    assert [t.finish for t in engine.step().tokens] == ["length"]


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        ([], "the prompt is empty"),
        ([1] * 256, "256 tokens, 1 too many for a context of 256"),
        ([1] * 300, "300 tokens, 45 too many for a context of 256: shorten it, or raise -c$"),
        ([1] * 64, "needs 5 KV pages and the pool has 4"),
    ],
)
def test_prompts_that_do_not_fit_are_refused_with_numbers(
    make_engine: MakeEngine, prompt: list[int], line: str
) -> None:
    engine = make_engine(num_pages=5)
    with pytest.raises(RequestRefused, match=line):
        engine.submit("x", prompt, GREEDY)
    assert engine.idle
    assert engine.pool.num_used == 0


@pytest.mark.parametrize(
    ("limited_by", "advice"),
    [("-c", "raise -c"), ("--kv-memory", "raise --kv-memory"), ("", "take another model")],
)
def test_what_limits_the_context_is_named(
    make_engine: MakeEngine, limited_by: str, advice: str
) -> None:
    engine = make_engine(context=20, limited_by=limited_by)
    with pytest.raises(RequestRefused, match=f"context of 20: shorten it, or {advice}$"):
        engine.submit("x", [1] * 20, GREEDY)


@pytest.mark.parametrize("ahead", [False, True])
def test_who_waits_for_pages_is_told_once_who_holds_them(
    make_engine: MakeEngine, ahead: bool
) -> None:
    engine = make_engine(num_pages=10, ahead=ahead)
    engine.submit("first", [1] * 40, GREEDY)
    engine.submit("second", [2] * 20, GREEDY)
    engine.step()
    engine.submit("third", [3] * 100, GREEDY)
    notices = []
    while not engine.idle:
        notices += engine.step().notices
    ((chat_id, line),) = notices
    assert chat_id == "third"
    assert "waiting for 7 KV pages, and 4 are free: first (3), second (2) answering" in line


def test_one_answer_per_chat(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit("x", [1, 2], GREEDY)
    with pytest.raises(RequestRefused, match="still answering"):
        engine.submit("x", [1, 2], GREEDY)


def test_an_answer_that_outgrows_the_pool_ends_with_a_line(make_engine: MakeEngine) -> None:
    engine = make_engine(num_pages=4)
    engine.submit("x", [1] * 40, SamplingParams(temperature=0.0))
    ended = []
    while not engine.idle:
        ended += engine.step().ended
    assert [chat_id for chat_id, _ in ended] == ["x"]
    assert "49 tokens need more than the 3 pages" in ended[0][1]
    engine.close("x")
    assert engine.pool.num_used == 0


def test_a_record_for_every_decode_step(make_engine: MakeEngine) -> None:
    engine = make_engine(strategy="workqueue")
    engine.submit("a", PROMPTS["a"], GREEDY)
    assert engine.step().record is None  # the prompt
    engine.submit("c", PROMPTS["c"], GREEDY)
    alone = engine.step()  # shows how long it takes with nothing beside it
    assert alone.record is not None
    assert (alone.record.step, alone.prefilled) == (1, [])
    mixed = engine.step()
    assert mixed.record is not None
    assert (mixed.record.step, mixed.record.batch, mixed.record.seq_lens) == (2, 1, (7,))
    assert mixed.prefilled == [("c", 16, 16)]
    record = engine.step().record
    assert record is not None
    assert (record.step, record.strategy, record.batch) == (3, "workqueue", 2)
    assert record.seq_lens == (8, 17)
    assert (record.pages_used, record.pages_total) == (3, 63)
    assert record.reason
    assert record.step_ms > 0
    assert record.tokens_per_s == pytest.approx(2 / record.step_ms * 1e3)


def test_sampling_with_a_seed_repeats_and_ignores_the_batch(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=1.5, seed=11, max_tokens=30)
    alone = answer(make_engine(), PROMPTS["a"], params)
    assert answer(make_engine(), PROMPTS["a"], params) == alone
    other = answer(make_engine(), PROMPTS["a"], SamplingParams(1.5, seed=12, max_tokens=30))
    assert other != alone
    engine = make_engine()
    engine.submit("noise", PROMPTS["d"], SamplingParams(temperature=1.0))
    engine.submit("x", PROMPTS["a"], params)
    out: list[int] = []
    while len(out) < 30:
        out += [t.token_id for t in engine.step().tokens if t.chat_id == "x"]
    assert out == alone


def test_closing_an_answering_chat_frees_everything(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit("x", PROMPTS["d"], GREEDY)
    engine.step()
    engine.close("x")
    assert engine.idle
    assert engine.pool.num_used == 0


class Narrow:
    """A model on a device that has no memory for more than some tokens at once."""

    def __init__(self, model: CausalLM, most: int) -> None:
        self._model, self.most = model, most

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, token_ids: torch.Tensor, *others: Any) -> torch.Tensor:
        if len(token_ids) > self.most:
            raise torch.OutOfMemoryError("tried to allocate more than there is")
        return self._model.forward(token_ids, *others)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_device_without_memory_for_a_step_gets_smaller_ones(
    make_engine: MakeEngine, model: CausalLM, expected: dict[str, list[int]], ahead: bool
) -> None:
    engine = make_engine(ahead=ahead)
    engine.runner.model = Narrow(model, 40)
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, GREEDY)
    notices, out = [], {name: [] for name in PROMPTS}
    while not engine.idle:
        output = engine.step()
        notices += output.notices
        for token in output.tokens:
            out[token.chat_id].append(token.token_id)
    assert out == expected
    assert [line.split()[-2] for _, line in notices] == ["256", "128", "64", "32"]


def test_a_device_without_memory_for_the_least_step_ends_the_answers(
    make_engine: MakeEngine, model: CausalLM
) -> None:
    engine = make_engine()
    engine.runner.model = Narrow(model, 0)
    engine.submit("x", PROMPTS["a"], GREEDY)
    ended = []
    while not engine.idle:
        ended += engine.step().ended
    assert [chat_id for chat_id, _ in ended] == ["x"]
    assert "out of memory: end what else uses it" in ended[0][1]
    engine.runner.model = model
    assert len(answer(engine, PROMPTS["a"])) == GREEDY.max_tokens
    engine.scheduler.check_integrity()
