"""One step ahead of the known tokens, whatever happens between steps: the texts stay the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pkvchat.engine.engine import Engine, RequestRefused
from pkvchat.sampling import SamplingParams

MakeEngine = Callable[..., Engine]
Text = list[int]

PROMPTS = ([5, 9, 33], list(range(1, 60)), [7] * 16, [(i * 37) % 97 for i in range(100)])
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
PARAMS = (
    GREEDY,
    replace(GREEDY, max_tokens=1),
    replace(GREEDY, max_tokens=-1),
    replace(GREEDY, repeat_penalty=1.7, repeat_last_n=5),
    SamplingParams(temperature=1.2, seed=3, max_tokens=20),
    SamplingParams(temperature=0.9, seed=4, top_k=5, repeat_penalty=1.2, max_tokens=30),
)
STOP_IDS = (frozenset[int](), frozenset(range(0, 97, 9)))
CONTEXT = 130

asks = st.tuples(
    st.sampled_from(range(len(PROMPTS))),
    st.sampled_from(range(len(PARAMS))),
    st.sampled_from(range(len(STOP_IDS))),
)
chats = st.sampled_from("abc")
actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), chats, asks),
        st.tuples(st.just("submit"), chats, asks),
        st.tuples(st.just("step"), st.integers(1, 9), st.none()),
        st.tuples(st.just("step"), st.integers(1, 30), st.none()),
        st.tuples(st.just("stop"), chats, st.none()),
        st.tuples(st.just("close"), chats, st.none()),
        st.tuples(st.just("fork"), chats, chats),
    ),
    max_size=30,
)


class Story:
    """What an engine says, answer by answer."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: list[tuple[tuple[int, int, int], Text, list[str]]] = []
        self._current: dict[str, int] = {}

    def submit(self, chat: str, ask: tuple[int, int, int]) -> None:
        prompt, params, stop = ask
        try:
            self.engine.submit(chat, PROMPTS[prompt], PARAMS[params], STOP_IDS[stop])
        except RequestRefused:
            return
        self._current[chat] = len(self.answers)
        self.answers.append((ask, [], []))

    def step(self) -> None:
        output = self.engine.step()
        for token in output.tokens:
            _, text, finish = self.answers[self._current[token.chat_id]]
            assert not finish, "an answer goes on after its end"
            text.append(token.token_id)
            if token.finish:
                finish.append(token.finish)
        for chat, _line in output.ended:
            self.answers[self._current[chat]][2].append("starved")
        self.engine.scheduler.check_integrity()

    def act(self, what: str, first: object, second: object) -> None:
        sequences = self.engine.scheduler.sequences
        match what, first, second:
            case "submit", str(chat), tuple(ask):
                self.submit(chat, ask)
            case "step", int(count), _:
                for _ in range(count):
                    self.step()
            case "stop", str(chat), _:
                self.engine.stop(chat)
            case "close", str(chat), _:
                self.engine.close(chat)
            case "fork", str(source), str(target):
                if source in sequences and target not in sequences:
                    self.engine.fork(source, target)

    def rest(self) -> None:
        for _ in range(3000):
            if self.engine.idle:
                return
            self.step()
        raise AssertionError("the engine never came to rest")


@pytest.fixture(scope="module")
def alone() -> dict[tuple[int, int, int], tuple[Text, list[str]]]:
    """Answers already computed, each with nothing beside it and nothing ahead."""
    return {}


@pytest.mark.parametrize("ahead", [False, True])
@given(actions=actions, num_pages=st.sampled_from([12, 16, 60]), chunk=st.sampled_from([9, 512]))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_answer_is_what_it_would_be_alone(
    make_engine: MakeEngine,
    alone: dict[tuple[int, int, int], tuple[Text, list[str]]],
    ahead: bool,
    actions: list[tuple[str, object, object]],
    num_pages: int,
    chunk: int,
) -> None:
    engine = make_engine(num_pages, context=CONTEXT, max_chunk=chunk, ahead=ahead)
    story = Story(engine)
    for action in actions:
        story.act(*action)
    story.rest()
    for ask, text, finish in story.answers:
        if ask not in alone:
            by_itself = Story(make_engine(context=CONTEXT, ahead=False))
            by_itself.submit("x", ask)
            by_itself.rest()
            ((_, *alone[ask]),) = by_itself.answers
        whole, end = alone[ask]
        if finish and finish != ["starved"]:
            assert (text, finish) == (whole, end)
        else:
            assert text == whole[: len(text)]
    for chat in list(engine.scheduler.sequences):
        engine.close(chat)
    assert engine.pool.num_used == 0


def rest(engine: Engine) -> Text:
    """The tokens of chat x until nobody answers any more."""
    tokens: Text = []
    while not engine.idle:
        tokens += [token.token_id for token in engine.step().tokens if token.chat_id == "x"]
    return tokens


def test_a_step_is_enqueued_before_the_tokens_of_the_last_are_handed_out(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(ahead=True)
    engine.submit("x", PROMPTS[0], GREEDY)
    assert engine.step().tokens == []  # the prompt is enqueued
    seq = engine.scheduler.sequences["x"]
    for answered in range(1, 20):
        assert len(engine.step().tokens) == 1
        assert (seq.num_answered, seq.num_pending) == (answered + 1, 1)
    assert [token.finish for token in engine.step().tokens] == ["length"]
    assert engine.idle
    assert seq.num_cached == len(PROMPTS[0]) + 19, "nothing is computed past the last token"


def test_what_a_step_found_too_late_is_not_shown_and_not_kept(make_engine: MakeEngine) -> None:
    reference = make_engine(ahead=False)
    reference.submit("x", PROMPTS[1], GREEDY)
    texts = [token.token_id for _ in range(20) for token in reference.step().tokens]
    at = next(i for i in range(5, 20) if texts[i] not in texts[:i])
    engine = make_engine(ahead=True)
    engine.submit("x", PROMPTS[1], GREEDY, frozenset([texts[at]]))
    assert rest(engine) == texts[: at + 1]
    seq = engine.scheduler.sequences["x"]
    assert seq.tokens == PROMPTS[1] + texts[: at + 1]
    assert seq.num_pending == 0
    assert engine.step().tokens == []
    # The next turn keeps all of it, the stop token's KV included: the step behind had written it.
    longer = [*PROMPTS[1], *texts[: at + 1], 4, 4]
    assert engine.submit("x", longer, GREEDY) == len(longer) - 2
    fresh = make_engine(ahead=False)
    fresh.submit("x", longer, GREEDY)
    assert rest(engine) == rest(fresh)


def test_an_answer_that_stops_where_the_pool_ends_has_stopped(make_engine: MakeEngine) -> None:
    """The step behind would need a page that there is not, for a token that ends the answer."""
    reference = Story(make_engine(ahead=False))
    reference.submit("x", (1, 2, 0))
    reference.rest()
    text = reference.answers[0][1]
    at = next(i for i in range(len(text)) if (59 + i) % 16 == 0 and text[i] not in text[:i])
    engine = make_engine(1 + (59 + at) // 16, ahead=True)
    engine.submit("x", PROMPTS[1], PARAMS[2], frozenset([text[at]]))
    outputs = []
    while not engine.idle:
        outputs.append(engine.step())
    assert not any(output.ended for output in outputs)
    assert [token.finish for token in outputs[-1].tokens] == ["stop"]


def test_an_answer_begun_in_the_place_of_a_stopped_one_gets_none_of_its_tokens(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(ahead=True)
    engine.submit("other", PROMPTS[2], replace(GREEDY, max_tokens=60))
    engine.submit("x", PROMPTS[0], GREEDY)
    for _ in range(6):
        engine.step()
    engine.stop("x")
    engine.submit("x", PROMPTS[3], GREEDY)
    story = Story(make_engine(ahead=False))
    story.submit("x", (3, 0, 0))
    story.rest()
    assert rest(engine) == story.answers[0][1]
