"""The paper's traces, their steps and their pages, as properties of pure functions."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.attention_bench.traces import (
    PAPER_SETTINGS,
    TRACES,
    Request,
    Setting,
    make_requests,
    place_pages,
    round_up,
    schedule,
    setting,
)

seeds = st.integers(0, 2**32)
page_sizes = st.sampled_from([1, 16, 32, 64])

# Of the prompt before it is rounded up, and of the answer; bimodal's long and short requests apart.
BOUNDS = {
    "bucketed": ((8192, 65536), (32, 96)),
    "homogeneous": ((32768, 32768), (32, 96)),
    "uniform": ((4096, 32768), (16, 96)),
    "zipf": ((2048 + 65536 / math.sqrt(32) - 513, 2048 + 65536 + 512), (8, 128)),
}


@settings(max_examples=30, deadline=None)
@given(seed=seeds, page_size=page_sizes, max_active=st.integers(1, 16))
@pytest.mark.parametrize("name", TRACES)
def test_lengths_keep_to_the_papers_bounds(name, seed, page_size, max_active):
    requests = make_requests(setting(name, max_active), seed, page_size)
    for i, request in enumerate(requests):
        if name == "bimodal":
            long = i % 4 == 0
            prompt, decode = ((24576, 65536), (32, 128)) if long else ((2048, 12288), (8, 64))
        else:
            prompt, decode = BOUNDS[name]
        assert prompt[0] <= request.prompt < prompt[1] + page_size
        assert request.prompt % page_size == 0
        assert decode[0] <= request.decode <= decode[1]
        assert request.arrival == i // max_active


def test_a_seed_gives_the_same_requests_and_another_does_not():
    for name in set(TRACES):
        one, again, other = (make_requests(setting(name, 8), s, 16) for s in (1, 1, 2))
        assert one == again
        assert one != other


def test_rounding_is_up_and_only_up():
    exact = make_requests(setting("uniform", 8), 7, page_size=1)
    paged = make_requests(setting("uniform", 8), 7, page_size=64)
    for one, other in zip(exact, paged, strict=True):
        assert 0 <= other.prompt - one.prompt < 64
        assert other.decode == one.decode


def test_bucketed_cycles():
    prompts = [request.prompt for request in make_requests(setting("bucketed", 1), 3, 16)]
    assert prompts == [8192, 16384, 32768, 65536] * 4


def test_settings_are_the_papers():
    assert [(s.name, s.max_active, s.requests, s.steps) for s in PAPER_SETTINGS] == [
        ("bucketed", 1, 16, 64),
        ("homogeneous", 8, 24, 48),
        ("bimodal", 4, 16, 48),
        ("bimodal", 8, 24, 48),
        ("uniform", 8, 24, 48),
        ("zipf", 8, 24, 48),
    ]


requests = st.lists(
    st.builds(Request, st.integers(1, 100), st.integers(1, 9), st.integers(0, 30)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(requests=requests, max_active=st.integers(1, 5))
def test_every_request_decodes_once_a_step_from_when_there_is_room(requests, max_active):
    steps = schedule(requests, max_active, max_steps=10_000)
    lengths: dict[int, list[int]] = {}
    for step in steps:
        rows = [row.request for row in step]
        assert 0 < len(rows) == len(set(rows)) <= max_active
        for row in step:
            lengths.setdefault(row.request, []).append(row.length)
    assert lengths == {
        i: [request.prompt + k for k in range(1, request.decode + 1)]
        for i, request in enumerate(requests)
    }
    for i in lengths:  # once it runs it runs until it is done
        at = [number for number, step in enumerate(steps) if i in {row.request for row in step}]
        assert at == list(range(at[0], at[0] + len(at)))
    order = [i for step in steps for i in dict.fromkeys(row.request for row in step)]
    came = list(dict.fromkeys(order))
    assert [requests[i].arrival for i in came] == sorted(request.arrival for request in requests)


@settings(max_examples=100, deadline=None)
@given(requests=requests, max_active=st.integers(1, 5))
def test_rows_join_at_their_arrival_if_there_is_room(requests, max_active):
    """Against a clock that ticks through idle time, too."""
    left = {i: request.decode for i, request in enumerate(requests)}
    active: list[int] = []
    expected = []
    for now in range(1000):
        come = sorted((r.arrival, i) for i, r in enumerate(requests) if r.arrival <= now)
        active += [i for _, i in come if left[i] and i not in active][: max_active - len(active)]
        if active:
            expected.append(
                [(i, requests[i].prompt + requests[i].decode - left[i] + 1) for i in active]
            )
        for i in active:
            left[i] -= 1
        active = [i for i in active if left[i]]
    steps = schedule(requests, max_active, max_steps=10_000)
    assert [[(row.request, row.length) for row in step] for step in steps] == expected


def test_steps_end_where_they_are_told_to():
    requests = [Request(10, 100, 0)] * 3
    assert len(schedule(requests, 2, 7)) == 7


def test_idle_time_takes_no_step():
    steps = schedule([Request(5, 2, 0), Request(7, 1, 1000)], 4, 50)
    assert [[row.length for row in step] for step in steps] == [[6], [7], [8]]


def test_paper_traces_fill_their_slots_from_the_first_step():
    """Request i arrives at step i // max_active, so that the first max_active come together."""
    for each in PAPER_SETTINGS:
        steps = schedule(make_requests(each, 20260623, 16), each.max_active, each.steps)
        assert len(steps) == each.steps
        assert len(steps[0]) == each.max_active
        assert max(map(len, steps)) == each.max_active


@settings(max_examples=100, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    hole_fraction=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    seed=seeds,
)
def test_pages_are_dealt_once_from_a_universe_with_holes(counts, hole_fraction, seed):
    pages, num_pages = place_pages(counts, hole_fraction, seed)
    assert [len(owned) for owned in pages] == counts
    dealt = Counter(page for owned in pages for page in owned)
    assert max(dealt.values(), default=1) == 1
    assert all(1 <= page < num_pages for page in dealt)  # page 0 is scratch
    universe = num_pages - 1
    assert universe - 1 < sum(counts) / (1 - hole_fraction) <= universe
    assert place_pages(counts, hole_fraction, seed) == (pages, num_pages)


def test_pages_are_scattered():
    (pages,), _ = place_pages([1000], 0.0, seed=1)
    neighbours = sum(b == a + 1 for a, b in pairwise(pages))
    assert sorted(pages) == list(range(1, 1001))
    assert neighbours < 10


@given(tokens=st.integers(0, 10_000), page_size=page_sizes)
def test_round_up(tokens, page_size):
    rounded = round_up(tokens, page_size)
    assert rounded % page_size == 0
    assert 0 <= rounded - tokens < page_size


def test_a_trace_beyond_the_papers_settings_keeps_their_proportion():
    assert setting("zipf", 32) == Setting("zipf", 32, 96, 48)
