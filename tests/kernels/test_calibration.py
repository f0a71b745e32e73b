"""Calibration records: measured once, kept, and never trusted when damaged."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import torch

from pkvchat.kernels.attention.batch import AttentionShape
from pkvchat.kernels.attention.registry import STRATEGIES, why_unavailable
from pkvchat.kernels.policy.calibration import Calibration, Calibrator, DeviceTypes
from pkvchat.kernels.policy.cost import StrategyCost
from pkvchat.kernels.policy.policy import create_policy
from pkvchat.kernels.policy.records import VERSION, Store, device_key, shape_key, shipped_name
from pkvchat.kernels.products.linear import LinearTypes

CPU = torch.device("cpu")
SHAPE = AttentionShape(4, 2, 64, 16, torch.float32, CPU)
COST = StrategyCost(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
MISSED = replace(COST, missed={"24 18 0 late": 1.1})
CALIBRATION = Calibration(2, {"sdpa": COST, "split": MISSED})
TYPES = DeviceTypes(LinearTypes(torch.float16, torch.float16, torch.bfloat16, 16, 4), torch.float16)


def calibrator(store, progress=lambda *args: None, *, busy=False, fresh=False):
    return Calibrator(CPU, progress, store, fresh=fresh, busy=lambda: busy)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "calibration", tmp_path / "shipped")


@pytest.fixture
def saved(store):
    """A store with a record for SHAPE, and that record's path."""
    store.save("strategies", shape_key(SHAPE), CALIBRATION.to_json())
    (path,) = store.directory.iterdir()
    return store, path


def test_records_survive_json():
    assert Calibration.from_json(json.loads(json.dumps(CALIBRATION.to_json()))) == CALIBRATION
    assert DeviceTypes.from_json(json.loads(json.dumps(TYPES.to_json()))) == TYPES


def test_a_good_record_is_used_and_not_measured(saved):
    store, _ = saved
    assert calibrator(store).costs(SHAPE, ["sdpa"]) == CALIBRATION
    assert not store.notes


@pytest.mark.parametrize(
    "change",
    [
        AttentionShape(4, 2, 64, 32, torch.float32, CPU),
        AttentionShape(8, 2, 64, 16, torch.float32, CPU),
        AttentionShape(4, 2, 64, 16, torch.float16, CPU),
        AttentionShape(4, 2, 64, 16, torch.float32, CPU, torch.int8),
    ],
)
def test_another_shape_has_another_record(saved, change):
    store, _ = saved
    assert store.load("strategies", shape_key(change), Calibration.from_json) is None


def test_a_record_made_before_eager_steps_were_charged_still_counts(saved):
    store, path = saved
    for cost in (record := json.loads(path.read_text()))["data"]["costs"].values():
        del cost["eager"]
    path.write_text(json.dumps(record))
    assert calibrator(store).costs(SHAPE, ["sdpa"]) == CALIBRATION


def damage(path, edit):
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


DAMAGES = {
    "empty": lambda path: path.write_text(""),
    "cut short": lambda path: path.write_text(path.read_text()[:100]),
    "not json": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda path: path.write_text("[]"),
    "another version": lambda path: damage(path, lambda r: r.update(version=0)),
    "another device": lambda path: damage(path, lambda r: r["key"].update(device="abacus")),
    "no data": lambda path: damage(path, lambda r: r.pop("data")),
    "no workers": lambda path: damage(path, lambda r: r["data"].update(workers=0)),
    "negative": lambda path: damage(path, lambda r: r["data"]["costs"]["sdpa"].update(call=-1)),
    "nan": lambda path: damage(
        path, lambda r: r["data"]["costs"]["sdpa"].update(tile=float("nan"))
    ),
    "a number too large": lambda path: damage(
        path, lambda r: r["data"]["costs"]["sdpa"].update(tile=10**400)
    ),
    "lists in lists": lambda path: path.write_text("[" * 100_000),
    "a word": lambda path: damage(path, lambda r: r["data"]["costs"]["sdpa"].update(path="fast")),
    "constant missing": lambda path: damage(path, lambda r: r["data"]["costs"]["sdpa"].pop("plan")),
    "missed a list": lambda path: damage(
        path, lambda r: r["data"]["costs"]["sdpa"].update(missed=[])
    ),
    "misses by nothing": lambda path: damage(
        path, lambda r: r["data"]["costs"]["sdpa"].update(missed={"3 4 0": 0.0})
    ),
    "costs a list": lambda path: damage(path, lambda r: r["data"].update(costs=[])),
    "data a string": lambda path: damage(path, lambda r: r.update(data="x")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_is_set_aside_and_measured_again(saved, name):
    store, path = saved
    DAMAGES[name](path)
    damaged = path.read_bytes()
    calibration = calibrator(store).costs(SHAPE, ["sdpa"])
    assert list(calibration.costs) == ["sdpa"]
    assert path.with_suffix(".damaged").read_bytes() == damaged
    (note,) = store.notes
    assert "damaged" in note
    assert "\n" not in note
    again = Store(store.directory)
    assert calibrator(again).costs(SHAPE, ["sdpa"]) == calibration
    assert not again.notes


UNREADABLE = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "huge": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_reading_would_not_end_is_measured_again(saved, name):
    store, path = saved
    path.unlink()
    UNREADABLE[name](path)
    os.mkfifo(path.with_suffix(".partial"))  # which writing would wait for
    assert list(calibrator(store).costs(SHAPE, ["sdpa"]).costs) == ["sdpa"]
    (note,) = store.notes
    assert "cannot be read (it " in note
    assert path.is_file()
    assert not path.is_symlink()


def test_damaged_types_are_refused():
    for edit in (
        lambda data: data.update(kv="int8"),
        lambda data: data["linear"].update(few_limit=-1),
        lambda data: data["linear"].update(packed_bits="4"),
        lambda data: data["linear"].pop("weight"),
        lambda data: data["linear"].update(more=1),
    ):
        data = TYPES.to_json()
        edit(data)
        with pytest.raises((ValueError, KeyError, TypeError)):
            DeviceTypes.from_json(data)


def test_a_strategy_the_record_lacks_is_measured(saved):
    store, _ = saved
    calibration = calibrator(store).costs(SHAPE, ["sdpa", "workqueue"])
    assert set(calibration.costs) == {"sdpa", "workqueue"}


@pytest.fixture
def shipped(store):
    """A store with no record of its own and a shipped one for SHAPE, and that record's path.

    Made with other versions: those of a shipped record never are exactly those here.
    """
    key = shape_key(SHAPE)
    path = store.shipped / shipped_name(key)
    path.parent.mkdir()
    record = {"version": VERSION, "key": key | {"torch": "1.0"}, "data": CALIBRATION.to_json()}
    path.write_text(json.dumps(record))
    return store, path


def test_a_shipped_record_saves_measuring(shipped):
    store, _ = shipped
    two = Calibration(torch.get_num_threads(), CALIBRATION.costs)
    damage(shipped[1], lambda r: r["data"].update(workers=two.workers))
    assert calibrator(store).costs(SHAPE, ["sdpa", "split"]) == two
    assert not store.directory.exists()
    (note,) = store.notes
    assert "shipped" in note
    assert "pkvchat calibrate" in note


def test_a_measured_record_beats_a_shipped_one(shipped):
    store, _ = shipped
    measured = calibrator(store, fresh=True).costs(SHAPE, ["sdpa"])
    assert measured != CALIBRATION
    assert calibrator(store).costs(SHAPE, ["sdpa"]) == measured
    assert not store.notes


@pytest.mark.parametrize("name", ["cut short", "another device", "nan", "costs a list"])
def test_a_damaged_or_unfit_shipped_record_is_left_alone(shipped, name):
    store, path = shipped
    DAMAGES[name](path)
    damaged = path.read_bytes()
    assert calibrator(store).costs(SHAPE, ["sdpa"]) != CALIBRATION
    assert path.read_bytes() == damaged
    assert ["damaged" in note for note in store.notes] == [True]


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record["data"].update(workers=999),
        lambda record: record["data"]["costs"].pop("sdpa"),
    ],
    ids=["more processors", "fewer strategies"],
)
def test_a_shipped_record_that_does_not_fit_is_not_used(shipped, edit):
    store, path = shipped
    damage(path, edit)
    assert "sdpa" in calibrator(store).costs(SHAPE, ["sdpa"]).costs
    assert len(list(store.directory.iterdir())) == 1


def test_fresh_measures_where_there_is_a_record(saved):
    store, path = saved
    assert calibrator(store, fresh=True).costs(SHAPE, ["sdpa"]) != CALIBRATION
    assert json.loads(path.read_text())["data"] != CALIBRATION.to_json()


def test_fresh_has_products_measured_again(store):
    """They are while the weights are read, not by the calibrator."""
    store.save("products", device_key(CPU), {"8x8 torch.bfloat16": 1})
    calibrator(store)
    assert store.load("products", device_key(CPU), dict)
    calibrator(store, fresh=True)
    assert store.load("products", device_key(CPU), dict) is None
    calibrator(store, fresh=True)  # nothing is left to remove
    assert not store.notes


def test_what_a_busy_machine_measures_is_used_but_not_kept(store):
    assert calibrator(store, busy=True).costs(SHAPE, ["sdpa"]).costs
    assert not store.directory.exists()
    (note,) = store.notes
    assert "busy" in note
    assert "the next start measures again" in note


def test_asking_for_it_keeps_what_a_busy_machine_measures(store):
    calibrator(store, busy=True, fresh=True).costs(SHAPE, ["sdpa"])
    assert len(list(store.directory.iterdir())) == 1
    (note,) = store.notes
    assert "the figures may be off: run `pkvchat calibrate` again" in note


def test_a_directory_that_cannot_be_made_is_a_note(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "calibration")
    calibration = calibrator(store).costs(SHAPE, ["sdpa"])
    assert calibration.costs["sdpa"].predict
    assert any("measured at each start" in note for note in store.notes)


def test_a_record_that_cannot_be_read_is_a_note(saved):
    store, path = saved
    path.unlink()
    path.mkdir()
    calibrator(store).costs(SHAPE, ["sdpa"])
    assert any("cannot be read" in note for note in store.notes)


def test_measured_costs_predict_and_report_progress(store):
    seen = []
    calibration = calibrator(store, lambda *progress: seen.append(progress)).costs(
        SHAPE, ["split", "workqueue", "sdpa"]
    )
    assert set(calibration.costs) == {"split", "workqueue", "sdpa"}
    assert seen[0][1:] == (0, 3)
    assert seen[-1][1:] == (3, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_graphs_beat_launching_each_kernel(store, dtype):
    """What cannot be captured is charged for the launches of the whole layer."""
    shape = AttentionShape(8, 2, 64, 16, dtype, torch.device("cuda"))
    names = [name for name in STRATEGIES if not why_unavailable(name, shape)]
    calibration = Calibrator(shape.device, store=store).costs(shape, names)
    assert calibration.costs["sdpa"].eager > 0
    assert calibration.costs["split"].eager == calibration.costs["workqueue"].eager == 0
    adaptive = create_policy("adaptive", shape, calibration, names, num_layers=32)
    for lengths in ((100,), (2000,), (500,) * 4):
        assert adaptive.choose(lengths).strategy != "sdpa"
    assert Calibrator(shape.device, store=store).costs(shape, names) == calibration


@pytest.mark.gpu
def test_a_gpu_without_room_is_estimated(store):
    device = torch.device("cuda", 0)
    shape = AttentionShape(8, 2, 64, 16, torch.float16, device)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-4, device)
    try:
        calibration = Calibrator(device, store=store).costs(shape, ["split", "workqueue"])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert calibration.covers(["split", "workqueue"])
    assert any("estimated" in note for note in store.notes)
    assert not store.directory.exists()


def test_measured_types_are_kept(store):
    seen = []
    types = calibrator(store, lambda *progress: seen.append(progress)).types()
    assert types.linear.few_limit >= 1
    assert types.linear.packed_bits in (0, 4, 8)
    assert seen[-1][1] == seen[-1][2]
    assert calibrator(store).types() == types
