from hypothesis import given
from hypothesis import strategies as st

from pkvchat.messages import Delta, Event, Finished, Loading, Pages, Prefilled, Started, Steps
from pkvchat.process import coalesce
from pkvchat.steps import StepRecord


def record(step: int) -> StepRecord:
    return StepRecord(step, "sdpa", "why", 1, (5,), 1, {"sdpa": 1.0}, 2.0, 500.0, 1, 9)


chats = st.sampled_from("ab")
events = st.lists(
    st.one_of(
        st.builds(Delta, chats, st.text(max_size=3), st.integers(0, 2)),
        st.builds(Prefilled, chats, st.integers(0, 9), st.just(9)),
        st.builds(Started, chats, st.just(9), st.just(0)),
        st.builds(
            Finished, chats, st.just("stop"), st.just(9), st.just(1), st.just(0.1), st.just(1.0)
        ),
        st.builds(Pages, st.integers(0, 9), st.just(0), st.just(9)),
        st.builds(Steps, st.tuples(st.builds(record, st.integers(1, 99)))),
    ),
    max_size=30,
)


def story(events: list[Event], chat: str) -> list[tuple[str, object]]:
    """What one chat's reader sees: texts between the events that bound an answer."""
    out: list[tuple[str, object]] = [("text", ("", 0))]
    for event in events:
        if getattr(event, "chat_id", None) != chat or isinstance(event, Prefilled):
            continue
        if isinstance(event, Delta):
            text, count = out[-1][1]  # type: ignore[misc]
            out[-1] = ("text", (text + event.text, count + event.num_tokens))
        else:
            out += [(type(event).__name__, event), ("text", ("", 0))]
    return out


@given(events)
def test_coalescing_keeps_every_chats_story(batch: list[Event]) -> None:
    joined = coalesce(batch)
    for chat in "ab":
        assert story(joined, chat) == story(batch, chat)
        last = [e for e in batch if isinstance(e, Prefilled) and e.chat_id == chat][-1:]
        assert [e for e in joined if isinstance(e, Prefilled) and e.chat_id == chat][-1:] == last
    steps = [r for e in batch if isinstance(e, Steps) for r in e.records]
    assert [r for e in joined if isinstance(e, Steps) for r in e.records] == steps
    assert sum(isinstance(e, Steps) for e in joined) <= 1
    pages = [e for e in batch if isinstance(e, Pages)]
    assert [e for e in joined if isinstance(e, Pages)] == pages[-1:]


def test_a_frame_of_tokens_becomes_one_event_per_chat() -> None:
    batch: list[Event] = []
    for i in range(5):
        batch += [Delta("a", "x", 1), Delta("b", "y", 1), Steps((record(i),))]
    assert coalesce(batch) == [
        Delta("a", "xxxxx", 5),
        Delta("b", "yyyyy", 5),
        Steps(tuple(record(i) for i in range(5))),
    ]


def test_progress_shows_its_latest_state() -> None:
    batch: list[Event] = [Loading("weights", i, 9) for i in range(9)] + [Loading("warm-up", 0, 1)]
    assert coalesce(batch) == [Loading("weights", 8, 9), Loading("warm-up", 0, 1)]
