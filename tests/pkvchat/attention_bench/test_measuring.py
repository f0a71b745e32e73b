"""The benchmark's measurements, on small problems; never how long they take."""

from __future__ import annotations

import random

import pytest
import torch

from pkvchat.attention_bench.cases import Case
from pkvchat.attention_bench.check import Check
from pkvchat.attention_bench.counters import cpu_counters, cuda_segments, state_bytes
from pkvchat.attention_bench.floor import Floor
from pkvchat.attention_bench.layers import CaseProblem, measure_case, pool_pages
from pkvchat.attention_bench.problem import KvPool, Queries, decode_batch, kv_bytes
from pkvchat.attention_bench.server import Server, workload
from pkvchat.attention_bench.serving import count_calls, serve
from pkvchat.attention_bench.traces import Request
from pkvchat.errors import ChatError
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.kv import page_bytes

STRATEGIES = ("split", "workqueue", "sdpa")
REQUESTS = [Request(1600, 3, 0), Request(160, 2, 0), Request(320, 4, 1)]


@pytest.fixture(scope="module")
def work():
    return workload("mine", REQUESTS, 2, 7, 100, page_size=16, hole_fraction=0.5, max_pages=1000)


@pytest.fixture(scope="module")
def pool(shape, work):
    layers = work.pool_layers(page_bytes(1, shape), 16, shape.device)
    return KvPool(shape, max(work.num_pages * layers, pages_for(shape, (700, 30, 1))))


def pages_for(shape, lengths):
    case = Case("x", lengths, 4, 2)
    return pool_pages(case, page_bytes(1, shape), shape.page_size, shape.device)


def test_a_pools_pages_hold_different_values_and_no_zeros(pool):
    first, second = pool.layers(40, 2)
    assert not torch.equal(first, second)
    assert (first == 0).float().mean() < 1e-3
    assert second.std() == pytest.approx(1, rel=0.05)


def test_a_pool_larger_than_memory_is_refused(shape):
    with pytest.raises(ChatError, match=r"KV pages of this benchmark take .* are free: lower"):
        KvPool(shape, 1 << 40)


def test_a_workload_owns_pages_for_all_that_it_decodes(work):
    owned = [page for pages in work.pages.values() for page in pages]
    assert len(set(owned)) == len(owned)
    assert 2 * len(owned) <= work.num_pages - 1 <= 2 * len(owned) + 1  # half are holes
    for i, request in enumerate(REQUESTS):
        assert len(work.pages[i]) == -(-(request.prompt + request.decode) // 16)


def test_requests_that_never_run_own_no_pages():
    short = workload("mine", REQUESTS, 1, 7, 2, page_size=16, hole_fraction=0.0, max_pages=1000)
    assert list(short.pages) == [0]
    assert len(short.steps) == 2


def test_a_request_owns_the_pages_that_the_steps_reach():
    endless = [Request(31, 1 << 20, 0)] * 3
    short = workload("mine", endless, 2, 7, 2, page_size=16, hole_fraction=0.0, max_pages=7)
    assert {i: len(pages) for i, pages in short.pages.items()} == {0: 3, 1: 3}
    with pytest.raises(
        ChatError, match=r"\[x\] needs 7 KV pages in a layer .* memory for 6: lower"
    ):
        workload("[x]", endless, 2, 7, 2, page_size=16, hole_fraction=0.0, max_pages=6)


def test_a_trace_under_both_protocols(work, pool, roster):
    server = Server(work, pool, num_layers=2)
    calls, model = roster.engines(1), roster.engines(2)
    found = serve(server, calls, model, Floor(pool), 2, lambda stage, done, total: None)
    assert (found.steps, found.tokens) == (6, 9)
    assert found.kv_bytes == pytest.approx(
        sum(row.length for step in work.steps for row in step) * 2 * 2 * 64 * 4 / 6, abs=1
    )
    assert set(found.elapsed) == {"calls", "model"}
    for elapsed in found.elapsed.values():
        assert set(elapsed) == {*STRATEGIES, "adaptive", "oracle"}
        fixed = [elapsed[name].wall_ms for name in STRATEGIES]
        assert 0 < elapsed["oracle"].wall_ms <= min(fixed)
    for picks in found.picks.values():
        assert sum(picks.values()) == 2 * found.steps
        assert set(picks) <= set(STRATEGIES)
    assert set(found.errors) == {*STRATEGIES, "adaptive"}
    assert 0 < max(found.errors.values()) < 1e-5
    counters = count_calls(server, calls)
    assert counters["sdpa"].tasks == 1  # in the middle step one request is left
    assert counters["split"].launches is None


def test_each_call_reads_a_layer_that_is_not_the_last_ones(work, pool, roster):
    server = Server(work, pool, num_layers=2)
    engine = roster.engines(1).fixed[-1]
    seen = []
    for _ in range(2 * len(server.kv_layers)):
        server.call(engine, server.batches[0])
        seen.append(server.queries[2].out.clone())
    count = len(server.kv_layers)
    for i in range(count):
        assert torch.equal(seen[i], seen[i + count])
        assert not torch.equal(seen[i], seen[i + 1])


@pytest.mark.parametrize("between", [False, True])
def test_a_case(shape, pool, roster, between):
    problem = CaseProblem(Case("mine", (700, 30, 1), 4, 2, target=1.0), pool, 64, between)
    told = []
    found = measure_case(
        problem, roster.engines(32), Floor(pool), lambda *progress: told.append(progress)
    )
    assert told == [(done, len(found.times)) for done in range(len(found.times))]
    assert set(found.times) == {*STRATEGIES, "adaptive"}
    assert found.picked in STRATEGIES
    assert found.tokens == 731
    assert found.kv_bytes == kv_bytes((700, 30, 1), shape) == 731 * 2 * 2 * 64 * 4
    assert found.floor_us > 0
    assert all(timing.layer_us > 0 for timing in found.times.values())
    assert set(STRATEGIES) <= set(found.errors)


def make_check(shape, lengths=(200, 17, 90, 5, 60)):
    pool = KvPool(shape, 64)
    order = random.Random(1).sample(range(1, 64), 63)
    counts = [-(-length // 16) for length in lengths]
    pages = [[order.pop() for _ in range(count)] for count in counts]
    batch = decode_batch(pages, lengths, max(counts), shape.device)
    queries = Queries(shape, len(lengths))
    return Check(shape, batch, queries.q, pool.pages, queries.spec), batch, queries, pool


def test_a_right_answer_passes_and_a_wrong_one_does_not(shape, roster):
    check, batch, queries, pool = make_check(shape)
    (engine, *_) = roster.engines(1).fixed
    ((_, strategy),) = engine.strategies.items()
    strategy.plan(batch, 2)
    strategy.run(queries.q, pool.pages, queries.out, queries.spec)
    errors = check("mine", queries.out)
    assert errors.max < 1e-5
    assert errors.relative < 1e-5
    longest = queries.out.clone()
    longest[0] = longest[2]  # another row's answer
    with pytest.raises(ChatError, match=r"mine is wrong: max \|e\|"):
        check("mine", longest)
    with pytest.raises(ChatError, match="mine is wrong"):
        check("mine", queries.out * 1.01)  # small beside the tolerance, not beside the values
    unwritten = queries.out.clone()
    unwritten[3] = float("nan")
    with pytest.raises(ChatError, match="mine is wrong: there are values that are not numbers"):
        check("mine", unwritten)


def test_the_floor_of_as_many_bytes_is_measured_once(pool):
    floor = Floor(pool)
    assert floor(1 << 20) == floor(1 << 20) > 0


# --- counters ------------------------------------------------------------------------------------


def test_counters_of_the_torch_schedules(shape):
    lengths = (160, 16, 48)  # 10, 1 and 3 pages
    state = state_bytes(shape) * 2  # of both KV heads
    assert state_bytes(shape) == 2 * (64 + 2) * 4
    split = cpu_counters("split", shape, lengths, 4)  # of 3, 1 and 1 pages
    assert (split.tasks, split.merge_bytes) == (4 + 1 + 3, 7 * state)
    queue = cpu_counters("workqueue", shape, lengths, 4)  # of 3 pages
    assert (queue.tasks, queue.merge_bytes) == (4 + 1 + 1, 4 * state)
    rows = cpu_counters("sdpa", shape, lengths, 4)
    assert (rows.tasks, rows.merge_bytes) == (3, 0)


@pytest.mark.parametrize("lengths", [(5000,), (3000, 100, 1), (700,) * 5, (64,) * 40])
def test_counters_of_the_device_schedules(triton_shape, lengths):
    """Pieces are what the programs' equal shares cut the segments into."""
    from pkvchat.kernels.attention.planner_triton import Plan, share_planner
    from pkvchat.kernels.attention.split_triton import SplitTriton
    from pkvchat.kernels.attention.workqueue_triton import WorkqueueTriton

    shape = triton_shape
    pages = [[0] * -(-length // 16) for length in lengths]
    batch = decode_batch(pages, lengths, max(map(len, pages)), shape.device)
    queue = WorkqueueTriton(shape)
    pieces, programs, busy = cuda_segments(queue, shape, batch, 1)
    config = queue.config
    assert programs == config.num_programs
    assert len(pieces) == len(lengths) * shape.num_kv_heads
    plan = Plan.allocate(programs, shape.device)
    fill = share_planner(
        plan,
        0,
        num_kv_heads=shape.num_kv_heads,
        unit=config.unit,
        overhead=max(1, config.overhead // config.unit),
        min_share=max(1, config.min_share // config.unit),
        padding=config.padding,
    )
    fill(batch.seq_lens)
    share, overhead, step = plan.share.tolist()
    owners, at = [], 0  # programs of each unit, walking along the list of costs
    for length in lengths:
        units = -(-length // config.unit)
        cost = -(-(units + overhead) // step) * step
        for _ in range(shape.num_kv_heads):
            owners.append({(at + overhead + unit) // share for unit in range(units)})
            at += cost
    assert pieces == [len(owner) for owner in owners]
    assert busy >= len(set.union(*owners))

    split = SplitTriton(shape)
    pieces, programs, busy = cuda_segments(split, shape, batch, 3)
    widest = split.max_splits(len(lengths))
    assert programs == widest * len(lengths) * shape.num_kv_heads
    assert busy == sum(pieces) <= programs
    assert max(pieces) <= min(3, widest)


@pytest.fixture
def triton_shape():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return AttentionShape(8, 2, 64, 16, torch.float16, device)
