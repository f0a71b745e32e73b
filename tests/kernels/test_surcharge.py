"""What whole steps of a model teach the policy about its strategies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.policy.calibration import Calibration, Calibrator
from pkvchat.kernels.policy.cost import CostModel, StrategyCost
from pkvchat.kernels.policy.policy import create_policy
from pkvchat.kernels.policy.records import Store
from pkvchat.kernels.policy.surcharge import StepTimes, Surcharge

SHAPE = AttentionShape(32, 8, 128, 16, torch.float16, torch.device("cuda"))
LAYERS = 32
COSTS = {
    "flashinfer": StrategyCost(call=12, tile=0.0019, path=1, task=0, merge=0, plan=90),
    "split": StrategyCost(call=6, tile=0.0018, path=1, task=0, merge=0.001, plan=7),
    "workqueue": StrategyCost(call=7, tile=0.0018, path=1, task=0, merge=0.001, plan=7),
}
MODEL = CostModel(SHAPE, 264, COSTS, LAYERS)
LENGTHS = (256, 8192, 32768)


def step(rows, length, rest_us, extra_us):
    """A step whose layers take rest_us, what attention is predicted to, and extra_us more."""
    tiles = [-(-length // 16)] * rows
    layer = {name: rest_us + MODEL.best(name, tiles)[0] + us for name, us in extra_us.items()}
    return StepTimes(rows, length, {name: us * LAYERS for name, us in layer.items()})


def test_nothing_is_charged_before_steps_are_timed():
    assert Surcharge([], MODEL)("split", (5000, 300)) == 0


def test_what_the_rest_of_a_step_takes_is_charged_to_nobody():
    nothing = dict.fromkeys(COSTS, 0.0)
    times = [step(1, length, 50 + length / 500, nothing) for length in LENGTHS]
    for name in COSTS:
        assert Surcharge(times, MODEL)(name, (3000,)) == pytest.approx(0, abs=1e-6)


def test_what_a_strategy_takes_more_than_the_others_is_charged_to_it():
    extra = {"flashinfer": 1.0, "split": 8.0, "workqueue": 5.0}
    charged = Surcharge([step(1, n, 100, extra) for n in LENGTHS], MODEL)
    for length in (1, 256, 3000, 32768, 120_000):
        assert charged("flashinfer", (length,)) == pytest.approx(0, abs=1e-6)
        assert charged("split", (length,)) == pytest.approx(7)
        assert charged("workqueue", (length,)) == pytest.approx(4)
        assert charged("sdpa", (length,)) == 0  # it was not timed


def test_between_two_lengths_it_grows_with_the_logarithm():
    extra = [{"flashinfer": 0.0, "split": us} for us in (8.0, 2.0)]
    times = [step(1, n, 100, each) for n, each in zip((512, 32768), extra, strict=True)]
    charged = Surcharge(times, MODEL)
    assert charged("split", (4096,)) == pytest.approx(5)
    assert charged("split", (512,)) == pytest.approx(8)
    assert charged("split", (32768,)) == pytest.approx(2)


def test_of_the_batch_sizes_timed_the_nearest_counts():
    times = [
        step(rows, 8192, 100, {"flashinfer": 0.0, "split": us}) for rows, us in ((1, 8.0), (8, 1.0))
    ]
    charged = Surcharge(times, MODEL)
    assert charged("split", (8192,) * 2) == pytest.approx(8)
    assert charged("split", (8192,) * 4) == pytest.approx(1)
    assert charged("split", (100, *(9000,) * 30)) == pytest.approx(1)


@given(
    lengths=st.lists(st.integers(1, 100_000), min_size=1, max_size=40),
    extra=st.lists(st.floats(0, 50), min_size=9, max_size=9),
)
def test_charges_are_never_below_nothing(lengths, extra):
    names = tuple(COSTS)
    times = [
        step(1, length, 100, dict(zip(names, extra[3 * i : 3 * i + 3], strict=True)))
        for i, length in enumerate(LENGTHS)
    ]
    charged = Surcharge(times, MODEL)
    for name in names:
        assert -1e-6 <= charged(name, lengths) <= 50 + 1e-6


@pytest.mark.parametrize("length", LENGTHS)
@given(us=st.lists(st.integers(1000, 9000), min_size=3, max_size=3, unique=True))
def test_the_policy_takes_what_was_fastest_in_the_model(length, us):
    """Whatever attention by itself is predicted to take."""
    measured = dict(zip(COSTS, us, strict=True))
    calibration = Calibration(264, COSTS)
    steps = [StepTimes(1, length, measured)]
    policy = create_policy("adaptive", SHAPE, calibration, list(COSTS), LAYERS, steps=steps)
    fastest = min(measured, key=measured.__getitem__)
    assert policy.choose((length,)).strategy == fastest


# --- the record ----------------------------------------------------------------------------------

CPU = AttentionShape(4, 2, 64, 16, torch.float32, torch.device("cpu"))
TIMES = [StepTimes(1, 256, {"split": 900.0, "workqueue": 1000.5})]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def recorded(store, model="llama", available=("split",), fresh=False, found=TIMES):
    """What a start gets, and whether it had to measure."""
    measured = []

    def measure():
        measured.append(1)
        return found

    calibrator = Calibrator(CPU.device, store=store, fresh=fresh, busy=lambda: False)
    return calibrator.steps(CPU, model, available, measure), bool(measured)


def test_times_are_kept_for_the_next_start(store):
    assert recorded(store) == (TIMES, True)
    assert recorded(store, found=[]) == (TIMES, False)
    assert not store.notes


@pytest.mark.parametrize(
    "change",
    [{"model": "another"}, {"available": ("split", "flashinfer")}, {"fresh": True}],
    ids=["another model", "another strategy", "calibrate"],
)
def test_times_of_something_else_are_not_used(store, change):
    recorded(store)
    assert recorded(store, **change) == (TIMES, True)


def test_no_times_are_not_kept(store):
    assert recorded(store, found=[]) == ([], True)
    assert recorded(store) == (TIMES, True)


@pytest.mark.parametrize(
    "damaged",
    [
        '"rows": 1.5, "length": 256, "us": {"split": 900.0}',
        '"rows": 0, "length": 256, "us": {"split": 900.0}',
        '"rows": 1, "length": 256, "us": {"split": -1}',
        '"rows": 1, "length": 256, "us": {"split": NaN}',
        '"rows": 1, "length": 256, "us": [900.0]',
        '"rows": 1, "us": {"split": 900.0}',
    ],
)
def test_a_damaged_record_is_set_aside_and_measured_again(store, damaged):
    recorded(store)
    (path,) = store.directory.iterdir()
    text = path.read_text()
    start, end = text.index("[") + 1, text.rindex("]")
    path.write_text(f"{text[:start]}{{{damaged}}}{text[end:]}")
    assert recorded(store) == (TIMES, True)
    assert "is damaged" in store.notes[0]
    assert path.with_suffix(".damaged").exists()
