"""Which strategy is chosen, and what a person is told about it."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pkvchat.kernels.attention import tile_config
from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.strategy import StrategyUnavailable
from pkvchat.kernels.policy import cost
from pkvchat.kernels.policy.calibration import Calibration
from pkvchat.kernels.policy.cost import StrategyCost, split_choices, strategy_work
from pkvchat.kernels.policy.measure_costs import Case, fit, missed, random_batch, weigh
from pkvchat.kernels.policy.policy import check_policy, create_policy, policy_names
from pkvchat.kernels.policy.records import SHIPPED
from pkvchat.kernels.policy.surcharge import StepTimes

CPU = AttentionShape(9, 3, 64, 16, torch.float32, torch.device("cpu"))
CUDA = AttentionShape(32, 8, 128, 16, torch.float16, torch.device("cuda"))
ON_CPU = ["split", "workqueue", "sdpa"]
# Splitting costs a merge; a call costs more than a task.
COSTS = {
    "split": StrategyCost(call=30, tile=0.3, path=1, task=2, merge=20, plan=100),
    "workqueue": StrategyCost(call=35, tile=0.3, path=1, task=2, merge=40, plan=200),
    "sdpa": StrategyCost(call=30, tile=0.4, path=1.1, task=2, merge=0, plan=50),
    "flashinfer": StrategyCost(call=5, tile=0.01, path=0.2, task=1, merge=0.01, plan=150),
}
CALIBRATION = Calibration(workers=2, costs=COSTS)

lengths = st.lists(st.integers(1, 100_000), min_size=1, max_size=16).map(tuple)


def policy(name="adaptive", shape=CPU, available=ON_CPU, calibration=CALIBRATION):
    return create_policy(name, shape, calibration, available, num_layers=32)


def test_names_are_adaptive_and_one_per_strategy():
    assert policy_names() == [
        "adaptive",
        "forced-flashinfer",
        "forced-split",
        "forced-workqueue",
        "forced-sdpa",
    ]


@pytest.mark.parametrize("name", ["", "split", "forced-", "forced-flash", "Adaptive"])
def test_unknown_policy_lists_those_there_are(name):
    with pytest.raises(ValueError, match="adaptive, forced-flashinfer, forced-split"):
        policy(name)


def test_forced_strategy_that_cannot_run_says_why():
    with pytest.raises(StrategyUnavailable, match=r"forced-flashinfer.*CUDA"):
        policy("forced-flashinfer")


@pytest.mark.parametrize(
    ("library", "strategies"), [("flashinfer", ["flashinfer"]), ("triton", ["split", "workqueue"])]
)
def test_a_library_that_is_missing_is_told_before_there_is_a_model(
    library, strategies, monkeypatch
):
    monkeypatch.setitem(sys.modules, library, None)
    for name in strategies:
        says = rf"--policy forced-{name}: {name} cannot be imported \(.*{library}.*\); install"
        with pytest.raises(StrategyUnavailable, match=says):
            check_policy(f"forced-{name}", "cuda")
    for name in ("adaptive", "forced-sdpa"):
        check_policy(name, "cuda")
    check_policy("forced-split", "cpu")


@pytest.mark.parametrize("name", ON_CPU)
@given(lengths=lengths)
def test_forced_policy_only_picks_the_splits(name, lengths):
    decision = policy(f"forced-{name}").choose(lengths)
    assert decision.strategy == name
    assert decision.num_splits >= 1
    assert list(decision.predicted_us) == [name]
    assert "forced" in decision.reason


@given(lengths=lengths)
def test_adaptive_picks_the_least_predicted_time(lengths):
    decision = policy().choose(lengths)
    assert set(decision.predicted_us) == set(ON_CPU)
    assert decision.predicted_us[decision.strategy] == min(decision.predicted_us.values())
    assert all(us > 0 for us in decision.predicted_us.values())


@given(lengths=lengths)
def test_the_order_of_rows_does_not_matter(lengths):
    forwards, backwards = policy().choose(lengths), policy().choose(lengths[::-1])
    assert forwards == backwards


def test_of_two_close_candidates_the_safer_one_is_chosen():
    def costs(us, error):
        return StrategyCost(0, 0, 0, 0, 0, 0, eager=us, error=error)

    close = {"split": costs(10, 0.05), "workqueue": costs(10.2, 0.01)}
    decision = policy(available=list(close), calibration=Calibration(2, close)).choose((900,))
    assert decision.strategy == "workqueue"
    assert decision.predicted_us == {"split": 10.0, "workqueue": 10.2}
    assert "workqueue and split should take about the same" in decision.reason


def test_the_reason_says_why_a_smaller_prediction_was_passed_over():
    flat = StrategyCost(call=100, tile=0, path=0, task=0, merge=0, plan=0)
    close = {"workqueue": flat, "split": replace(flat, call=99, error=0.1)}
    decision = policy(available=list(close), calibration=Calibration(264, close)).choose((4096,))
    assert decision.strategy == "workqueue"
    assert decision.reason.endswith("; split's 1% less is within its error")
    alike = {"workqueue": flat, "split": replace(flat, call=101, error=0.1)}
    decision = policy(available=list(alike), calibration=Calibration(264, alike)).choose((4096,))
    assert "error" not in decision.reason


def test_splits_that_fill_half_of_the_device_have_to_win_by_more():
    """What they take varies: of two that are as good as equal the full grid is chosen."""
    task = StrategyCost(call=10, tile=0, path=0, task=0, merge=0, plan=0)
    by_merges = replace(task, merge=0.05 / (16 * CUDA.num_kv_heads))  # 0.05 µs for 16 more pieces
    for close, expected in (by_merges, 32), (replace(by_merges, merge=0.01), 16):
        calibration = Calibration(264, {"split": close})
        decision = policy(shape=CUDA, available=["split"], calibration=calibration).choose((30000,))
        assert decision.num_splits == expected


def test_batch_and_length_change_the_choice():
    chosen = policy()
    assert chosen.choose((40,)).strategy == "sdpa"
    assert chosen.choose((8000,)).strategy == "split"
    assert chosen.choose((8000,)).num_splits > 1
    assert chosen.choose((300,) * 8).strategy == "workqueue"


def test_a_step_outside_a_graph_pays_for_its_launches():
    """Whatever attention itself takes, unless the device is busy for longer than that."""
    fast = StrategyCost(call=1, tile=0.001, path=0, task=1, merge=0, plan=10, eager=300)
    calibration = Calibration(264, COSTS | {"sdpa": fast})
    chosen = policy(shape=CUDA, available=list(COSTS), calibration=calibration)
    decision = chosen.choose((1000,))
    assert decision.strategy == "flashinfer"
    assert decision.predicted_us["sdpa"] > 300
    assert chosen.choose((120_000,) * 16).strategy == "sdpa"


@given(
    tiles=st.lists(st.integers(1, 9000), min_size=1, max_size=64),
    workers=st.integers(1, 200),
)
def test_splits_on_cuda_fill_the_device(tiles, workers):
    choices = split_choices("split", tiles, CUDA, workers)
    assert choices == sorted(set(choices))
    assert choices[0] >= 1
    assert choices[-1] <= max(tiles)
    programs = [n * len(tiles) * CUDA.num_kv_heads for n in choices]
    fills = any(workers <= 2 * count <= 2 * workers for count in programs)
    assert fills or choices[-1] == max(tiles) or 2 * programs[0] >= workers


def test_one_row_has_a_split_for_each_resident_program():
    """Or for nearly each, which leaves some room to the kernel behind it."""
    assert split_choices("split", [4096], CUDA, 264) == [16, 32, 33, 66]
    assert split_choices("split", [4096] * 40, CUDA, 264) == [1]
    assert split_choices("workqueue", [4096], CUDA, 264) == [1]


def test_a_decision_keeps_its_predictions():
    kept = policy()
    first = kept.choose((100,))
    before = dict(first.predicted_us)
    kept.choose((50_000,))
    assert first.predicted_us == before


@given(lengths=lengths, steps=st.lists(st.integers(1, 300), max_size=8))
def test_a_comparison_holds_while_rows_grow_a_little(lengths, steps):
    def predicted(policy, lengths):
        return policy.choose(tuple(lengths)).predicted_us["sdpa"]

    kept, lengths = policy("forced-sdpa"), lengths[:15]  # larger batches are held for longer
    for step in [0, *steps]:
        lengths = [length + step for length in lengths]
        earlier = [max(1, n - max(128, n // 32)) for n in lengths]
        least, most = (predicted(policy("forced-sdpa"), of) for of in (earlier, lengths))
        assert least <= predicted(kept, lengths) <= most


@given(before=lengths, after=lengths)
def test_a_comparison_is_of_the_rows_there_are(before, after):
    """Rows that came, went or began again are compared anew."""
    kept = policy("forced-split")
    kept.choose(before)
    decision, anew = kept.choose(after), policy("forced-split").choose(after)
    grown = len(before) == len(after) and all(
        0 <= b - a <= max(128, a // 32) for a, b in zip(before, after, strict=True)
    )
    assert grown or len(before) >= 16 or decision == anew


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda rows: rows[1:], True),
        (lambda rows: [*rows, 2000], True),
        (lambda rows: rows[::-1], True),
        (lambda rows: rows[3:], False),
        (lambda rows: [*rows[:-1], 9000], False),
        (lambda rows: [*rows[:-1], 100_000], False),
        (lambda rows: [length * 2 for length in rows], False),
    ],
    ids=["one less", "one more", "another order", "some less", "one grows", "one is long", "twice"],
)
def test_a_large_batch_is_compared_anew_when_more_than_a_row_changes(change, kept):
    rows = [2000 + 100 * row for row in range(32)]
    chosen = policy("forced-workqueue")
    before = chosen.choose(tuple(rows)).predicted_us
    after = chosen.choose(tuple(change(rows))).predicted_us
    assert (after is before) == kept


def test_layers_with_a_window_are_charged_for_what_they_see():
    def predicted(lengths, windows):
        given = create_policy("forced-sdpa", CPU, CALIBRATION, ON_CPU, 4, windows)
        return given.choose(lengths).predicted_us["sdpa"]

    everywhere, near = predicted((8000, 300), []), predicted((1024, 300), [])
    assert predicted((8000, 300), [1008] * 3) == pytest.approx((everywhere + 3 * near) / 4, abs=0.1)
    assert predicted((800, 300), [1008] * 3) == predicted((800, 300), [])
    assert predicted((8000, 300), [1008, 16, 16, 16]) < (everywhere + 3 * near) / 4


def reason_for(us, lengths=(900,), **options):
    """The reason where each strategy takes so many us, whatever the work."""
    costs = {name: StrategyCost(0, 0, 0, 0, 0, 0, eager=each) for name, each in us.items()}
    options = {"available": list(us), "calibration": Calibration(2, costs)} | options
    return policy(**options).choose(lengths).reason


def test_reasons_are_sentences():
    close = {"split": 10, "workqueue": 10.1, "sdpa": 50}
    assert reason_for(close) == (
        "1 chat of 900 tokens: split and workqueue should take about the same, 10.0 µs a layer"
    )
    assert reason_for(close | {"split": 400}, (300,) * 7 + (400,)) == (
        "8 chats of 300 to 400 tokens: workqueue should take 10.1 µs a layer, sdpa 50.0 (5.0x)"
    )
    assert reason_for({"workqueue": 100, "sdpa": 130}, (5, 5)) == (
        "2 chats of 5 tokens each: workqueue should take 100 µs a layer, sdpa 130 (30% more)"
    )
    assert reason_for({"sdpa": 3}) == "1 chat of 900 tokens: sdpa is all that runs here"
    forced = reason_for(close, name="forced-sdpa")
    assert forced == "1 chat of 900 tokens: sdpa, forced"


@pytest.mark.parametrize("shape", [CPU, CUDA], ids=["cpu", "cuda"])
@given(tiles=st.lists(st.integers(1, 5000), min_size=1, max_size=20), num_splits=st.integers(1, 64))
def test_work_covers_every_tile(shape, tiles, num_splits):
    for name in COSTS:
        if name == "flashinfer" and shape is CPU:
            continue
        work = strategy_work(name, tiles, num_splits, shape, workers=7)
        assert work.tiles >= 0.999 * sum(tiles) * shape.num_kv_heads
        if shape is CPU:
            assert work.path * 7 >= sum(tiles) * shape.num_kv_heads
        assert work.tasks >= 1


def idle_share(strategy, tiles, num_splits=1):
    """Of the bandwidth, while the schedule runs on an H200."""
    work = strategy_work(strategy, tiles, num_splits, CUDA, workers=264)
    return 1 - sum(tiles) * CUDA.num_kv_heads / work.tiles


def test_a_schedule_is_charged_for_the_bandwidth_that_it_leaves_idle():
    assert idle_share("split", [1023], 33) == pytest.approx(0)  # 264, all there is room for
    assert idle_share("split", [1000], 33) == pytest.approx(0.02, abs=0.01)  # of 31 pages, not 30.3
    assert idle_share("split", [1000], 4) == pytest.approx(1 - 1.1 * 32 / 132)
    assert idle_share("split", [1000] * 12, 2) == pytest.approx(0.07, abs=0.01)  # 192 programs
    assert idle_share("split", [1000] * 16, 2) < 0.01  # 256
    assert idle_share("split", [1000], 34) > 0.25  # the last 8 programs run alone
    assert idle_share("split", [1000] + [100] * 16, 2) > 0.3  # and so does the long row
    assert idle_share("workqueue", [1000] + [100] * 16) < 0.05
    assert idle_share("flashinfer", [1000] + [100] * 32) > 0.3  # has no piece left to cut it with
    assert idle_share("flashinfer", [1000] + [100] * 7) < 0.1


def test_a_program_of_short_pieces_is_charged_for_starting_each():
    """64 rows over 32 KV heads, 512 tokens in the mean: 147 µs where 48 of them are short, else
    126."""
    heads = AttentionShape(32, 32, 128, 16, torch.float16, torch.device("cuda"))
    even, ragged = (
        strategy_work("workqueue", tiles, 1, heads, workers=264)
        for tiles in ([32] * 64, [5] * 48 + [113] * 16)
    )
    assert 1.1 < ragged.tiles / even.tiles < 1.2


def test_the_next_call_waits_for_a_place():
    """But not where it is let in early and half of the device is free."""

    def path(rows, num_splits):
        return strategy_work("split", [32] * rows, num_splits, CUDA, workers=264).path

    assert cost._LATE_ROWS == tile_config._VECTORS
    assert path(2, 4) == 3  # 64 programs of two steps, all waited for
    assert path(4, 4) == 2  # 128 programs: two steps, and a place for each that follows
    assert path(8, 4) == pytest.approx(2 + 1 - 8 / 256)  # 256 programs
    assert path(8, 8) == 1  # a single step


def test_what_the_constants_miss_is_remembered_by_kind():
    def case(tiles, us, num_splits=8):
        batch = random_batch(CPU, tuple(16 * row for row in tiles), sum(tiles) + 1)
        return Case(
            batch, num_splits, strategy_work("split", tiles, num_splits, CUDA, 264), run_us=us
        )

    constants = StrategyCost(call=4, tile=0.002, path=0, task=0, merge=0, plan=0)
    slow = [case([128] * 4, 20.0), case([125] * 4, 20.0)]
    assert slow[0].work.kind == slow[1].work.kind
    known = replace(constants, missed=missed(slow, constants))
    for each in slow:
        assert 0.85 * 20 < known.predict(each.work, 1) < 20
        assert constants.predict(each.work, 1) < 13
    for other in (case([128] * 4, 1.0, 4), case([300] * 4, 1.0), case([512], 1.0, 32)):
        assert known.predict(other.work, 1) == constants.predict(other.work, 1)


def test_fit_finds_the_constants_it_was_made_from():
    samples = []
    for tiles in [(3,), (40,), (300,), (10,) * 4, (100, 7, 30, 2), (20,) * 8]:
        for num_splits in (1, 4):
            work = strategy_work("split", tiles, num_splits, CPU, workers=2)
            samples.append((work, COSTS["split"].predict(work, 10**9), 1.0))
    found = fit(samples, plan_us=100)
    for work, us, _ in samples:
        assert found.predict(work, 10**9) == pytest.approx(us, rel=0.02)
    assert found.plan == 100
    assert found.error < 0.02


def test_fit_never_pays_for_work():
    """Times that fall with more work would need negative constants."""
    samples = [
        (strategy_work("split", (n,), 1, CPU, workers=2), us, 1.0)
        for n, us in [(10, 50.0), (100, 40.0), (1000, 30.0)]
    ]
    found = fit(samples, plan_us=0)
    constants = (found.call, found.tile, found.path, found.task, found.merge)
    assert all(constant >= 0 for constant in constants)
    assert found.predict(samples[1][0], 1) > 0


def test_nothing_reads_faster_than_memory():
    """Many short rows took so long that long ones were predicted to beat the bandwidth."""
    cases = [([32] * rows, 60.0 * rows) for rows in (1, 2, 4)] + [([4000] * 4, 300.0)]
    samples = [
        (strategy_work("flashinfer", tiles, 1, CUDA, workers=264), us, 1.0) for tiles, us in cases
    ]
    assert fit(samples, plan_us=0).tile < 0.002
    assert fit(samples, plan_us=0, least_tile=0.002).tile >= 0.002


def test_fit_is_right_where_the_weight_is():
    """Times that no constants make: three times too long in the cases that nobody would choose."""
    samples = []
    for tiles in [(3,), (40,), (300,), (10,) * 4, (100, 7, 30, 2), (20,) * 8]:
        work = strategy_work("split", tiles, 1, CPU, workers=2)
        us = COSTS["split"].predict(work, 10**9)
        samples += [(work, us, 1.0), (work, 3 * us, 3.0**-4)]
    found = fit(samples, plan_us=100)
    for work, us, _ in samples[::2]:
        assert found.predict(work, 10**9) == pytest.approx(us, rel=0.05)
    assert found.error < 0.05


def test_cases_far_from_the_fastest_weigh_little():
    batch = random_batch(CPU, (64, 16), 8)
    work = strategy_work("split", (4, 1), 1, CPU, workers=2)
    cases = [Case(batch, splits, work, run_us=us) for splits, us in ((1, 10.0), (2, 20.0))]
    alone = Case(random_batch(CPU, (16,), 8), 1, work, run_us=50.0)
    weigh([*cases, alone])
    assert [case.weight for case in (*cases, alone)] == [1.0, 1 / 16, 1.0]


def on_an_h200(lengths, kv_heads=8):
    """What is chosen there, by the record that comes along."""
    name = f"nvidia-h200-32-{kv_heads}-heads-head-dim-128-page-size-16-float16.json"
    calibration = Calibration.from_json(json.loads((SHIPPED / name).read_text())["data"])
    shape = replace(CUDA, num_kv_heads=kv_heads)
    return policy(shape=shape, available=list(COSTS), calibration=calibration).choose(lengths)


@pytest.mark.parametrize("length", [8192, 32768])
def test_an_h200_is_not_left_partly_filled_where_batches_are_even(length):
    """Two splits of 12 rows are 192 programs, with room for 264: they took a tenth longer."""
    decision = on_an_h200((length,) * 12)
    assert decision.strategy == "workqueue" or decision.num_splits > 2


def test_rows_that_differ_by_half_go_to_the_workqueue_on_an_h200():
    """As in the paper's uniform trace, where splits took 3% longer."""
    for seed in range(5):
        rows = random.Random(seed)
        decision = on_an_h200(tuple(rows.randint(8192, 24576) for _ in range(8)))
        assert decision.strategy == "workqueue"


def test_ragged_rows_are_split_on_an_h200_where_the_longest_are_little_of_the_work():
    """2048 programs with room for 264: splits took 128 µs, FlashInfer 135, workqueue 147."""
    decision = on_an_h200((70,) * 16 + (270,) * 32 + (1300,) * 14 + (2000,) * 2, kv_heads=32)
    assert decision.strategy == "split"


def test_flashinfer_takes_no_shorter_steps_for_a_few_tokens():
    one, two = (strategy_work("flashinfer", [tiles], 1, CUDA, workers=264) for tiles in (1, 8))
    assert one.path == two.path
    assert one.tiles < two.tiles


def test_flashinfer_has_to_win_by_more_than_its_error():
    """Ours lose little where they are close; whole steps of the model know better."""
    close = {
        "flashinfer": StrategyCost(0, 0, 0, 0, 0, 0, eager=100, error=0.01),
        "workqueue": StrategyCost(0, 0, 0, 0, 0, 0, eager=100.5, error=0.015),
    }
    calibration = Calibration(264, close)
    by_itself = policy(shape=CUDA, available=list(close), calibration=calibration)
    assert by_itself.choose((8000,)).strategy == "workqueue"
    steps = [StepTimes(1, 8000, {"flashinfer": 5000.0, "workqueue": 5100.0})]
    in_model = create_policy("adaptive", CUDA, calibration, list(close), 32, steps=steps)
    assert in_model.choose((8000,)).strategy == "flashinfer"


def test_split_has_to_win_by_more_where_rows_differ():
    close = {
        "split": StrategyCost(0, 0, 0, 0, 0, 0, eager=98),
        "workqueue": StrategyCost(0, 0, 0, 0, 0, 0, eager=100),
    }
    chosen = policy(shape=CUDA, available=list(close), calibration=Calibration(264, close))
    assert chosen.choose((9000, 9000)).strategy == "split"
    assert chosen.choose((16000, 2000)).strategy == "workqueue"


def test_all_rows_first_pieces_start_first():
    """Long pieces that start last then run alone."""
    ragged = [4000, 1000]
    assert idle_share("split", ragged, 33) > idle_share("split", [2500, 2500], 33) + 0.05
