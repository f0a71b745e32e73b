import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pkvchat.engine.pages import PagePool
from pkvchat.engine.scheduler import Schedule, Scheduler
from pkvchat.engine.sequence import Answer, Sequence, common_prefix
from pkvchat.sampling import SamplingParams

PAGE = 4


def answer(arrival: int, num_prompt: int) -> Answer:
    return Answer(SamplingParams(), frozenset(), num_prompt, arrival, seed=0, max_tokens=10_000)


def run(scheduler: Scheduler, plan: Schedule, token: int = 7) -> None:
    """What the engine does with a schedule, without a model."""
    for seq in plan.starved:
        scheduler.finish(seq)
    for seq, count in [(s, 1) for s in plan.decodes] + plan.prefills:
        assert scheduler.pages_for(seq.num_cached + count) <= len(seq.pages)
        seq.num_cached += count
        if seq.num_uncached == 0:
            seq.tokens.append(token)


class Chats(RuleBasedStateMachine):
    """Random chats that start, grow, fork, stop and close in a pool that is far too small."""

    @initialize(num_pages=st.integers(3, 24))
    def start(self, num_pages: int) -> None:
        self.scheduler = Scheduler(PagePool(num_pages), PAGE)
        self.arrivals = 0
        self.forks = 0

    @rule(
        chat=st.sampled_from("abcdef"),
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=40),
        continued=st.booleans(),
    )
    def begin(self, chat: str, prompt: list[int], continued: bool) -> None:
        seq = self.scheduler.sequences.get(chat)
        if seq is not None and seq.answer is not None:
            return
        if continued and seq is not None:
            prompt = seq.tokens + prompt
        if self.scheduler.pages_for(len(prompt) + 1) > self.scheduler.pool.capacity:
            return
        self.arrivals += 1
        seq = self.scheduler.begin(chat, prompt, answer(self.arrivals, len(prompt)))
        assert seq.num_cached < len(seq.tokens) == len(prompt)

    @rule(
        budget=st.integers(0, 16),
        max_prompts=st.sampled_from([None, 1, 2]),
        steps=st.integers(1, 8),
    )
    def step(self, budget: int, max_prompts: int | None, steps: int) -> None:
        for _ in range(steps):
            plan = self.scheduler.schedule(budget, max_prompts)
            assert sum(count for _, count in plan.prefills) <= budget
            assert max_prompts is None or len(plan.prefills) <= max_prompts
            assert all(s.num_uncached == 1 for s in plan.decodes)
            work = [*plan.decodes, *(s for s, _ in plan.prefills)]
            assert len({id(s) for s in work}) == len(work)
            self.scheduler.check_integrity()
            run(self.scheduler, plan)

    @rule(chat=st.sampled_from("abcdef"))
    def stop(self, chat: str) -> None:
        seq = self.scheduler.sequences.get(chat)
        if seq is not None:
            self.scheduler.finish(seq)

    @rule(chat=st.sampled_from("abcdef"))
    def close(self, chat: str) -> None:
        self.scheduler.remove(chat)

    @rule(chat=st.sampled_from("abcdef"))
    def fork(self, chat: str) -> None:
        if chat not in self.scheduler.sequences:
            return
        self.forks += 1
        source = self.scheduler.sequences[chat]
        copy = self.scheduler.fork(chat, f"fork{self.forks}")
        target = self.scheduler.sequences[f"fork{self.forks}"]
        full = source.num_cached // PAGE
        assert target.pages[:full] == source.pages[:full]
        assert target.tokens == source.tokens[: target.num_cached]
        if copy is not None:
            assert copy == (source.pages[full], target.pages[full])

    @invariant()
    def pages_are_sound(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(400):  # without new work every answer gets on, or is told it cannot
            self.drain_one()
        for chat in list(self.scheduler.sequences):
            self.scheduler.remove(chat)
        assert self.scheduler.pool.num_used == 0

    def drain_one(self) -> None:
        plan = self.scheduler.schedule(8)
        if self.scheduler.active():
            assert plan or plan.starved, "active answers, and nobody may run"
        run(self.scheduler, plan)
        for seq in self.scheduler.active():
            if seq.num_answered >= 3:
                self.scheduler.finish(seq)


TestChats = Chats.TestCase
TestChats.settings = settings(max_examples=120, stateful_step_count=25, deadline=None)


def new(num_pages: int = 20) -> Scheduler:
    return Scheduler(PagePool(num_pages), PAGE)


def settle(scheduler: Scheduler, seq: Sequence) -> None:
    """Prefill the whole prompt and end the answer."""
    while seq.num_uncached > 0 and seq.num_answered == 0:
        run(scheduler, scheduler.schedule(64))
    scheduler.finish(seq)


def test_a_long_prompt_never_stops_the_others() -> None:
    scheduler = new(100)
    short = scheduler.begin("short", [1, 2], answer(1, 2))
    run(scheduler, scheduler.schedule(8))
    long = scheduler.begin("long", list(range(100)), answer(2, 100))
    for _ in range(100 // 8):
        plan = scheduler.schedule(8)
        assert plan.decodes == [short]
        assert plan.prefills == [(long, 8)]
        run(scheduler, plan)


def test_the_next_turn_prefills_only_what_is_new() -> None:
    scheduler = new()
    seq = scheduler.begin("a", [1, 2, 3, 4, 5], answer(1, 5))
    settle(scheduler, seq)
    seq = scheduler.begin("a", [1, 2, 3, 4, 5, 7, 8, 9], answer(2, 8))
    assert seq.num_cached == 5
    seq.answer = None
    seq = scheduler.begin("a", [1, 2, 9, 9], answer(3, 4))
    assert seq.num_cached == 2
    assert len(seq.pages) == 1


def test_a_repeated_prompt_keeps_one_token_to_compute() -> None:
    scheduler = new()
    settle(scheduler, scheduler.begin("a", [1, 2, 3, 4], answer(1, 4)))
    assert scheduler.begin("a", [1, 2, 3, 4], answer(2, 4)).num_cached == 3


def test_chats_share_the_full_pages_of_a_common_prefix() -> None:
    scheduler = new()
    first = scheduler.begin("a", [*range(10), 50], answer(1, 11))
    settle(scheduler, first)
    second = scheduler.begin("b", [*range(10), 60], answer(2, 11))
    assert second.num_cached == 8
    assert second.pages == first.pages[:2]


def test_a_cut_inside_a_shared_page_moves_back_to_its_start() -> None:
    scheduler = new()
    settle(scheduler, scheduler.begin("a", list(range(9)), answer(1, 9)))
    scheduler.fork("a", "b")
    seq = scheduler.begin("b", [0, 1, 2, 3, 4, 5, 99], answer(2, 7))
    assert seq.num_cached == 4
    assert seq.pages == scheduler.sequences["a"].pages[:1]


def test_idle_chats_give_their_pages_before_any_answer_does() -> None:
    scheduler = new(7)
    settle(scheduler, scheduler.begin("old", [1] * 8, answer(1, 8)))
    settle(scheduler, scheduler.begin("newer", [2] * 4, answer(2, 4)))
    scheduler.begin("now", [3] * 12, answer(3, 12))
    plan = scheduler.schedule(64)
    assert [s.chat_id for s, _ in plan.prefills] == ["now"]
    assert scheduler.sequences["old"].pages == []
    assert scheduler.sequences["newer"].pages


def test_the_youngest_answer_is_preempted_and_computed_again() -> None:
    scheduler = new(6)
    old = scheduler.begin("old", [1] * 7, answer(1, 7))
    young = scheduler.begin("young", [2] * 7, answer(2, 7))
    run(scheduler, scheduler.schedule(64))
    assert scheduler.schedule(0).decodes == [old, young]
    for _ in range(20):
        run(scheduler, scheduler.schedule(64))
        if not young.pages:
            break
    assert not young.pages
    assert young.tokens[:7] == [2] * 7
    assert young.num_answered >= 1
    scheduler.finish(old)
    plan = scheduler.schedule(64)
    assert plan.prefills == [(young, len(young.tokens))]


def test_a_lone_answer_that_outgrows_the_pool_is_told_so() -> None:
    scheduler = new(3)
    seq = scheduler.begin("a", [1] * 7, answer(1, 7))
    for _ in range(4):
        plan = scheduler.schedule(64)
        if plan.starved:
            break
        run(scheduler, plan)
    assert plan.starved == [seq]
    assert len(seq.tokens) == 9


def test_fork_without_a_free_page_shares_the_full_ones() -> None:
    scheduler = new(4)
    settle(scheduler, scheduler.begin("a", [1] * 10, answer(1, 10)))
    assert scheduler.pool.num_free == 0
    assert scheduler.fork("a", "b") is None
    assert scheduler.sequences["b"].num_cached == 8


def test_unknown_and_existing_fork_names() -> None:
    scheduler = new()
    with pytest.raises(KeyError):
        scheduler.fork("nobody", "b")
    scheduler.begin("a", [1], answer(1, 1))
    with pytest.raises(ValueError, match="'a' already exists"):
        scheduler.fork("a", "a")


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [([], [], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([5], [6], 0)],
)
def test_common_prefix(a: list[int], b: list[int], length: int) -> None:
    assert common_prefix(a, b) == length
