"""Chats on the default model: the text a person reads, whatever runs beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pkvchat.engine.engine import Engine, RequestRefused
from pkvchat.messages import (
    Benched,
    ChatMessage,
    Close,
    Counted,
    CountTokens,
    Delta,
    Event,
    Failed,
    Finished,
    Fork,
    Notice,
    Pages,
    PolicyChanged,
    RunBench,
    SetPolicy,
    Started,
    Steps,
    Stop,
    Submit,
)
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.service import ChatService
from pkvchat.short_bench import ShortBench
from pkvchat.steps import StepWriter

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
EXPECTED = json.loads((Path(__file__).parent / "greedy.json").read_text(encoding="utf-8"))
KEYS = {
    "step",
    "strategy",
    "reason",
    "batch",
    "seq_lens",
    "num_splits",
    "predicted_us",
    "step_ms",
    "tokens_per_s",
    "pages_used",
    "pages_total",
    "pages_shared",
    "idle_ms",
}


@pytest.fixture(scope="module")
def steps_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps") / "steps.jsonl"


@pytest.fixture(scope="module")
def service(steps_path: Path) -> Iterator[ChatService]:
    options = EngineOptions(device="cpu", dtype="f32", context=1024, steps_path=str(steps_path))
    service = ChatService(options, lambda stage, done, total: None)
    yield service
    service.close()


def ask(chat_id: str, *texts: str, params: SamplingParams = GREEDY) -> Submit:
    roles = ("user", "assistant")
    messages = tuple(ChatMessage(roles[i % 2], text) for i, text in enumerate(texts))
    return Submit(chat_id, messages, params)


def run(service: ChatService, *commands: Submit) -> list[Event]:
    events = [event for command in commands for event in service.handle(command)]
    while not service.idle:
        events += service.poll()
    return events


def test_a_bench_between_answers_leaves_every_chats_kv(service: ChatService) -> None:
    run(service, ask("kept", "Hello!"))
    assert service.handle(RunBench()) == []
    assert not service.idle
    events: list[Event] = []
    while not service.idle:
        events += service.poll()
    (benched,) = events
    assert isinstance(benched, Benched)
    header, prompt, decode = (line.split() for line in benched.table.splitlines())
    assert header[:2] == ["test", "tokens/s"]
    assert (prompt[0], decode[0]) == ("pp128", "tg32")
    assert float(prompt[1]) > 0 < float(decode[1])
    (started, *_) = service.handle(ask("kept", "Hello!", "Hi", "And?"))
    assert isinstance(started, Started)
    assert started.cached_tokens > 20
    assert service.handle(RunBench()) == [Failed(None, "an answer runs: stop it before /bench")]
    run(service)
    for chat in ("kept", "bench-0"):
        service.handle(Close(chat))
    assert service._engine.pool.num_used == 0


def test_a_bench_takes_no_pages_that_chats_hold(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(num_pages=10)
    engine.submit("chat", list(range(90)), SamplingParams(max_tokens=1))
    with pytest.raises(RequestRefused, match="an answer runs"):
        ShortBench(engine)
    while not engine.idle:
        engine.step()
    with pytest.raises(RequestRefused, match="needs 9 free KV pages and there are 3"):
        ShortBench(engine)


def text(events: list[Event], chat_id: str) -> str:
    return "".join(e.text for e in events if isinstance(e, Delta) and e.chat_id == chat_id)


@pytest.mark.parametrize("strategy", ["sdpa", "split", "workqueue"])
def test_greedy_text_alone_and_batched(service: ChatService, strategy: str) -> None:
    assert service.handle(SetPolicy(f"forced-{strategy}")) == [PolicyChanged(f"forced-{strategy}")]
    prompts = list(EXPECTED)
    events = run(service, ask("alone", prompts[0]))
    assert text(events, "alone") == EXPECTED[prompts[0]]
    service.handle(Close("alone"))
    events = run(service, *(ask(prompt, prompt) for prompt in prompts))
    assert {prompt: text(events, prompt) for prompt in prompts} == EXPECTED
    records = [record for e in events if isinstance(e, Steps) for record in e.records]
    assert {record.strategy for record in records} == {strategy}
    assert max(record.batch for record in records) == len(prompts)
    for prompt in prompts:
        service.handle(Close(prompt))
    service.handle(SetPolicy("adaptive"))


def test_the_events_of_an_answer(service: ChatService) -> None:
    events = run(service, ask("a", "Say hello.", params=replace(GREEDY, max_tokens=6)))
    started, finished = events[0], events[-1]
    assert isinstance(started, Started)
    assert started.cached_tokens == 0
    assert isinstance(events[-2], Steps | Finished)
    finished = next(e for e in events if isinstance(e, Finished))
    assert (finished.reason, finished.new_tokens) == ("length", 6)
    assert finished.prompt_tokens == started.prompt_tokens
    assert finished.ttft_s > 0
    assert finished.tokens_per_s > 0
    again = run(service, ask("a", "Say hello.", text(events, "a"), "And again."))
    assert isinstance(again[0], Started)
    assert again[0].cached_tokens >= started.prompt_tokens
    service.handle(Close("a"))


def test_stop_and_the_next_turn(service: ChatService) -> None:
    events = service.handle(
        ask("a", "Count to one hundred.", params=replace(GREEDY, max_tokens=-1))
    )
    while not text(events, "a"):
        events += service.poll()
    stopped = service.handle(Stop("a"))
    assert [e.reason for e in stopped if isinstance(e, Finished)] == ["cancelled"]
    assert service.idle
    assert service.handle(Stop("a")) == []
    assert service.poll() == []
    service.handle(Close("a"))


def test_an_answer_that_was_cut_short_is_carried_on(service: ChatService) -> None:
    prompt = next(iter(EXPECTED))
    first = text(run(service, ask("a", prompt, params=replace(GREEDY, max_tokens=9))), "a")
    assert len(first) < len(EXPECTED[prompt])
    rest = run(service, ask("a", prompt, first, params=replace(GREEDY, max_tokens=15)))
    assert first + text(rest, "a") == EXPECTED[prompt]
    started = next(e for e in rest if isinstance(e, Started))
    assert started.cached_tokens >= started.prompt_tokens - 2, "the answer's KV is still there"
    service.handle(Close("a"))


def test_tokens_are_counted_as_the_prompt_would_have_them(service: ChatService) -> None:
    submit = ask("a", "Say hello.", params=replace(GREEDY, max_tokens=1))
    (counted,) = service.handle(CountTokens("a", 7, submit.messages))
    started = next(e for e in run(service, submit) if isinstance(e, Started))
    assert counted == Counted("a", 7, started.prompt_tokens)
    service.handle(Close("a"))


def test_a_prompt_that_is_too_long_says_by_how_much(service: ChatService) -> None:
    (failed,) = service.handle(ask("a", "word " * 2000))
    assert isinstance(failed, Failed)
    assert failed.chat_id == "a"
    assert "too many for a context of 1024" in failed.message
    assert service.idle


def test_an_unknown_policy_lists_the_valid_ones(service: ChatService) -> None:
    (failed,) = service.handle(SetPolicy("fastest"))
    assert isinstance(failed, Failed)
    assert failed.chat_id is None
    assert "'fastest'" in failed.message
    assert "forced-workqueue" in failed.message


def test_a_policy_that_cannot_run_here_says_why(service: ChatService) -> None:
    (failed,) = service.handle(SetPolicy("forced-flashinfer"))
    assert isinstance(failed, Failed)
    assert "CUDA" in failed.message


def test_fork_shares_the_conversation(service: ChatService) -> None:
    events = run(service, ask("a", "Name a colour."))
    answer = text(events, "a")
    (pages,) = service.handle(Fork("a", "b"))
    assert pages == Pages(pages.used, pages.used - 2, pages.total)  # the last is copied
    more = run(service, ask("b", "Name a colour.", answer, "Another."))
    assert isinstance(more[0], Started)
    assert more[0].cached_tokens > 20
    assert service.handle(Fork("nobody", "c")) == []
    (alone,) = service.handle(Close("b"))
    assert isinstance(alone, Pages)
    assert alone.shared == 0
    assert service.handle(Close("a")) == [Pages(0, 0, pages.total)]


def test_what_a_user_types_is_never_a_special_token(service: ChatService) -> None:
    plain = service.handle(ask("a", "stop"))
    service.handle(Close("a"))
    trick = service.handle(ask("a", "<|im_end|>"))
    service.handle(Close("a"))
    assert isinstance(plain[0], Started)
    assert isinstance(trick[0], Started)
    assert trick[0].prompt_tokens > plain[0].prompt_tokens + 2


def test_a_template_that_fails_on_a_conversation_is_told_in_its_chat(
    service: ChatService, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = service._started.loaded.template
    broken = template._sandbox.from_string("{{ raise_exception('no jokes') }}")
    for name, value in {"_template": broken, "fallback_note": "", "_merge_system": False}.items():
        monkeypatch.setattr(template, name, value)
    joke = ask("a", "Tell me a joke.")
    service.handle(CountTokens("a", 1, joke.messages))  # as the app does while it is typed
    notice, started = service.handle(joke)
    assert isinstance(notice, Notice)
    assert notice.chat_id == "a"
    assert "no jokes" in notice.message
    assert isinstance(started, Started)
    service.handle(Stop("a"))
    again = run(service, ask("b", "Hi.", params=replace(GREEDY, max_tokens=2)))
    assert not [event for event in again if isinstance(event, Notice)]
    for chat in "ab":
        service.handle(Close(chat))


def test_a_full_disk_ends_the_log_and_not_the_answer(
    service: ChatService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_steps", StepWriter("/dev/full"))
    events = run(service, ask("a", "Hi.", params=replace(GREEDY, max_tokens=4)))
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert notice.message.startswith("--steps: No space left on device; ")
    assert [e.reason for e in events if isinstance(e, Finished)] == ["length"]
    service.handle(Close("a"))


def test_steps_file_has_a_line_per_decode_step(service: ChatService, steps_path: Path) -> None:
    before = len(steps_path.read_text().splitlines())
    events = run(service, ask("a", "Hi.", params=replace(GREEDY, max_tokens=5)))
    lines = [json.loads(line) for line in steps_path.read_text().splitlines()[before:]]
    records = [record for e in events if isinstance(e, Steps) for record in e.records]
    assert len(lines) == len(records) == 4  # the first token comes from the prompt
    assert all(set(line) == KEYS for line in lines)
    assert [line["step"] for line in lines] == [record.step for record in records]
    assert lines[0]["seq_lens"] == list(records[0].seq_lens)
    service.handle(Close("a"))
